"""Tables over a world: sets of entities with gold for each column, and registers, which name a part
of a set.

Facts are true as everywhere: pages that disturb are written beside those of the entities. Only
`unstated` ones are taken out, and their gold is blank.
"""

import itertools
import math
import random
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.relations import BY_SUBJECT, Kind, Relation
from executor_sft.miniworld.world import Entity, Side, World
from router.protocol import Passage
from router.trace.table import Column, Schema

Size = Literal["small", "medium", "large"]
Reach = Literal["register", "own_page", "two_searches", "unstated"]
"""Where a cell is found; a key, by a register or by its own page alone."""
ROWS: dict[Size, range] = {"small": range(5, 13), "medium": range(15, 41), "large": range(41, 76)}
"""About 8, 25 and 55."""
MOST_NAMES = 6
"""Of a register, and of a report."""
_YEARS = range(900, 2000, 10)
_OWNERS = 20
_EVERY = 10**6


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """The hardness of tables: shares, each drawn by the world's seed. Second pages are of plainly
    stated cells alone, and nothing is unstated that a set or another page rests on.
    """

    hubs: (
        Annotated[int, Meta(ge=1, le=20, description="to which most things of a kind belong")]
        | None
    ) = 5
    """None: everyone has their share."""
    listed: Annotated[
        float, Meta(ge=0, le=1, description="members of a set that its registers name")
    ] = 0.9
    stale: Annotated[
        float, Meta(ge=0, le=1, description="registers that name one that does not belong")
    ] = 0.1
    twice: Annotated[
        float, Meta(ge=0, le=1, description="names in two registers, cells on two pages")
    ] = 0.15
    conflict: Annotated[
        float, Meta(ge=0, le=1, description="cells of which an old page, corrected, differs")
    ] = 0.05
    unstated: Annotated[float, Meta(ge=0, le=1, description="facts that no page states")] = 0.04


class Form(NamedTuple):
    """Words for sets of one kind."""

    link: str
    """The relation to their owner."""
    noun: str
    verb: str
    """Of their years."""
    years: tuple[int, ...]
    """Asked about in turn, to find members by their own pages."""


FORMS: dict[Kind, Form] = {
    "city": Form("country", "cities of {x}", "founded", (1250, 1050, 1450, 950, 1350)),
    "book": Form("publisher", "books from {x}", "published", (1800, 1740, 1860, 1710, 1890)),
    "film": Form("director", "films by {x}", "released", (1945, 1915, 1975, 1930, 1960)),
    "company": Form(
        "headquarters", "companies based in {x}", "set up", (1800, 1740, 1860, 1710, 1890)
    ),
    "person": Form("birthplace", "people from {x}", "born", (1715, 1655, 1775, 1680, 1740)),
}
_COLUMNS = {
    kind: [one for one in BY_SUBJECT[kind] if kind != "person" or "birth" in one.name]
    for kind in FORMS
}
_ASKED = (
    "List the {n} with {c}.",
    "Which are the {n}? Give {c} of each.",
    "Name all {n}, each with {c}.",
)
_TAIL = (
    "\n\nGive the result as one Markdown table with the following columns:\n{columns}\n"
    "Leave no cell out that can be known. The output format is \n```markdown\n"
    "{{data_content}}\n```."
)


class Stated(NamedTuple):
    """Names that a passage says to belong to a set, and the sentence that says so."""

    names: tuple[str, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class EntitySet:
    """Entities of one kind with something in common."""

    kind: Kind
    noun: str
    rests_on: tuple[str, ...]
    """The relations by which members belong to it."""
    members: tuple[Entity, ...]
    stated: dict[str, Stated] = field(default_factory=dict)
    """By passage: members' own pages, and registers."""
    registers: list[str] = field(default_factory=list)
    """Their passages, from A on: letters are told apart by search better than numbers."""

    def discoveries(self, turn: int, registers: int) -> list[str]:
        """Questions of the lead's turn `turn`, from 0: about so many registers, and about own
        pages.
        """
        form = FORMS[self.kind]
        places = range(turn * registers, (turn + 1) * registers)
        year = form.years[turn % len(form.years)]
        asked = [f"Which {self.noun} are in register {_letter(place)}?" for place in places]
        return [*asked, f"Which {self.noun} were {form.verb} about {year}?"]

    def register_in(self, question: str) -> list[str] | None:
        """The register that a question asks for, if there is such a one; None where it asks for
        none.
        """
        letter = question.rstrip("?").rpartition(" in register ")[2]
        return (
            [one for at, one in enumerate(self.registers) if _letter(at) == letter]
            if len(letter) == 1
            else None
        )

    def named_in(self, question: str, passages: list[str]) -> list[Stated]:
        """The answer that passages give to a question about the set: six names at most, none
        twice.
        """
        asked = self.register_in(question)
        known = set[str]()
        found = list[Stated]()
        for identity in passages if asked is None else set(asked).intersection(passages):
            names, sentence = self.stated.get(identity, ((), ""))
            if new := [name for name in names if name not in known][: MOST_NAMES - len(known)]:
                found.append(Stated(tuple(new), sentence))
                known.update(new)
        return found


@dataclass(frozen=True, slots=True)
class TableTask:
    """A table question: the members of one set, or of two, with some of their facts."""

    id: str
    size: Size
    question: str
    sets: tuple[EntitySet, ...]
    relations: tuple[Relation, ...]

    @property
    def rows(self) -> list[Entity]:
        """All members."""
        return [member for one in self.sets for member in one.members]

    @property
    def columns(self) -> list[str]:
        """Their names; the first, of the key, is that of the kind."""
        return [self.sets[0].kind, *map(column_name, self.relations)]

    @property
    def schema(self) -> Schema:
        """The same as a table's columns."""
        key, *others = self.columns
        typed = (Column(name, "integer" if name == "year" else "text") for name in others)
        return Schema((Column(key, key=True), *typed))

    @property
    def query(self) -> str:
        """The question with the columns in its last lines, as WideSearch has it."""
        return self.question + _TAIL.format(columns=", ".join(self.columns))

    def discoveries(self, turn: int) -> list[tuple[EntitySet, str]]:
        """The gold questions of the lead's turn `turn`, from 0."""
        return [(one, question) for one in self.sets for question in one.discoveries(turn, 3)]


def _letter(place: int) -> str:
    return chr(ord("A") + place)


def column_name(relation: Relation) -> str:
    """The name of a relation's column."""
    return "year" if relation.value == "year" else relation.noun.split()[1]


class WideWorld:
    """A world with registers and `tasks` of each size, or as many as there are."""

    def __init__(self, seed: int, side: Side, knobs: Knobs, *, tasks: int = 20) -> None:
        self.world = World(seed, side, knobs.hubs)
        self._knobs = knobs
        self.unstated: list[tuple[Entity, Relation]] = []
        self._take_out(self._rng("unstated"))
        self.library = Library(self.world)
        self.tasks = self._tasks(tasks, self._rng("tasks"))
        self.sets = list({one.noun: one for task in self.tasks for one in task.sets}.values())
        for one in self.sets:
            self._register(one, self._rng(f"registers of the {one.noun}"))
        self._write_beside(self._rng("second pages"))

    @classmethod
    def undisturbed(cls, seed: int, side: Side) -> "WideWorld":
        """A world as it is without tables, and registers of all sets that a table could ask for."""
        knobs = Knobs(hubs=None, listed=1, stale=0, twice=0, conflict=0, unstated=0)
        return cls(seed, side, knobs, tasks=_EVERY)

    @property
    def registers(self) -> list[Passage]:
        """All of them."""
        return [self.library.by_id[identity] for one in self.sets for identity in one.registers]

    def gold(self, row: Entity, relation: Relation) -> str:
        """The value of a cell; empty where no page states it."""
        fact = self.world.facts.get((row.mention, relation.name))
        return fact.value if fact else ""

    def listed(self, task: TableTask) -> set[str]:
        """All names in the registers of a task's sets."""
        return {
            name
            for one in task.sets
            for register in one.registers
            for name in one.stated[register].names
        }

    def reach(self, task: TableTask) -> list[list[Reach]]:
        """The place at which each cell of each gold row is found, the key first."""
        table = list[list[Reach]]()
        listed = self.listed(task)
        for row in task.rows:
            facts = [self.world.facts.get((row.mention, one.name)) for one in task.relations]
            table.append(["register" if row.mention in listed else "own_page"])
            table[-1] += [
                "unstated" if not fact else "two_searches" if fact.detour else "own_page"
                for fact in facts
            ]
        return table

    def _rng(self, what: str) -> random.Random:
        return random.Random(f"{self.world.seed}/{self.world.side}/{what}")

    def _take_out(self, rng: random.Random) -> None:
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
        sets: list[EntitySet] = []
        for kind, form in FORMS.items():
            groups: dict[str, list[Entity]] = {}
            for one in (one for one in self.world.entities if one.kind == kind):
                groups.setdefault(self.world.facts[one.mention, form.link].value, []).append(one)
            groups = {
                owner: members
                for owner, members in groups.items()
                if len(members) >= ROWS["small"].start
            }
            for owner, members in itertools.islice(groups.items(), _OWNERS):
                sets.append(
                    EntitySet(kind, form.noun.format(x=owner), (form.link,), tuple(members))
                )
        large = [one for one in sets if len(one.members) not in ROWS["small"]]
        candidates = [
            (one,) for one in (*sets, *filter(None, (self._early(one, rng) for one in large)))
        ]
        pairs = [pair for pair in itertools.combinations(large, 2) if pair[0].kind == pair[1].kind]
        tasks: list[TableTask] = []
        for size, rows in ROWS.items():
            fitting = [
                any_
                for any_ in (*candidates, *pairs)
                if sum(len(one.members) for one in any_) in rows
            ]
            for chosen in rng.sample(fitting, min(number, len(fitting))):
                identity = f"mini_wide_{self.world.seed}_{len(tasks) + 1:03d}"
                columns = _COLUMNS[chosen[0].kind]
                shown = rng.sample(columns, rng.randint(2, len(columns)))
                relations = tuple(one for one in columns if one in shown)
                *names, last = map(column_name, relations)
                noun = " and the ".join(one.noun for one in chosen)
                question = rng.choice(_ASKED).format(n=noun, c=f"{', '.join(names)} and {last}")
                tasks.append(TableTask(identity, size, question, chosen, relations))
        return tasks

    def _early(self, whole: EntitySet, rng: random.Random) -> EntitySet | None:
        """A small set: those before a round year; None where there is no such year."""
        (year,) = (one for one in _COLUMNS[whole.kind] if one.value == "year")
        dated = [(int(value), one) for one in whole.members if (value := self.gold(one, year))]
        limits = [limit for limit in _YEARS if sum(at < limit for at, _ in dated) in ROWS["small"]]
        if not limits:
            return None
        limit = rng.choice(limits)
        noun = f"{whole.noun} {FORMS[whole.kind].verb} before {limit}"
        members = tuple(one for at, one in dated if at < limit)
        return EntitySet(whole.kind, noun, (*whole.rests_on, year.name), members)

    def _register(self, one: EntitySet, rng: random.Random) -> None:
        """Write the registers of a set, and note its members' own pages that say that they
        belong to it.
        """
        facts = self.world.facts
        knobs = self._knobs
        number = len(one.members)
        plain = [
            row
            for row in one.members
            if not any(facts[row.mention, name].detour for name in one.rests_on)
        ]
        for row in plain:
            page = self.library.states[row.mention, one.rests_on[0]]
            one.stated[page.passage_id] = Stated((row.mention,), page.sentence)
        unlisted = rng.sample(plain, min(len(plain), round((1 - knobs.listed) * number)))
        listed = [row.mention for row in one.members if row not in unlisted]
        strangers = [
            row.mention
            for row in self.world.entities
            if row.kind == one.kind and row not in one.members
        ]
        wrong = sum(rng.random() < knobs.stale for _ in range(math.ceil(number / MOST_NAMES)))
        names = rng.sample([*listed, *rng.sample(strangers, wrong)], len(listed) + wrong)
        parts = math.ceil(len(names) * (1 + knobs.twice) / MOST_NAMES)
        registers = [names[at::parts] for at in range(parts)]
        for name in rng.sample(listed, round(knobs.twice * len(listed))):
            shortest = min(
                (register for register in registers if name not in register), key=len, default=[]
            )
            if 0 < len(shortest) < MOST_NAMES:
                shortest.append(name)
        for at, register in enumerate(registers):
            sentence = f"This is register {_letter(at)} of the {one.noun}."
            text = (
                f"It names {' and '.join(filter(None, (', '.join(register[:-1]), register[-1])))}."
            )
            one.registers.append(
                self.library.add(f"Register {_letter(at)} of the {one.noun}", [sentence, text])
            )
            one.stated[one.registers[-1]] = Stated(tuple(register), sentence)

    def _write_beside(self, rng: random.Random) -> None:
        """Write second pages: old accounts, which state another value, and notes, which state
        the same.
        """
        rows = {row.mention: row for one in self.sets for row in one.members}
        facts = [
            self.world.facts.get((name, one.name))
            for name, row in rows.items()
            for one in _COLUMNS[row.kind]
        ]
        for fact in (fact for fact in facts if fact and not fact.detour):
            draw = rng.random()
            name = fact.subject.mention
            tell = rng.choice(fact.relation.tell)
            if draw < self._knobs.conflict:
                others = [
                    one.value for one in self.world.facts.values() if one.relation is fact.relation
                ]
                wrong = rng.choice([value for value in others if value != fact.value])
                cites = f"The corrected account is on the page {name}."
                self.library.add(f"Old account of {name}", [tell.format(x=name, y=wrong), cites])
            elif draw < self._knobs.conflict + self._knobs.twice:
                self.library.add(f"Notes on {name}", [tell.format(x=name, y=fact.value)])
