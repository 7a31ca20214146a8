"""Training data for tables. As delegator, the backbone learns to plan a table, to look for more
rows, and to stop. Executors learn to report the rows that pages list.
"""

import itertools
import json
import random
from collections import Counter
from collections.abc import Collection, Iterator

from executor_sft.miniworld.dialogues import (
    NOT_FOUND,
    STOP,
    Dialogue,
    DialogueTurn,
    DialogueWriter,
    RolePrompts,
    report_text,
)
from executor_sft.miniworld.relations import Relation
from executor_sft.miniworld.wide import EntitySet, Knobs, TableTask, WideWorld
from executor_sft.miniworld.world import Entity
from router.protocol import Passage, Report, prompts
from router.protocol.turns import MAX_POINTS
from router.table.table_delegation import MAX_HOLES, MAX_KEYS, opening
from router.trace.table import Condition

_LISTS = 0.7
"""Share of an executor's conversations in which the executor looks for rows of a table."""
_UNSTATED = 0.1
"""Share of an executor's conversations in which the executor looks for a cell that no page states.
In all remaining conversations, a page states the cell.
"""
_FAILING = 0.1
"""Probability that a search for rows finds nothing, although there are rows."""


def table_request(task: TableTask) -> str:
    """Return the request for a table as the delegator sees it."""
    return opening(task.question, task.schema)


def turn_text(task: TableTask, turn: int) -> str:
    """Return the text of the delegator's turn number `turn`, from 0, with questions for rows. Turn
    0 plans the table, so it also has a question for each column, and the conditions for rows.
    """
    asked = prompts.request(json.dumps([question for _, question in task.discoveries(turn)]))
    key, *names = task.columns
    wordings = []
    if turn == 0:
        wordings = [relation.ask[0].format(x=f"{{{key}}}") for relation in task.relations]
    asks = (
        f'<ask column="{name}">{text}</ask>' for name, text in zip(names, wordings, strict=False)
    )
    wheres = [_where(condition, names) for condition in task.conditions if turn == 0]
    return f"<search>{asked}</search>{''.join([*asks, *wheres])}"


def _where(condition: Condition, shown: Collection[str]) -> str:
    """Return the delegator's tag for a condition. If the condition's column is not in the table,
    the tag also has a question for it. `shown`: names of the table's columns.
    """
    column = condition.column
    ask = "" if column.name in shown else f' ask="{column.ask}"'
    operator = condition.operator.replace("_", " ")
    values = "|".join(condition.values)
    return f'<where column="{column.name}" is="{operator}"{ask}>{values}</where>'


class TableLessons:
    """Writes gold conversations about the tables of one training world."""

    def __init__(self, seed: int, system: RolePrompts) -> None:
        """Generate a world. `seed`: determines the world and the difficulty of its tables.
        `system`: system prompts.
        """
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
        self, lessons: Iterator[Dialogue], tables: Iterator[Dialogue], share: float
    ) -> Iterator[Dialogue]:
        """Yield conversations from `lessons` and `tables` in random order, endlessly. `share`:
        share of conversations from `tables`.
        """
        while True:
            yield next(tables if self._rng.random() < share else lessons)

    def lead(self) -> Iterator[Dialogue]:
        """Yield the delegator's conversations about tables, endlessly. Each begins with a plan. The
        delegator then looks for more rows until a turn finds no new ones, and stops.
        """
        while True:
            task = self._rng.choice(self._wide.tasks)
            turns = [
                DialogueTurn("system", self._system.delegation),
                DialogueTurn("user", table_request(task)),
            ]
            near = {
                group.noun: self._rng.sample(list(group.stated), len(group.stated) // 10)
                for group in task.sets
            }
            seen: Counter[str] = Counter()
            # Often show fewer names than a gateway does, to keep conversations short
            most_keys = self._rng.choice((5, 10, MAX_KEYS))
            for turn in itertools.count():
                turns.append(DialogueTurn("delegate", turn_text(task, turn)))
                before = len(seen)
                for group, question in task.discoveries(turn):
                    if self._rng.random() > _FAILING:
                        pages = self._rng.sample(near[group.noun], min(2, len(near[group.noun])))
                        for stated in group.named_in(question, [*pages, *group.registers]):
                            seen.update(stated.names)
                turns.append(DialogueTurn("user", self._status(task, seen, most_keys)))
                if len(seen) == before:
                    break
            yield [*turns, DialogueTurn("stop", STOP)]

    def _status(self, task: TableTask, seen: Counter[str], most_keys: int) -> str:
        """Return the message with the status of a table, as the delegator sees it. Cells without a
        value are drawn at random.

        `seen`: how often each row was reported. `most_keys`: max names of rows to show.
        """
        cells = itertools.product(seen, task.columns[1:])
        holes = [cell for cell in cells if self._rng.random() < 0.1]
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
            counts, list(seen)[:most_keys], map(": ".join, holes[:MAX_HOLES])
        )

    def executor(self, two_searches: bool = False, passages: int = 3) -> Iterator[Dialogue]:
        """Yield an executor's conversations about tables, endlessly. Some look for rows, and report
        the names in registers and on members' own pages. Others look for a cell; in some cases, no
        page states its value. The parameters are those of `DialogueWriter.executor`.
        """
        fills = self._writer.executor(two_searches, passages)
        while True:
            draw = self._rng.random()
            if draw < _LISTS:
                group = self._rng.choice(self._wide.sets)
                turn = self._rng.randint(0, len(group.registers) // 2)
                question = self._rng.choice(group.discoveries(turn, 2))
                yield self._listing(group, question, passages)
            elif draw < _LISTS + _UNSTATED:
                yield self._missing(*self._rng.choice(self._wide.unstated), passages)
            else:
                yield next(fills)

    def _listing(self, group: EntitySet, question: str, passages: int) -> Dialogue:
        """Return a conversation that looks for members of a set, and reports one name per line."""
        pages = self._retrieved(group, question, passages)
        statements = group.named_in(question, [page.id for page in pages])
        report = _nothing_in(pages[0])
        if statements:
            names = itertools.chain.from_iterable(stated.names for stated in statements)
            points = tuple(stated.sentence for stated in statements[:MAX_POINTS])
            report = Report("\n".join(names), points)
        return self._searched(question, pages, report)

    def _missing(self, row: Entity, relation: Relation, passages: int) -> Dialogue:
        """Return a conversation about a cell that no page states, with the report "not found"."""
        page = self._wide.library.by_id[self._wide.library.of_entity[row.mention][0]]
        question = self._rng.choice(relation.ask).format(x=row.mention)
        pages = self._writer.retrieved(page, row.kind, row, passages - 1)
        return self._searched(question, pages, _nothing_in(page))

    def _searched(self, question: str, pages: list[Passage], report: Report) -> Dialogue:
        """Return a conversation with one search, which finds `pages`, and this report."""
        return [
            DialogueTurn("system", self._system.execution),
            DialogueTurn("user", prompts.request(question)),
            DialogueTurn("search", f"<search>{prompts.request(question)}</search>"),
            DialogueTurn("user", prompts.documents(pages, self._rng.random() < 0.3)),
            DialogueTurn("report", report_text(report)),
        ]

    def _retrieved(self, group: EntitySet, question: str, passages: int) -> list[Passage]:
        """Return the passages that a search for members of a set finds. Usually, one of them is the
        register that the question asks for. The others are registers and members' own pages, of
        this set and of other sets of the same kind.
        """
        library = self._wide.library
        others = list[str]()
        for other in self._wide.sets:
            if other.kind == group.kind:
                others += [*other.registers, *other.stated]
        ids = dict[str, None]()
        if self._rng.random() > _FAILING:
            ids = dict.fromkeys(group.register_in(question) or ())
        while len(ids) < passages:
            sources = (group.registers, list(group.stated), others)
            ids[self._rng.choice(self._rng.choice(sources))] = None
        return [library.by_id[identity] for identity in self._rng.sample(list(ids), passages)]


def _nothing_in(page: Passage) -> Report:
    """Return the report "not found", with the first sentence of a passage as evidence."""
    return Report(NOT_FOUND, (f"{page.text.split('. ')[0].rstrip('.')}.",))
