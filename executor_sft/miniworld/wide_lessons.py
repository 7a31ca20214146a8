"""Lessons in tables: the lead's turns, which plan a table and then ask on or stop, and the
executor's lists.
"""

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator

from executor_sft.miniworld.dialogues import (
    NOT_FOUND,
    STOP,
    Dialogue,
    DialogueWriter,
    RolePrompts,
    Turn,
    report_text,
)
from executor_sft.miniworld.relations import Relation
from executor_sft.miniworld.wide import EntitySet, Knobs, TableTask, WideWorld
from executor_sft.miniworld.world import Entity
from router.protocol import Passage, Report, prompts
from router.protocol.turns import MOST_POINTS
from router.table.table_delegation import MOST_HOLES, MOST_KEYS, opening

_LISTS = 0.7
_UNSTATED = 0.1
"""Shares of an executor's lessons; the rest are fills."""
_FAILING = 0.1
"""Of discoveries, those that find nothing though there is something."""


def table_request(task: TableTask) -> str:
    """The lead's view of a request."""
    return opening(task.question, task.schema)


def turn_text(task: TableTask, turn: int) -> str:
    """The lead's dispatch of a turn; in the first one, from 0, it also words a question for
    each column.
    """
    asked = prompts.request(json.dumps([question for _, question in task.discoveries(turn)]))
    key, *names = task.columns
    wordings = [one.ask[0].format(x=f"{{{key}}}") for one in task.relations] if turn == 0 else []
    asks = (
        f'<ask column="{name}">{text}</ask>' for name, text in zip(names, wordings, strict=False)
    )
    return f"<search>{asked}</search>{''.join(asks)}"


class TableLessons:
    """Writes gold conversations about the tables of one training world, whose knobs differ from
    seed to seed.
    """

    def __init__(self, seed: int, system: RolePrompts) -> None:
        self._system = system
        self._rng = random.Random(f"{seed}/lessons in tables")
        shares = {name: self._rng.uniform(0, 0.3) for name in ("stale", "twice", "conflict")}
        knobs = Knobs(
            hubs=self._rng.choice((5, 5, 8, 20)),
            listed=self._rng.uniform(0.7, 1),
            unstated=0.1,
            **shares,
        )
        self._wide = WideWorld(seed, "train", knobs)
        self._writer = DialogueWriter(self._wide.world, system, self._wide.library)

    def among(
        self, most: Iterator[Dialogue], tables: Iterator[Dialogue], share: float
    ) -> Iterator[Dialogue]:
        """Other lessons with such a share of these among them, endlessly."""
        while True:
            yield next(tables if self._rng.random() < share else most)

    def lead(self) -> Iterator[Dialogue]:
        """Plans, and what follows from the table's status: asking on while a turn brings rows,
        endlessly.
        """
        while True:
            task = self._rng.choice(self._wide.tasks)
            turns = [Turn("system", self._system.delegation), Turn("user", table_request(task))]
            near = {
                one.noun: self._rng.sample(list(one.stated), len(one.stated) // 10)
                for one in task.sets
            }
            # So that conversations stay short
            seen = Counter[str]()
            most = self._rng.choice((5, 10, MOST_KEYS))
            for turn in itertools.count():
                turns.append(Turn("delegate", turn_text(task, turn)))
                before = len(seen)
                for one, question in task.discoveries(turn):
                    if self._rng.random() > _FAILING:
                        pages = self._rng.sample(near[one.noun], min(2, len(near[one.noun])))
                        found = one.named_in(question, [*pages, *one.registers])
                        seen.update(name for stated in found for name in stated.names)
                turns.append(Turn("user", self._status(task, seen, most)))
                if len(seen) == before:
                    break
            yield [*turns, Turn("stop", STOP)]

    def _status(self, task: TableTask, seen: Counter[str], most_keys: int) -> str:
        """The lead's view of a table with these rows, some of whose cells are not known yet."""
        holes = [
            (key, name) for key in seen for name in task.columns[1:] if self._rng.random() < 0.1
        ]
        once, twice = (sum(times == number for times in seen.values()) for number in (1, 2))
        counts = {
            "rows": len(seen),
            "complete": len(seen) - len(dict(holes)),
            "missing": len(holes),
        }
        counts |= {"conflicts": self._rng.choice((0, 0, 0, 1, 2)), "seen_once": once}
        if 2 * once <= seen.total():
            counts["estimate"] = len(seen) + once * (once - 1) // (2 * (twice + 1))
        return prompts.table_status(
            counts, list(seen)[:most_keys], map(": ".join, holes[:MOST_HOLES])
        )

    def executor(self, two_searches: bool = False, passages: int = 3) -> Iterator[Dialogue]:
        """Lists of what a set's registers and own pages name, and fills, also of cells that no page
        states, endlessly; see `DialogueWriter.executor`.
        """
        fills = self._writer.executor(two_searches, passages)
        while True:
            draw = self._rng.random()
            if draw < _LISTS:
                one = self._rng.choice(self._wide.sets)
                asked = one.discoveries(self._rng.randint(0, len(one.registers) // 2), 2)
                yield self._listing(one, self._rng.choice(asked), passages)
            elif draw < _LISTS + _UNSTATED:
                yield self._missing(*self._rng.choice(self._wide.unstated), passages)
            else:
                yield next(fills)

    def _listing(self, one: EntitySet, question: str, passages: int) -> Dialogue:
        """A search for members of a set, and the names that it brings, one a line."""
        found = self._retrieved(one, question, passages)
        stated = one.named_in(question, [page.id for page in found])
        names = [name for each in stated for name in each.names]
        points = tuple(each.sentence for each in stated[:MOST_POINTS])
        return self._searched(
            question, found, Report("\n".join(names), points) if names else _nothing_in(found[0])
        )

    def _missing(self, row: Entity, relation: Relation, passages: int) -> Dialogue:
        """A fill of a cell that no page states."""
        page = self._wide.library.by_id[self._wide.library.of_entity[row.mention][0]]
        question = self._rng.choice(relation.ask).format(x=row.mention)
        return self._searched(
            question, self._writer.retrieved(page, row.kind, row, passages - 1), _nothing_in(page)
        )

    def _searched(self, question: str, found: list[Passage], report: Report) -> Dialogue:
        return [
            Turn("system", self._system.execution),
            Turn("user", prompts.request(question)),
            Turn("search", f"<search>{prompts.request(question)}</search>"),
            Turn("user", prompts.documents(found, self._rng.random() < 0.3)),
            Turn("report", report_text(report)),
        ]

    def _retrieved(self, one: EntitySet, question: str, passages: int) -> list[Passage]:
        """Passages such as a search for members finds: mostly the register that is asked for,
        others of this set and of sets of its kind, and pages of members and of others.
        """
        library = self._wide.library
        kin = [other for other in self._wide.sets if other.kind == one.kind]
        others = [page for other in kin for page in (*other.registers, *other.stated)]
        found = dict.fromkeys(
            (one.register_in(question) or ()) if self._rng.random() > _FAILING else ()
        )
        while len(found) < passages:
            found[self._rng.choice(self._rng.choice((one.registers, list(one.stated), others)))] = (
                None
            )
        return [library.by_id[identity] for identity in self._rng.sample(list(found), passages)]


def _nothing_in(page: Passage) -> Report:
    """A report that nothing was found, with a passage's first sentence."""
    return Report(NOT_FOUND, (f"{page.text.split('. ')[0].rstrip('.')}.",))
