"""The compositional world: a generated corpus for nested questions, which are built by the grammar
in `grammar.py`. Each passage states one fact.
"""

import itertools
import random
from typing import Literal

from executor_sft.miniworld.grammar import (
    RELATIONS,
    GrammarRelation,
    Phrasing,
    Shape,
    Tree,
    shapes,
    size,
)
from executor_sft.miniworld.questions import MiniQuestion, SubQuery
from executor_sft.miniworld.world import Names, Side
from router.protocol import Passage, Report

Kind = Literal["mini", "compositional"]
"""Kind of a generated world."""
_ASIDES: tuple[Shape, ...] = ((), ((),), ((), ()))
"""Shapes of asides: a name, a relation with one subject, or a relation with two subjects. An aside
is something that a question mentions but does not ask for.
"""
_ASIDES_EACH = (0, 0, 1, 1)
"""Number of asides in a question. One element is drawn for each question."""


class CompositionalWorld:
    """Questions, and the passages to search: passages that answer the questions, passages about
    asides, and others that no question needs.

    Training and test worlds share no names and no shapes of questions. Every test question has a
    wording that never occurs in training.
    """

    def __init__(
        self,
        seed: int,
        side: Side,
        questions: int = 400,
        prefix: str = "compositional",
    ) -> None:
        """Generate the world. `side`: use of the world, for training or for tests. `questions`:
        number of questions. `prefix`: beginning of the passages' ids.
        """
        self.seed = seed
        self.side = side
        self._prefix = prefix
        self._rng = random.Random(f"{seed}/{side}/compositional")
        self._names = Names(self._rng, side)
        self._phrasing = Phrasing(self._rng, side)
        self._shapes = shapes(side)
        self.passages = list[Passage]()
        self._facts = dict[str, SubQuery]()
        self.questions = [self._question(number) for number in range(questions)]
        self.by_id = {passage.id: passage for passage in self.passages}
        self.sub_queries = list(self._facts.values())
        """All sub-queries, in the order of `passages`. Each passage answers one sub-query."""
        self._next = itertools.cycle(self.questions)

    def draw(self) -> MiniQuestion:
        """Return the next question. After the last question comes the first one again."""
        return next(self._next)

    def retrieved(self, gold: str, count: int) -> list[Passage]:
        """Return `count` passages as the result of a search that finds the passage `gold` (an id).
        That passage is first. The others are drawn from the next six passages; most of these
        mention the same names.
        """
        at = int(gold.rpartition("-")[2])
        steps = (0, *self._rng.sample(range(1, 7), count - 1))
        return [self.passages[(at + step) % len(self.passages)] for step in steps]

    def _question(self, number: int) -> MiniQuestion:
        wanted = self._rng.choice(sorted(set(map(size, self._shapes))))
        text = ""
        known = self._phrasing.novel
        while not text or (self.side == "test" and self._phrasing.novel == known):
            fitting = [shape for shape in self._shapes if size(shape) == wanted]
            tree = self._tree(self._rng.choice(fitting))
            asides = [
                self._tree(self._rng.choice(_ASIDES)) for _ in range(self._rng.choice(_ASIDES_EACH))
            ]
            text = self._phrasing.question(tree, asides)
        rounds: list[list[SubQuery]] = [[] for _ in range(tree.height)]
        answer = self._find(tree, rounds)
        for aside in asides:
            self._find(aside, [[]])
        identity = f"compositional-{self.side}-{self.seed}-{number:05d}"
        return MiniQuestion(
            identity,
            text,
            "compositional",
            answer,
            tuple(map(tuple, rounds)),
        )

    def _tree(self, shape: Shape, kind: str | None = None) -> Tree:
        """Return a tree of this shape with new names. `kind`: kind of the thing that the tree
        describes; None for any kind.
        """
        if not shape:
            return Tree(self._names.word())
        relations = RELATIONS[len(shape)]
        relation = self._rng.choice(
            [relation for relation in relations if kind in (None, relation.value)]
        )
        return Tree("", relation, tuple(self._tree(part, relation.subject) for part in shape))

    def _find(self, tree: Tree, rounds: list[list[SubQuery]]) -> str:
        """Write the passages for the facts of a tree, add their sub-queries to `rounds`, and return
        the name of the thing that the tree describes.
        """
        if tree.relation is None:
            return tree.name
        subjects = [self._find(subject, rounds) for subject in tree.subjects]
        sub_query = self._fact(tree.relation, subjects)
        rounds[tree.height - 1].append(sub_query)
        value = sub_query.report.answer
        kinds = (*(tree.relation.subject for _ in subjects), tree.relation.value)
        for name, kind in zip((*subjects, value), kinds, strict=True):
            others = [relation for relation in RELATIONS[1] if relation.subject == kind]
            # Also write up to two facts that no question asks for
            for other in self._rng.sample(others, min(len(others), 2)):
                self._fact(other, [name])
        return value

    def _fact(self, relation: GrammarRelation, subjects: list[str]) -> SubQuery:
        """Return the sub-query for a fact. If the fact is new, first draw its value and write its
        passage.
        """
        about = f"the {relation.name} of {' and '.join(subjects)}"
        if about not in self._facts:
            value = self._names.word()
            identity = f"{self._prefix}-{len(self.passages):05d}"
            sentence = f"T{about[1:]} is {value}."
            text = f"What is {about}?"
            self.passages.append(Passage(identity, " and ".join(subjects), sentence))
            report = Report(value, (sentence,))
            self._facts[about] = SubQuery(
                text,
                (text,),
                (identity,),
                report,
                "plain",
                relation.name,
            )
        return self._facts[about]
