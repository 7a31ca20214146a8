"""Wide worlds: mini worlds with tasks to fill a table. The rows of a table are a set of entities,
such as all cities of a country, and its columns are some of their facts. Additional pages, called
registers, list members of a set.

To make tables harder, some pages contradict others, list wrong names or repeat a fact. They are
written in addition to the entities' own pages, which always state the truth. Only facts that
`Knobs.unstated` selects are removed from the world; the right value of their cells is empty.
"""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.relations import BY_SUBJECT, Kind, Relation
from executor_sft.miniworld.world import Entity, Side, World
from executor_sft.tables.output import widesearch_query
from router.protocol import Passage
from router.trace.table import Column, Condition, Schema

Size = Literal["small", "medium", "large"]
Reach = Literal["register", "own_page", "two_searches", "unstated"]
"""Place of a cell's value. The value of a key cell is the name of the row's entity; it is in a
register, or else on the entity's own page.
"""
ROWS: dict[Size, range] = {"small": range(5, 13), "medium": range(15, 41), "large": range(41, 76)}
"""Range of the number of rows in tables of each size; the averages are about 8, 25 and 55."""
MAX_NAMES = 6
"""Max names in a register, and in a report."""
_YEARS = range(900, 2000, 10)
"""Years for sets such as "cities founded before 1250"."""
_OWNERS = 20
"""Max number of sets of each kind of entity."""
_EVERY = 10**6
"""Value for the parameter `tasks` of `WideWorld`, so high that the world has all possible tables.
"""
_Part = Annotated[float, Meta(ge=0, le=1)]


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """Difficulty of tables. Most settings are shares, from 0 to 1; the world's seed decides which
    pages and cells are affected. A cell can have a second page only if the entity's own page states
    its value. A fact stays stated if a set or another page depends on it.
    """

    hubs: Annotated[int, Meta(ge=1, le=20)] | None = 5
    """for tables: number of things that own the things in tables, as countries own cities. With
    fewer owners, tables are larger
    """
    listed: _Part = 0.9
    """for tables: share of a table's rows, from 0 to 1, that are in a register (a page with a list
    of names)
    """
    stale: _Part = 0.1
    """for tables: share of registers, from 0 to 1, that contain one wrong name"""
    twice: _Part = 0.15
    """for tables: share of names, from 0 to 1, that are in two registers, and also the share of
    cells whose values two pages state
    """
    conflict: _Part = 0.05
    """for tables: share of cells, from 0 to 1, for which an outdated page states a wrong value"""
    unstated: _Part = 0.04
    """for tables: share of facts, from 0 to 1, that no page states"""


class SetWords(NamedTuple):
    """Words for questions about sets of one kind of entity."""

    link: str
    """Name of the relation to the owner, such as `country`; members of a set have the same owner.
    """
    noun: str
    """Noun phrase for the set; `{x}` is the owner."""
    verb: str
    """Verb of the event in the members' year, such as `founded`."""
    years: tuple[int, ...]
    """Years for the delegator's questions, one year per turn. A question that names a year lets the
    search find members' own pages.
    """


FORMS: dict[Kind, SetWords] = {
    "city": SetWords("country", "cities of {x}", "founded", (1250, 1050, 1450, 950, 1350)),
    "book": SetWords("publisher", "books from {x}", "published", (1800, 1740, 1860, 1710, 1890)),
    "film": SetWords("director", "films by {x}", "released", (1945, 1915, 1975, 1930, 1960)),
    "company": SetWords(
        "headquarters", "companies based in {x}", "set up", (1800, 1740, 1860, 1710, 1890)
    ),
    "person": SetWords("birthplace", "people from {x}", "born", (1715, 1655, 1775, 1680, 1740)),
}
_COLUMNS = {
    kind: [column for column in BY_SUBJECT[kind] if kind != "person" or "birth" in column.name]
    for kind in FORMS
}
_ASKED = (
    "List the {n} with {c}.",
    "Which are the {n}? Give {c} of each.",
    "Name all {n}, each with {c}.",
)


class Stated(NamedTuple):
    """Names that one passage lists as members of an entity set, and the sentence to cite for them.
    If the passage is a register (a page that lists names), some of the names may be wrong.
    """

    names: tuple[str, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class EntitySet:
    """Entities of one kind with something in common, such as the cities of a country."""

    kind: Kind
    noun: str
    """Noun phrase for the set."""
    rests_on: tuple[str, ...]
    """Names of the relations by which members are chosen, such as `country`."""
    members: tuple[Entity, ...]
    owner: str
    """The name of the thing that the members have in common, such as their country."""
    before: int | None = None
    """All members' years are before this year; None for any year."""
    stated: dict[str, Stated] = field(default_factory=dict)
    """For each passage that states members, by passage id: the names of these members. Such a
    passage is a register (a list of several members), or the page of one member.
    """
    registers: list[str] = field(default_factory=list)
    """Passage ids of the registers A, B, and so on. Registers have letters, because search
    distinguishes letters better than numbers.
    """

    def discoveries(self, turn: int, registers: int) -> list[str]:
        """Return the questions with which the delegator looks for members in its turn `turn`, from
        0. There is one question for each of `registers` registers, and a last one for members' own
        pages.
        """
        form = FORMS[self.kind]
        places = range(turn * registers, (turn + 1) * registers)
        year = form.years[turn % len(form.years)]
        asked = [f"Which {self.noun} are in register {_letter(place)}?" for place in places]
        return [*asked, f"Which {self.noun} were {form.verb} about {year}?"]

    def register_in(self, question: str) -> list[str] | None:
        """Return a list with the id of the register that a question asks for. The list is empty if
        there is no such register. Return None if the question asks for no register.
        """
        letter = question.rstrip("?").rpartition(" in register ")[2]
        if len(letter) != 1:
            return None
        return [page for at, page in enumerate(self.registers) if _letter(at) == letter]

    def named_in(self, question: str, passages: list[str]) -> list[Stated]:
        """Return the names that an executor should report for a question about the set, with the
        sentences to cite. There are at most `MAX_NAMES` names, and each occurs once.

        `passages`: ids of the passages that the executor was shown.
        """
        register = self.register_in(question)
        if register is not None:
            passages = [page for page in passages if page in register]
        known = set[str]()
        statements = list[Stated]()
        for identity in passages:
            names, sentence = self.stated.get(identity, ((), ""))
            unseen = [name for name in names if name not in known][: MAX_NAMES - len(known)]
            if unseen:
                statements.append(Stated(tuple(unseen), sentence))
                known.update(unseen)
        return statements


@dataclass(frozen=True, slots=True)
class TableTask:
    """A request for a table. The rows are the members of one or two sets, and the columns are
    relations of the members.
    """

    id: str
    size: Size
    question: str
    sets: tuple[EntitySet, ...]
    relations: tuple[Relation, ...]

    @property
    def rows(self) -> list[Entity]:
        """Entities of the rows: the members of all sets."""
        return list(itertools.chain.from_iterable(group.members for group in self.sets))

    @property
    def columns(self) -> list[str]:
        """Names of the columns. The first is the key; its name is the entities' kind."""
        return [self.sets[0].kind, *map(column_name, self.relations)]

    @property
    def schema(self) -> Schema:
        """Columns of the table, with their types."""
        key, *others = self.columns
        typed = (Column(name, "integer" if name == "year" else "text") for name in others)
        return Schema((Column(key, key=True), *typed))

    @property
    def conditions(self) -> list[Condition]:
        """Conditions that all members of the sets meet, and that no other entity meets. Only a
        single set can have a condition on years.
        """
        kind = self.sets[0].kind
        columns = _COLUMNS[kind]
        (link,) = (relation for relation in columns if relation.name == FORMS[kind].link)
        (year,) = (relation for relation in columns if relation.value == "year")
        owners = tuple(group.owner for group in self.sets)
        conditions = [
            Condition(self._column(link), "equals" if len(owners) == 1 else "one_of", owners)
        ]
        if limit := self.sets[0].before:
            conditions.append(Condition(self._column(year), "before", (str(limit),)))
        return conditions

    def _column(self, relation: Relation) -> Column:
        ask = relation.ask[0].format(x=f"{{{self.sets[0].kind}}}")
        return Column(
            column_name(relation), "integer" if relation.value == "year" else "text", ask=ask
        )

    @property
    def query(self) -> str:
        """The question, followed by the names of the columns and the form of the table, as in
        WideSearch.
        """
        return widesearch_query(self.question, self.schema.columns)

    def discoveries(self, turn: int) -> list[tuple[EntitySet, str]]:
        """Return the right questions with which the delegator looks for rows in its turn `turn`,
        from 0. Each item is (set that the question asks about, question).
        """
        pairs = list[tuple[EntitySet, str]]()
        for group in self.sets:
            pairs += [(group, question) for question in group.discoveries(turn, 3)]
        return pairs


def _letter(place: int) -> str:
    return chr(ord("A") + place)


def column_name(relation: Relation) -> str:
    """Return the name of the column for a relation's values."""
    return "year" if relation.value == "year" else relation.noun.split()[1]


class WideWorld:
    """A mini world with registers, and with tasks to fill a table."""

    def __init__(
        self,
        seed: int,
        side: Side,
        knobs: Knobs,
        *,
        tasks: int = 20,
        edition: int = 1,
    ) -> None:
        """Generate the world. `side`: use of the world, for training or for tests. `knobs`:
        difficulty of tables. `tasks`: max tables of each size. `edition`: edition of the pages,
        from 1. All editions have the same facts, in other wordings, and with other registers and
        second pages.
        """
        form = f"/{edition}" if edition > 1 else ""
        self.world = World(seed, side, knobs.hubs)
        self._knobs = knobs
        self.unstated = list[tuple[Entity, Relation]]()
        self._take_out(self._rng("unstated"))
        self.library = Library(self.world, edition=form)
        self.tasks = self._tasks(tasks, self._rng("tasks"))
        groups = itertools.chain.from_iterable(task.sets for task in self.tasks)
        self.sets = list({group.noun: group for group in groups}.values())
        for group in self.sets:
            self._register(group, self._rng(f"registers of the {group.noun}{form}"))
        self._write_second_pages(self._rng(f"second pages{form}"))

    @classmethod
    def undisturbed(cls, seed: int, side: Side) -> "WideWorld":
        """Return the world of this seed without any difficulties for tables: all facts are stated,
        no page contradicts another, and all sets have complete registers.
        """
        knobs = Knobs(
            hubs=None,
            listed=1,
            stale=0,
            twice=0,
            conflict=0,
            unstated=0,
        )
        return cls(seed, side, knobs, tasks=_EVERY)

    @property
    def registers(self) -> list[Passage]:
        """Passages of all registers."""
        registers = itertools.chain.from_iterable(group.registers for group in self.sets)
        return [self.library.by_id[identity] for identity in registers]

    def gold(self, row: Entity, relation: Relation) -> str:
        """Return the right value of a cell; empty if no page states it."""
        fact = self.world.facts.get((row.mention, relation.name))
        return fact.value if fact else ""

    def listed(self, task: TableTask) -> set[str]:
        """Return all names in the registers of a task's sets, including wrong ones."""
        names = set[str]()
        for group in task.sets:
            names.update(*(group.stated[register].names for register in group.registers))
        return names

    def reach(self, task: TableTask) -> list[list[Reach]]:
        """Return the place (`Reach`) of each cell's value: one list for each row, with one place
        for each column. The key column is first.
        """
        listed = self.listed(task)
        table = list[list[Reach]]()
        for row in task.rows:
            places: list[Reach] = ["register" if row.mention in listed else "own_page"]
            for relation in task.relations:
                fact = self.world.facts.get((row.mention, relation.name))
                if not fact:
                    places.append("unstated")
                else:
                    places.append("two_searches" if fact.detour else "own_page")
            table.append(places)
        return table

    def _rng(self, what: str) -> random.Random:
        return random.Random(f"{self.world.seed}/{self.world.side}/{what}")

    def _take_out(self, rng: random.Random) -> None:
        """Remove some facts from the world, so that no page states them; keep their subjects and
        relations in `unstated`.
        """
        facts = self.world.facts
        needed = {(fact.via, fact.relation.name) for fact in facts.values()}
        for key, fact in list(facts.items()):
            kind = fact.subject.kind
            relation = fact.relation
            free = (
                kind in FORMS and relation in _COLUMNS[kind] and relation.name != FORMS[kind].link
            )
            if free and key not in needed and rng.random() < self._knobs.unstated:
                self.unstated.append((fact.subject, relation))
                del facts[key], fact.subject.values[relation.name]

    def _tasks(self, number: int, rng: random.Random) -> list[TableTask]:
        """Return up to `number` tasks of each size, drawn from all possible ones."""
        sets = list(itertools.chain.from_iterable(map(self._sets_of, FORMS)))
        large = [group for group in sets if len(group.members) not in ROWS["small"]]
        early = filter(None, (self._early(group, rng) for group in large))
        candidates: list[tuple[EntitySet, ...]] = [(group,) for group in (*sets, *early)]
        pairs = itertools.combinations(large, 2)
        candidates += [pair for pair in pairs if pair[0].kind == pair[1].kind]
        tasks = list[TableTask]()
        for size, rows in ROWS.items():
            fitting = [
                groups
                for groups in candidates
                if sum(len(group.members) for group in groups) in rows
            ]
            for groups in rng.sample(fitting, min(number, len(fitting))):
                identity = f"mini_wide_{self.world.seed}_{len(tasks) + 1:03d}"
                columns = _COLUMNS[groups[0].kind]
                shown = rng.sample(columns, rng.randint(2, len(columns)))
                relations = tuple(relation for relation in columns if relation in shown)
                *names, last = map(column_name, relations)
                noun = " and the ".join(group.noun for group in groups)
                question = rng.choice(_ASKED).format(n=noun, c=f"{', '.join(names)} and {last}")
                tasks.append(
                    TableTask(
                        identity,
                        size,
                        question,
                        groups,
                        relations,
                    )
                )
        return tasks

    def _sets_of(self, kind: Kind) -> Iterator[EntitySet]:
        """Yield sets of entities of this kind, each large enough for a table. The members of a set
        have the same owner, such as a country.
        """
        form = FORMS[kind]
        groups = dict[str, list[Entity]]()
        for entity in self.world.entities:
            if entity.kind == kind:
                owner = self.world.facts[entity.mention, form.link].value
                groups.setdefault(owner, []).append(entity)
        sets = (
            EntitySet(kind, form.noun.format(x=owner), (form.link,), tuple(members), owner)
            for owner, members in groups.items()
            if len(members) >= ROWS["small"].start
        )
        return itertools.islice(sets, _OWNERS)

    def _early(self, entities: EntitySet, rng: random.Random) -> EntitySet | None:
        """Choose a year from `_YEARS` at random. Return the members with earlier years, as a set
        for a small table. Return None if no year gives a set of the right size.
        """
        (year,) = (column for column in _COLUMNS[entities.kind] if column.value == "year")
        dated = [(int(value), row) for row in entities.members if (value := self.gold(row, year))]
        limits = [limit for limit in _YEARS if sum(at < limit for at, _ in dated) in ROWS["small"]]
        if not limits:
            return None
        limit = rng.choice(limits)
        noun = f"{entities.noun} {FORMS[entities.kind].verb} before {limit}"
        members = tuple(row for at, row in dated if at < limit)
        rests_on = (*entities.rests_on, year.name)
        return EntitySet(
            entities.kind,
            noun,
            rests_on,
            members,
            entities.owner,
            limit,
        )

    def _register(self, group: EntitySet, rng: random.Random) -> None:
        """Write the registers of a set. In `group.stated`, record the names in each register. Also
        record each member whose own page states that the member belongs to the set.
        """
        facts = self.world.facts
        knobs = self._knobs
        number = len(group.members)
        plain = [
            row
            for row in group.members
            if not any(facts[row.mention, name].detour for name in group.rests_on)
        ]
        for row in plain:
            page = self.library.states[row.mention, group.rests_on[0]]
            group.stated[page.passage_id] = Stated((row.mention,), page.sentence)

        unlisted = rng.sample(plain, min(len(plain), round((1 - knobs.listed) * number)))
        listed = [row.mention for row in group.members if row not in unlisted]
        kind = (row for row in self.world.entities if row.kind == group.kind)
        strangers = [row.mention for row in kind if row not in group.members]
        wrong = sum(rng.random() < knobs.stale for _ in range(math.ceil(number / MAX_NAMES)))
        names = rng.sample([*listed, *rng.sample(strangers, wrong)], len(listed) + wrong)

        parts = math.ceil(len(names) * (1 + knobs.twice) / MAX_NAMES)
        registers = [names[at::parts] for at in range(parts)]
        for name in rng.sample(listed, round(knobs.twice * len(listed))):
            others = (register for register in registers if name not in register)
            shortest = min(others, key=len, default=[])
            if 0 < len(shortest) < MAX_NAMES:
                shortest.append(name)

        for at, register in enumerate(registers):
            title = f"{_letter(at)} of the {group.noun}"
            sentence = f"This is register {title}."
            *first, last = register
            text = f"It names {', '.join(first)} and {last}." if first else f"It names {last}."
            identity = self.library.add(f"Register {title}", [sentence, text])
            group.registers.append(identity)
            group.stated[identity] = Stated(tuple(register), sentence)

    def _write_second_pages(self, rng: random.Random) -> None:
        """Write second pages for some cells: outdated pages ("Old account of …") with a wrong
        value, and notes that repeat the right value.
        """
        members = itertools.chain.from_iterable(group.members for group in self.sets)
        facts = []
        for name, row in {row.mention: row for row in members}.items():
            facts += [self.world.facts.get((name, column.name)) for column in _COLUMNS[row.kind]]
        for fact in (fact for fact in facts if fact and not fact.detour):
            draw = rng.random()
            name = fact.subject.mention
            statement = rng.choice(fact.relation.statements)
            if draw < self._knobs.conflict:
                alike = (
                    other for other in self.world.facts.values() if other.relation is fact.relation
                )
                wrong = rng.choice([other.value for other in alike if other.value != fact.value])
                cites = f"The corrected account is on the page {name}."
                self.library.add(
                    f"Old account of {name}", [statement.format(x=name, y=wrong), cites]
                )
            elif draw < self._knobs.conflict + self._knobs.twice:
                self.library.add(f"Notes on {name}", [statement.format(x=name, y=fact.value)])
