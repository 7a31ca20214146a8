"""Gold (entirely right) conversations of each role about one world, with the same prompts as in the
gateway. The mini models are trained on them.
"""

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib import resources
from typing import Literal

from executor_sft.miniworld.compositional import CompositionalWorld
from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.questions import Examiner, MiniQuestion, SubQuery
from executor_sft.miniworld.relations import BY_NAME, BY_SUBJECT, Kind
from executor_sft.miniworld.world import Entity, World
from router.protocol import NO_EVIDENCE, Passage, Report, prompts
from router.protocol.tags import element

TurnKind = Literal["system", "user", "delegate", "stop", "search", "report", "answer", "condense"]
STOP = "<stop/>Enough evidence<stop>"
NOT_FOUND = "not found"
_NOT_FOUND_SHARE = 0.05
"""Probability that, in the backbone's conversations about a question, one round of searches finds
nothing.
"""


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    """One message of a conversation. The model writes messages of all kinds but `system` and
    `user`.
    """

    kind: TurnKind
    text: str

    @property
    def role(self) -> str:
        """Role of the message in a chat: `system`, `user` or `assistant`."""
        return self.kind if self.kind in ("system", "user") else "assistant"


Dialogue = list[DialogueTurn]


@dataclass(frozen=True, slots=True)
class RolePrompts:
    """System prompts of the roles, with which the mini models are both trained and served."""

    delegation: str
    execution: str
    answer: str
    agent: str
    """Prompt of a single agent, which searches as often as needed and answers by itself."""
    condense: str

    @classmethod
    def served(cls) -> "RolePrompts":
        """Load the prompts of the preset `mini`."""
        folder = resources.files("serving") / "prompts" / "mini"
        roles = [field.name for field in fields(cls)]
        return cls(*((folder / f"{role}.txt").read_text("utf-8").strip() for role in roles))


def delegate_text(texts: list[str]) -> str:
    """Return a delegator's turn that dispatches sub-queries. A single sub-query is written as plain
    text, several as a JSON list.
    """
    body = prompts.request(texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False))
    return f"<search>{body}</search>"


def report_text(report: Report) -> str:
    """Return the text of the executor's turn that states this report."""
    evidence = "\n".join(report.evidence)
    return f"{element('answer', report.answer)}{element('evidence', evidence)}"


def answer_text(question: MiniQuestion, pairs: list[tuple[SubQuery, Report]]) -> str:
    """Return an answerer's turn that answers the question.

    `pairs`: sub-queries with their reports. For a comparison, the turn first repeats each year with
    the name of its thing: a small model can compare the years, and find the right name, only after
    it has written both.
    """
    if any(report is NO_EVIDENCE for _, report in pairs):
        return f"<answer>{NOT_FOUND}</answer>"
    trace = ""
    if question.earlier is not None:
        years = [report.answer for _, report in pairs]
        dated = [f"{year} {name}" for year, name in zip(years, question.compared, strict=True)]
        chosen = (min if question.earlier else max)(years, key=int)
        word = "earlier" if question.earlier else "later"
        trace = f"{', '.join(dated)}: {word} {dated[years.index(chosen)]} "
    return f"{trace}<answer>{prompts.request(question.answer)}</answer>"


class DialogueWriter:
    """Writes gold conversations about the questions of one world."""

    def __init__(
        self, world: World | CompositionalWorld, system: RolePrompts, library: Library | None = None
    ) -> None:
        """Index the world's pages. `library`: the pages; None to generate them from the world."""
        self._world = world
        self._system = system
        self._rng = random.Random(f"{world.seed}/{world.side}/dialogues")
        self._pages = dict[str, list[Passage]]()
        self._mentions = dict[str, list[Passage]]()
        self._library: Library | CompositionalWorld
        self._examiner: Examiner | CompositionalWorld
        if isinstance(world, CompositionalWorld):
            self._library = self._examiner = world
            return
        self._library = library or Library(world)
        self._examiner = Examiner(world, self._library)
        for entity in world.entities:
            pages = [
                self._library.by_id[identity]
                for identity in self._library.of_entity[entity.mention]
            ]
            self._pages.setdefault(entity.kind, []).extend(pages)
        for passage in self._library.passages:
            for word in {word.strip(".,()") for word in f"{passage.title} {passage.text}".split()}:
                if word[:1].isupper():
                    self._mentions.setdefault(word, []).append(passage)

    def backbone(self) -> Iterator[Dialogue]:
        """Yield conversations of delegator and answerer alternately, endlessly. Each pair is about
        the same question.
        """
        while True:
            question = self._examiner.draw()
            missing = None
            if self._rng.random() < _NOT_FOUND_SHARE:
                missing = self._rng.randrange(len(question.rounds))
            yield self.delegation(question, missing)
            yield self.answering(question, missing)

    def executor(self, two_searches: bool = False, passages: int = 3) -> Iterator[Dialogue]:
        """Yield an executor's conversations about random sub-queries, in all wordings, endlessly.

        `two_searches`: include sub-queries that need a second search. `passages`: passages per
        search.
        """
        world = self._world
        while isinstance(world, CompositionalWorld):
            yield self.execution(self._rng.choice(world.sub_queries), None, passages)
        assert isinstance(self._examiner, Examiner)
        entities = world.entities
        while True:
            entity = self._rng.choice(entities)
            relations = [
                relation for relation in BY_SUBJECT[entity.kind] if relation.name in entity.values
            ]
            relation = self._rng.choice(relations)
            plain = world.facts[entity.mention, relation.name].detour is None
            by_alias = two_searches and plain and self._rng.random() < 0.5
            sub_query = self._examiner.sub_query(
                entity, relation, self._rng.choice(relation.ask), by_alias
            )
            if two_searches or len(sub_query.searches) == 1:
                yield self.execution(sub_query, entity, passages)

    def delegation(self, question: MiniQuestion, missing: int | None = None) -> Dialogue:
        """Return a delegator's conversation: the question, then sub-queries and reports in turn,
        then the stop.

        `missing`: number of a round, from 0, whose reports say "not found"; the delegator stops
        after that round. None if all rounds find something.
        """
        turns = [
            DialogueTurn("system", self._system.delegation),
            DialogueTurn("user", prompts.request(question.text)),
        ]
        for number, block in enumerate(_until(question, missing)):
            turns.append(
                DialogueTurn("delegate", delegate_text([sub_query.text for sub_query in block]))
            )
            pairs = [
                (sub_query.text, self._seen(sub_query, number == missing)) for sub_query in block
            ]
            turns.append(DialogueTurn("user", prompts.search_results(pairs)))
        return [*turns, DialogueTurn("stop", STOP)]

    def answering(self, question: MiniQuestion, missing: int | None = None) -> Dialogue:
        """Return the answerer's conversation about a question. `missing`: see `delegation`."""
        pairs = list[tuple[SubQuery, Report]]()
        for number, block in enumerate(_until(question, missing)):
            pairs += [(sub_query, self._seen(sub_query, number == missing)) for sub_query in block]
        request = prompts.answer_request(
            question.text, [(sub_query.text, report) for sub_query, report in pairs]
        )
        return [
            DialogueTurn("system", self._system.answer),
            DialogueTurn("user", request),
            DialogueTurn("answer", answer_text(question, pairs)),
        ]

    def execution(self, sub_query: SubQuery, entity: Entity | None, passages: int = 3) -> Dialogue:
        """Return an executor's conversation: one or two searches, then the report. In some
        conversations, a note after the last passages says that no further search is allowed.

        `entity`: the thing that the sub-query asks about; None if unknown. `passages`: passages per
        search.
        """
        turns = [
            DialogueTurn("system", self._system.execution),
            DialogueTurn("user", prompts.request(sub_query.text)),
        ]
        for number, (query, gold) in enumerate(
            zip(sub_query.searches, sub_query.gold_passages, strict=True)
        ):
            last = number == len(sub_query.searches) - 1 and self._rng.random() < 0.3
            passages_shown = self._shown(gold, sub_query, entity, passages)
            turns.append(DialogueTurn("search", f"<search>{prompts.request(query)}</search>"))
            turns.append(DialogueTurn("user", prompts.documents(passages_shown, last)))
        return [*turns, DialogueTurn("report", report_text(sub_query.report))]

    def alone(self, passages: int) -> Dialogue:
        """Return a single agent's conversation about the next question: all searches that the
        question needs, then the answer. `passages`: passages per search.
        """
        question = self._examiner.draw()
        turns = [
            DialogueTurn("system", self._system.agent),
            DialogueTurn("user", prompts.request(question.text)),
        ]
        for sub_query in question.sub_queries:
            for query, gold in zip(sub_query.searches, sub_query.gold_passages, strict=True):
                passages_shown = self._shown(gold, sub_query, None, passages)
                turns.append(DialogueTurn("search", f"<search>{prompts.request(query)}</search>"))
                turns.append(DialogueTurn("user", prompts.documents(passages_shown, False)))
        pairs = [(sub_query, sub_query.report) for sub_query in question.sub_queries]
        return [*turns, DialogueTurn("answer", answer_text(question, pairs))]

    def _seen(self, sub_query: SubQuery, missing: bool) -> Report:
        """Return the report that the delegator is shown for a sub-query: the gold report with all
        its evidence or with the last point only, or `NO_EVIDENCE` if `missing`.
        """
        if missing:
            return NO_EVIDENCE
        evidence = sub_query.report.evidence
        return Report(
            sub_query.report.answer, evidence if self._rng.random() < 0.5 else evidence[-1:]
        )

    def _shown(
        self,
        gold: str,
        sub_query: SubQuery,
        entity: Entity | None,
        passages: int,
    ) -> list[Passage]:
        """Return the result of a search: the passage with the id `gold`, and others.

        In a compositional world, the others are similar passages. In a mini world, the others
        resemble the pages about `entity`; without an entity, they are random pages.
        """
        if isinstance(self._library, CompositionalWorld):
            return self._library.retrieved(gold, passages)
        if entity:
            kind = BY_NAME[sub_query.relation].subject
            return self.retrieved(self._library.by_id[gold], kind, entity, passages - 1)
        pages = [page for page in self._library.passages if page.id != gold]
        shown = [self._library.by_id[gold], *self._rng.sample(pages, passages - 1)]
        self._rng.shuffle(shown)
        return shown

    def retrieved(
        self,
        gold: Passage,
        kind: Kind,
        entity: Entity,
        others: int,
    ) -> list[Passage]:
        """Return passages as a dense retriever could find them: the passage `gold`, usually first,
        and other pages.

        The other pages mention a part of the entity's name, or are about entities of the same
        `kind`. `others`: number of other pages.
        """
        words = [word for word in entity.mention.split() if word[:1].isupper()]
        mentioning = itertools.chain.from_iterable(self._mentions.get(word, ()) for word in words)
        relatives = [page for page in mentioning if page.id != gold.id]
        pages = list[Passage]()
        while len(pages) < others:
            draw = self._rng.random()
            if draw < 0.4 and relatives:
                page = self._rng.choice(relatives)
            else:
                sample = self._rng.sample(self._pages[kind], 1 if draw > 0.8 else 12)
                page = max(sample, key=lambda page: _likeness(page.title, gold.title))
            if page.id != gold.id and page not in pages:
                pages.append(page)
        pages.insert(min(self._rng.choice((0, 0, 0, 0, 1, 2)), others), gold)
        return pages


def _until(question: MiniQuestion, missing: int | None) -> tuple[tuple[SubQuery, ...], ...]:
    """Return the rounds of a question up to the round `missing`, which finds nothing. Return all
    rounds if `missing` is None.
    """
    return question.rounds if missing is None else question.rounds[: missing + 1]


def _likeness(one: str, other: str) -> int:
    """Return the number of different letter pairs that occur in both texts."""
    return len(set(itertools.pairwise(one)) & set(itertools.pairwise(other)))
