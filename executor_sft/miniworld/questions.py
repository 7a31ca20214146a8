"""Questions about a mini world, with the right (gold) sub-queries, reports and answers."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Literal

from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.relations import RELATIONS, Relation
from executor_sft.miniworld.world import Entity, World
from router.protocol import Report

QuestionType = Literal["1-hop", "2-hop", "3-hop", "comparison", "compositional"]

_NESTED = tuple(relation for relation in RELATIONS if relation.value != "year")
_PAIRS = tuple(
    (first, second)
    for first, second in product(_NESTED, RELATIONS)
    if second.subject == first.value
)
_TRIPLES = tuple(
    (*pair, third) for pair, third in product(_PAIRS, RELATIONS) if third.subject == pair[1].value
)
_CHAINS: dict[int, tuple[tuple[Relation, ...], ...]] = {2: _PAIRS, 3: _TRIPLES}
"""Chains of relations for questions of two and three hops, by the number of hops."""
_TYPES: dict[int, QuestionType] = {1: "1-hop", 2: "2-hop", 3: "3-hop"}
_ALIAS_SHARE = 0.75
"""Probability that a question uses an entity's alias, if the entity has an alias and its own page
states the fact.
"""
_COMPARED = tuple(relation for relation in RELATIONS if relation.compare)


@dataclass(frozen=True, slots=True)
class SubQuery:
    """A gold sub-query: its text, the searches that answer it, and the right report."""

    text: str
    searches: tuple[str, ...]
    """Search queries: one, or two if the first search cannot find the answer."""
    gold_passages: tuple[str, ...]
    """Ids of the passages that the searches must find, one for each search."""
    report: Report
    kind: str
    """`plain` if one search is enough, else the reason for the second search: `alias`, `redirect`
    or `shared` (`Detour`).
    """
    relation: str
    """Name of the relation, such as `birthplace`, for which the sub-query asks."""


@dataclass(frozen=True, slots=True)
class MiniQuestion:
    """A question with its right answer and the sub-queries that lead to it."""

    id: str
    text: str
    type: QuestionType
    answer: str
    rounds: tuple[tuple[SubQuery, ...], ...]
    """The gold (right) sub-queries of each round."""
    earlier: bool | None = None
    """For a comparison: True if the question asks for the earlier of two things, False if it asks
    for the later one. None for all other questions.
    """
    compared: tuple[str, ...] = ()
    """Names of the two things that a comparison asks about."""

    @property
    def sub_queries(self) -> Sequence[SubQuery]:
        """All gold sub-queries, round by round."""
        return list(chain.from_iterable(self.rounds))

    @property
    def needs_second_search(self) -> bool:
        """True if any sub-query needs two searches."""
        return any(len(sub_query.searches) > 1 for sub_query in self.sub_queries)


class Examiner:
    """Draws questions about one world, endlessly. Two examiners of the same world draw the same
    questions.
    """

    def __init__(self, world: World, library: Library) -> None:
        self._world = world
        self._library = library
        self._rng = random.Random(f"{world.seed}/{world.side}/questions")
        self._by_kind = dict[str, list[Entity]]()
        for entity in world.entities:
            self._by_kind.setdefault(entity.kind, []).append(entity)
        self._count = 0

    def draw(self) -> MiniQuestion:
        """Return the next question. 45 % of the questions have two hops, 25 % have three, and 30 %
        are comparisons.
        """
        draw = self._rng.random()
        hops = 2 if draw < 0.75 else 3
        while True:
            question = self._comparison() if draw < 0.30 else self._chain(hops)
            if question:
                self._count += 1
                return question

    def sub_query(
        self,
        entity: Entity,
        relation: Relation,
        wording: str,
        by_alias: bool = False,
    ) -> SubQuery:
        """Return the gold sub-query that asks for a relation of an entity.

        `wording`: question with `{x}` in place of the entity's name. `by_alias`: use the entity's
        alias, if it has one.
        """
        named = _named(entity, by_alias)
        text = wording.format(x=named)
        key = (entity.mention, relation.name)
        fact = self._world.facts[key]
        library = self._library
        if named != entity.mention:  # only if the entity's own page states the fact
            steps = [
                (text, library.aliases[named]),
                (wording.format(x=entity.mention), library.states[key]),
            ]
        elif fact.detour is None:
            steps = [(text, library.states[key])]
        elif fact.detour == "shared":
            steps = [
                (text, library.points[key]),
                (wording.format(x=fact.via), library.states[fact.via, relation.name]),
            ]
        else:
            steps = [
                (text, library.points[key]),
                (f"{fact.via} Chronicle", library.states[key]),
            ]
        return SubQuery(
            text,
            tuple(search for search, _ in steps),
            tuple(stated.passage_id for _, stated in steps),
            Report(fact.value, tuple(stated.sentence for _, stated in steps)),
            "alias" if named != entity.mention else fact.detour or "plain",
            relation.name,
        )

    def _chain(self, hops: int) -> MiniQuestion | None:
        relations = self._rng.choice(_CHAINS[hops])
        start = self._rng.choice(self._by_kind[relations[0].subject])
        return self.chain(start, relations)

    def chain(
        self,
        start: Entity,
        relations: Sequence[Relation],
        wording: str = "",
        *,
        by_alias: bool | None = None,
    ) -> MiniQuestion | None:
        """Return the question for the value at the end of a chain: it begins at the entity `start`,
        and each of `relations` leads to the next entity. Return None if there is no such value, or
        if the answer is one of the entities on the way.

        `wording`: question with `{x}` in place of the last relation's subject; empty to choose a
        wording at random. `by_alias`: use the alias of `start`, if it has one; None to choose at
        random.
        """
        hops = len(relations)
        entities = [start]
        for relation in relations[:-1]:
            value = entities[-1].values.get(relation.name)
            if not isinstance(value, Entity):
                return None
            entities.append(value)
        if (
            relations[-1].name not in entities[-1].values
            or len({entity.mention for entity in entities}) < hops
        ):
            return None
        if by_alias is None:
            by_alias = self._use_alias(start, relations[0])
        wording = wording or self._rng.choice(relations[-1].ask)
        wordings = [*(relation.ask[0] for relation in relations[:-1]), wording]
        steps = [
            (self.sub_query(entity, relation, asked, by_alias and entity is start),)
            for entity, relation, asked in zip(entities, relations, wordings, strict=True)
        ]
        subject = _named(start, by_alias)
        for relation in relations[:-1]:
            subject = relation.noun.format(x=subject)
        answer = steps[-1][0].report.answer
        if answer in {entity.mention for entity in entities}:
            return None
        return MiniQuestion(
            self._next_id(),
            wording.format(x=subject),
            _TYPES[hops],
            answer,
            tuple(steps),
        )

    def _comparison(self) -> MiniQuestion | None:
        relation = self._rng.choice(_COMPARED)
        one, other = self._rng.sample(self._by_kind[relation.subject], 2)
        years = [self._world.facts[entity.mention, relation.name].value for entity in (one, other)]
        if years[0] == years[1]:
            return None
        wording, earlier = self._rng.choice(relation.compare)
        aliased = [self._use_alias(entity, relation) for entity in (one, other)]
        both = list(zip((one, other), aliased, strict=True))
        asked = tuple(
            self.sub_query(entity, relation, relation.ask[0], by_alias) for entity, by_alias in both
        )
        named = tuple(_named(entity, by_alias) for entity, by_alias in both)
        answer = named[0] if (int(years[0]) < int(years[1])) == earlier else named[1]
        text = wording.format(a=named[0], b=named[1])
        return MiniQuestion(
            self._next_id(),
            text,
            "comparison",
            answer,
            (asked,),
            earlier,
            named,
        )

    def _use_alias(self, entity: Entity, relation: Relation) -> bool:
        plain = self._world.facts[entity.mention, relation.name].detour is None
        return bool(entity.alias) and plain and self._rng.random() < _ALIAS_SHARE

    def _next_id(self) -> str:
        return f"mini-{self._world.side}-{self._world.seed}-{self._count:05d}"


def _named(entity: Entity, by_alias: bool) -> str:
    return entity.alias if by_alias and entity.alias else entity.mention
