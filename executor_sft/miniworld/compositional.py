"""A seeded world for questions of an open-ended language, whose passages are as plain as can be: one fact each."""

import itertools
import random
from typing import Literal

from executor_sft.miniworld.grammar import RELATIONS, SHAPES_OF, Phrasing, Relation, Shape, Tree, size
from executor_sft.miniworld.questions import Question, SubQuery
from executor_sft.miniworld.world import Names, Side
from router.protocol import Passage, Report

Kind = Literal["mini", "compositional"]
"""Of a world."""
QUESTIONS = 400
"""Of a training world."""
_ASIDES: tuple[Shape, ...] = ((), ((),), ((), ()))
_ASIDES_EACH = (0, 0, 1, 1, 2)
_FURTHER_FACTS = 2
"""Of each thing, besides those that a question is about."""


class Composition:
    """Questions, and the passages that answer them, those of their asides and others; two worlds of different sides
    share no name, no shape of questions, and every question of a test has a wording that is never trained on.
    """

    def __init__(self, seed: int, side: Side, questions: int = QUESTIONS, prefix: str = "compositional") -> None:
        self.seed, self.side, self._prefix = seed, side, prefix
        self._rng = random.Random(f"{seed}/{side}/compositional")
        self._names, self._phrasing = Names(self._rng, side), Phrasing(self._rng, side)
        self.passages: list[Passage] = []
        self._facts: dict[str, SubQuery] = {}
        self.questions = [self._question(number) for number in range(questions)]
        self.by_id = {passage.id: passage for passage in self.passages}
        self.sub_queries = list(self._facts.values())
        """One for each passage, in the same order."""
        self._next = itertools.cycle(self.questions)
        self._mentions: dict[str, list[Passage]] = {}
        for passage, sub_query in zip(self.passages, self.sub_queries, strict=True):
            for word in (*passage.title.split(" and "), sub_query.report.answer, sub_query.relation):
                self._mentions.setdefault(word, []).append(passage)

    def draw(self) -> Question:
        """The next question; after the last one, the first again."""
        return next(self._next)

    def neighbours(self, sub_query: SubQuery, count: int, rng: random.Random) -> list[Passage]:
        """Other passages that name what the one that answers `sub_query` does, and else some of its relation."""
        gold = self.by_id[sub_query.gold_passages[0]]
        names = *gold.title.split(" and "), sub_query.report.answer
        near = [passage for name in names for passage in self._mentions[name]]
        alike = self._mentions[sub_query.relation]
        found = dict.fromkeys((*rng.sample(near, len(near)), *rng.sample(alike, min(len(alike), count + 1))))
        return [passage for passage in found if passage != gold][:count]

    def _question(self, number: int) -> Question:
        tree = self._tree(self._shape())
        asides = [self._tree(self._rng.choice(_ASIDES)) for _ in range(self._rng.choice(_ASIDES_EACH))]
        text, known = "", self._phrasing.novel
        while not text or (self.side == "test" and self._phrasing.novel == known):
            text = self._phrasing.question(tree, asides)
        rounds: list[list[SubQuery]] = [[] for _ in range(tree.height)]
        self._find(tree, rounds)
        for aside in asides:
            self._find(aside, [[]])
        identity = f"compositional-{self.side}-{self.seed}-{number:05d}"
        answer = rounds[-1][-1].report.answer
        return Question(identity, text, "compositional", answer, tuple(map(tuple, rounds)))

    def _shape(self) -> Shape:
        """One of this side's, of each size with equal chances."""
        shapes = SHAPES_OF[self.side]
        wanted = self._rng.choice(sorted(set(map(size, shapes))))
        return self._rng.choice([shape for shape in shapes if size(shape) == wanted])

    def _tree(self, shape: Shape, kind: str | None = None) -> Tree:
        """A tree of this shape whose value is of this kind, or of any."""
        if not shape:
            return Tree(self._names.word())
        fitting = [one for one in RELATIONS if one.subjects == len(shape) and kind in (None, one.value)]
        relation = self._rng.choice(fitting)
        return Tree("", relation, tuple(self._tree(part, relation.subject) for part in shape))

    def _find(self, tree: Tree, rounds: list[list[SubQuery]]) -> str:
        """State the facts of a tree, put their sub-queries into `rounds`, and return the value."""
        if tree.relation is None:
            return tree.name
        subjects = [self._find(subject, rounds) for subject in tree.subjects]
        sub_query = self._fact(tree.relation, subjects)
        rounds[tree.height - 1].append(sub_query)
        for name in subjects:
            self._state_more(name, tree.relation.subject)
        self._state_more(sub_query.report.answer, tree.relation.value)
        return sub_query.report.answer

    def _state_more(self, name: str, kind: str) -> None:
        others = [one for one in RELATIONS if one.subject == kind and one.subjects == 1]
        for other in self._rng.sample(others, _FURTHER_FACTS):
            self._fact(other, [name])

    def _fact(self, relation: Relation, subjects: list[str]) -> SubQuery:
        """The sub-query for a fact; its passage is written when it is first asked for."""
        about = f"the {relation.name} of {' and '.join(subjects)}"
        if about not in self._facts:
            value, identity = self._names.word(), f"{self._prefix}-{len(self.passages):05d}"
            sentence, text = f"T{about[1:]} is {value}.", f"What is {about}?"
            self.passages.append(Passage(identity, " and ".join(subjects), sentence))
            report = Report(value, (sentence,))
            self._facts[about] = SubQuery(text, (text,), (identity,), report, "plain", relation.name)
        return self._facts[about]
