"""The filling of a table: discoveries find rows, a program asks for their cells, until nothing is
left to ask for.

There is no barrier: a row is filled while other rows are looked for. No model but executors sees a
passage, and none writes the table, which is the fold of their reports.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from router.background import in_worker, task_group
from router.calls import Role
from router.errors import BadRequest, BudgetExhausted, UpstreamError
from router.protocol import NO_EVIDENCE
from router.protocol.decision import Dispatch
from router.protocol.sub_queries import normal_question
from router.protocol.tags import Malformed
from router.search import Delegator, RunContext
from router.search.delegator import told
from router.search.dispatch import Dispatching
from router.search.executor import EXECUTOR, Executes
from router.table import table_delegation
from router.table.assembly import Assembly, Table, assemble
from router.table.cell_value import is_mistyped, row_key
from router.table.schema import checked_rows, checked_schema, question
from router.table.table_text import parse_table_turn
from router.trace import Conversation, Execution
from router.trace.table import Ask, AskKind, Column, RowKey, Schema, TableOutcome, TableTopologyName
from router.trace.values import (
    Planned,
    Reported,
    RoundStarted,
    RowChanged,
    SubQueryDispatched,
    TableRun,
)

_OVER: tuple[TableOutcome, ...] = ("tasks_exhausted", "time_exhausted", "budget_exhausted")
"""Outcomes with which nothing is begun any more."""
EXECUTOR_OF_TABLES = dataclasses.replace(EXECUTOR, parse=parse_table_turn)
_LARGE = 4_000
"""Characters of a report with its passages that are read within a few hundredths of a second."""
_Count = Annotated[int, Meta(ge=1, le=10**6)]


class TableLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of a table's run."""

    width: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Executors at a time."""
    max_rounds: _Count = 10
    """Turns of the delegator."""
    discoveries: _Count = 20
    """Questions of one turn that look for rows."""
    max_tasks: _Count = 3000
    """Executors of a run."""
    asks_per_cell: Annotated[int, Meta(ge=1, le=10)] = 2
    """Executors that look for a cell; as many more may fail."""
    cells_per_ask: Annotated[int, Meta(ge=0, le=64)] = 0
    """Cells of a row that one executor is asked for; 0 for all that are wanted."""
    max_rows: _Count = 2000
    timeout_s: Annotated[float, Meta(gt=0, le=86_400)] = 1800.0
    """The longest that a request may take, whatever the client's deadline, instead of
    server.timeout_s.
    """


class TableRequest(msgspec.Struct, frozen=True):
    """A table that is wanted."""

    question: str
    """The rows that it is to have, in words."""
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...] = ()
    """Rows that are known, a value for each column; empty ones are asked for, the others kept."""
    closed: bool = False
    """Whether there are no rows besides these."""
    max_rows: int = 0
    """0 for as many as are allowed."""
    topology: TableTopologyName = "wide"

    def checked(self, limits: TableLimits) -> "TableRequest":
        """The same with values as they are used. Raises `BadRequest`."""
        most = min(self.max_rows or limits.max_rows, limits.max_rows)
        if self.max_rows < 0:
            raise BadRequest(
                f"max_rows: {self.max_rows}; give a number of rows, or 0 for all that are allowed."
            )
        if len(self.rows) > most:
            raise BadRequest(
                f"rows: {len(self.rows)} are given, and the table may have {most} "
                "(max_rows); send fewer."
            )
        if self.closed and not self.rows:
            raise BadRequest(
                "closed: there are to be no rows but those of `rows`, which is empty; give some."
            )
        schema = checked_schema(self.columns)
        return replace(
            self, columns=schema.columns, rows=checked_rows(schema, self.rows), max_rows=most
        )


def table_of(run: TableRun) -> Table:
    """The table that a run has come to. One that a model wrote is folded alone, and checked by
    all that was found.
    """
    reports = list(zip(run.asks, run.executions, strict=True))
    if run.topology != "wide":
        searches = tuple(
            search for execution in run.executions for search in execution.every_search
        )
        reports = [(ask, replace(written, searches=searches)) for ask, written in reports[-1:]]
    return assemble(
        run.schema, run.given, reports, asks_per_cell=run.asks_per_cell, max_rows=run.max_rows
    )


def occasions(reports: Iterable[tuple[Ask, Execution]]) -> set[Ask]:
    """The discoveries that looked for rows by themselves, of these reports."""
    return {
        ask
        for ask, execution in reports
        if ask.kind == "discover" and execution.looked and not execution.shared_from
    }


def _size(execution: Execution) -> int:
    """The characters of a report with its passages; a row costs as much as a hundred."""
    shown = sum(len(passage.text) for search in execution.every_search for passage in search.shown)
    return shown + 100 * execution.report.answer.count("\n")


class Filling(Protocol):
    """A way to fill tables."""

    async def run(self, request: TableRequest, context: RunContext) -> TableRun:
        """Fill the table of a checked request. Raises `UpstreamError`."""


@dataclasses.dataclass(frozen=True, slots=True)
class TableTopology:
    """A way to fill a table, with the roles that work on it."""

    filling: Filling
    roles: Mapping[Any, Role]


class WideSearch:
    """Fills tables by a delegator that plans and executors that look; any number of tables at
    once.
    """

    def __init__(
        self,
        delegator: Delegator,
        executor: Executes,
        limits: TableLimits,
        *,
        early_dispatch: bool = True,
        managers: Sequence[str] = (),
    ) -> None:
        """`early_dispatch`: as for `FactorizedSearch`. `managers`: the names of those that the
        executor is made of; a cell that one has not settled goes to the next one.
        """
        self.delegator = delegator
        self.executor = executor
        self.limits = limits
        self.early_dispatch = early_dispatch
        self.managers = managers

    async def run(self, request: TableRequest, context: RunContext) -> TableRun:
        """Fill the table of a checked request. What ends the work early, be it time, a budget or a
        limit, ends in the table that there is; a failing executor costs its cells.
        `context.failures` tells of both. Raises `UpstreamError` where the delegator fails before
        anything is known, and `StoreFailed`.
        """
        work = await in_worker(_Filling, self, request, context)
        try:
            async with task_group() as group:
                await work.fill(group)
        finally:
            context.ledger.decide(0)
            context.draft.result = work.found
        return work.found


class _Filling:
    """One table on its way."""

    def __init__(self, search: WideSearch, request: TableRequest, context: RunContext) -> None:
        self._search = search
        self._request = request
        self._limits = search.limits
        self._context = dataclasses.replace(context, tabular=True)
        self._group: asyncio.TaskGroup
        self._schema = Schema(request.columns)
        self._assembly: Assembly
        self._delegation = Conversation(())
        self._outcome: TableOutcome = "filled"
        self._round = 0
        self._discoveries: dict[tuple[str, str], str] = {}
        """Questions that look for rows, by their normal forms and managers, in the order in
        which they were written.
        """
        self._not_dispatched: tuple[str, ...] = ()
        self._listed: dict[int, dict[RowKey, None]] = {}
        """The keys that each discovery has named, by its number."""
        self._names = {row_key(self._schema, row): self._named(row) for row in request.rows}
        """The values of keys, as they are shown."""
        self._numbers = context.ledger.asks_before()
        self._asks = sorted(self._numbers, key=self._numbers.__getitem__)
        self._executions: dict[int, Execution] = {}
        self._queue: list[tuple[float, int, tuple[Any, ...], Ask]] = []
        self._at_work: dict[asyncio.Task[Execution], int] = {}
        self._asked = Counter[tuple[RowKey, str]]()
        self._looked = Counter[tuple[RowKey, str]]()
        """For each cell, the last attempt, and the number of executors that looked for it."""
        self._filled: set[RowKey] = set()
        """Keys whose cells have been asked for."""

    @property
    def found(self) -> TableRun:
        """All that has come of it so far."""
        cut = Execution("", NO_EVIDENCE, "timed_out", (), Conversation(()))
        return TableRun(
            self._schema,
            self._request.rows,
            tuple(self._asks),
            tuple(self._executions.get(number, cut) for number in range(len(self._asks))),
            self._delegation,
            self._outcome,
            asks_per_cell=self._limits.asks_per_cell,
            max_rows=self._request.max_rows,
        )

    async def fill(self, group: asyncio.TaskGroup) -> None:
        """Do all there is to do. Executors work in `group`."""
        self._group = group
        closed = self._request.closed
        opening = table_delegation.opening(self._request.question, self._schema)
        if self._request.rows:
            await in_worker(self._plan, "")
            opening += await in_worker(self._status)
        self._delegation = Conversation(self._search.delegator.role.opening(opening))
        await in_worker(self._plan, "")  # whose rows nobody was told of yet
        unworded = any(not column.key and not column.ask for column in self._schema.columns)
        rounds = int(unworded) if closed else self._limits.max_rounds
        if not rounds:
            await self._work_off()
        for self._round in range(1, rounds + 1):
            more = await self._turn()
            await self._work_off()
            if not more or self._outcome != "filled":
                return
        if rounds and not closed:
            self._outcome = "rounds_exhausted"

    def _plan(self, text: str) -> None:
        """Take the delegator's wordings."""
        self._schema = table_delegation.planned(Schema(self._request.columns), text)
        given = self._request.rows
        most = self._limits.asks_per_cell
        self._assembly = Assembly(
            self._schema, given, asks_per_cell=most, max_rows=self._request.max_rows
        )

    def _status(self) -> str:
        """The table as the delegator is shown it."""
        reports = (
            (self._asks[number], execution) for number, execution in self._executions.items()
        )
        return table_delegation.status(
            self._assembly.table(), occasions(reports), self._not_dispatched
        )

    async def _turn(self) -> bool:
        """Let the delegator write its next turn; True where it looks for more rows."""
        search = self._search
        context = self._context
        first = self._round == 1
        context.on_event(RoundStarted(self._round))
        if not first:
            self._delegation = told(self._delegation, await in_worker(self._status))
        most = self._limits.width
        closed = self._request.closed
        early = Dispatching(
            search.executor, self._round, len(self._asks), context, self._group, most=most
        )
        begins = (
            search.early_dispatch
            and not context.ledger.budgeted
            and len(self._schema.keys) == 1
            and not closed
        )
        questions: Sequence[tuple[str, str]] = ()
        try:
            async with asyncio.timeout_at(context.search_deadline):
                decision, self._delegation = await search.delegator.decide(
                    self._delegation, context.ledger, early if begins else None
                )
            if isinstance(decision, Dispatch) and not closed:
                managers = decision.managers or [""] * len(decision.sub_queries)
                questions = list(zip(decision.sub_queries, managers, strict=True))
                self._not_dispatched = decision.over_limit
            elif first and isinstance(decision, Malformed) and not closed:
                self._outcome = "no_search"
                context.failures[None] = search.delegator.role.malformed()
            elif first and not self._request.rows:
                self._outcome = "no_search"
        except TimeoutError:
            self._outcome = "time_exhausted"
        except BudgetExhausted:
            self._outcome = "budget_exhausted"
        except UpstreamError as error:
            if first and not self._request.rows:
                raise
            self._outcome = "delegation_failed"
            context.failures[None] = error
        if first:
            await in_worker(
                self._plan, self._delegation.outputs[-1].text if self._delegation.outputs else ""
            )
            context.on_event(Planned(self._schema.columns))
        return await self._discover(questions, early)

    async def _discover(self, questions: Iterable[tuple[str, str]], early: Dispatching) -> bool:
        """Go on with what was begun early of a turn's questions, each with its manager, and put the
        others into the queue; True where there are new ones.
        """
        new = dict[tuple[str, str], str]()
        asks = list[Ask]()
        names = self._search.managers
        for text, manager in questions:
            asked = normal_question(text), manager if manager in names else "".join(names[:1])
            if asked not in self._discoveries | new:
                new[asked] = text
                asks.append(
                    Ask(
                        "discover", (), discovery=len(self._discoveries) + len(new), manager=manager
                    )
                )
        self._discoveries |= new
        unnamed = next((at for at, ask in enumerate(asks) if ask.manager), len(asks))
        begun = await early.keep([*new.values()][:unnamed])
        for ask, task in zip(asks, begun, strict=False):
            self._at_work[task] = self._dispatched(ask)
        early.tell()
        for ask in asks[len(begun) :]:
            self._put(ask)
        return bool(new)

    async def _work_off(self) -> None:
        """Work until the queue is empty and nobody is at work, and there is nothing to settle."""
        await self._look()
        while True:
            await self._begin()
            if not self._at_work:
                await self._settle()
                if not self._queue:
                    return
                continue
            done, _ = await asyncio.wait(self._at_work, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                number = self._at_work.pop(task)
                execution = task.result()
                if _size(execution) > _LARGE:
                    await in_worker(self._take, number, execution)
                else:
                    self._take(number, execution)
                await self._look()

    async def _begin(self) -> None:
        """Let executors begin while slots are free, those who finish rows first."""
        while self._queue and len(self._at_work) < self._limits.width:
            await asyncio.sleep(0)
            if asyncio.get_running_loop().time() >= self._context.search_deadline:
                self._end("time_exhausted")
            elif len(self._executions) + len(self._at_work) >= self._limits.max_tasks:
                self._end("tasks_exhausted")
            else:
                *_, ask = heappop(self._queue)
                number = self._dispatched(ask)
                self._at_work[self._group.create_task(self._work(number, ask))] = number

    async def _work(self, number: int, ask: Ask) -> Execution:
        context = dataclasses.replace(self._context, manager=ask.manager)
        if ask.kind == "settle":  # a second opinion, and not the report that is kept
            context = dataclasses.replace(context, sharing="nobody")
        execution = await self._search.executor.run(self._text(ask), number, context)
        context.on_event(Reported(number, execution))
        return execution

    def _dispatched(self, ask: Ask) -> int:
        """The number of the ask's sub-query, which is being begun: where a run is gone on with,
        the one that it had.
        """
        if ask not in self._numbers:
            self._numbers[ask] = len(self._asks)
            self._asks.append(ask)
        number = self._numbers[ask]
        self._context.ledger.asked(number, ask)
        self._context.on_event(
            SubQueryDispatched(number, self._round, self._text(ask), ask, ask.manager)
        )
        return number

    def _text(self, ask: Ask) -> str:
        """The sub-query of an ask."""
        if ask.row is not None:
            return question(
                self._schema, self._names[ask.row], ask.columns, anew=ask.kind == "settle"
            )
        text = [*self._discoveries.values()][ask.discovery - 1]
        if len(self._schema.keys) > 1:
            text += (
                "\nIn a table with the columns "
                f"{', '.join(column.name for column in self._schema.keys)}."
            )
        if known := self._listed.get(ask.discovery):
            text += f"\nOther than: {'; '.join(', '.join(self._names[key]) for key in known)}."
        return text

    def _take(self, number: int, execution: Execution) -> None:
        """Take a report, and ask again for what it does not hold."""
        ask = self._asks[number]
        self._executions[number] = execution
        reading = self._assembly.add(ask, execution)
        limits = self._limits
        if execution.outcome == "budget_exhausted":
            self._end("budget_exhausted")
        elif execution.outcome == "timed_out":
            self._end("time_exhausted")
        if ask.row is not None:
            self._looked.update((ask.row, name) for name in ask.columns if execution.looked)
            claims = zip(self._schema.columns, reading.found[0].claims, strict=True)
            lacking = (
                column.name
                for column, claim in claims
                if not claim or is_mistyped(column, claim.canonical)
            )
            self._ask(
                ask.row,
                [name for name in lacking if name in ask.columns],
                execution.report.escalate_to,
            )
            return
        listed = self._listed.setdefault(ask.discovery, {})
        new = {each.key: None for each in reading.found if each.key not in listed}
        listed |= new
        for each in reading.found:
            self._names.setdefault(
                each.key, self._named([claim.value if claim else "" for claim in each.claims])
            )
        most = (
            limits.max_rounds
            if reading.lost and new
            else 0
            if execution.looked
            else 2 * limits.asks_per_cell
        )
        if ask.attempt < most:
            manager = (
                self._manager(ask.attempt + 1, execution.report.escalate_to)
                if execution.failed
                else ask.manager
            )
            self._put(replace(ask, attempt=ask.attempt + 1, manager=manager))

    def _named(self, values: Sequence[str]) -> tuple[str, ...]:
        """Of a row's values, those of its key."""
        return tuple(
            value for column, value in zip(self._schema.columns, values, strict=True) if column.key
        )

    def _manager(self, attempt: int, wanted: str = "") -> str:
        """The manager of an attempt: the one that was named, if there is one of that name, or
        else each in its turn.
        """
        managers = self._search.managers
        return (
            wanted
            if wanted in managers
            else managers[(attempt - 1) % len(managers)]
            if managers
            else ""
        )

    def _ask(self, key: RowKey, columns: Iterable[str], wanted: str = "") -> None:
        """Ask for cells, as far as they may be asked for once more. `wanted`: the manager that
        the last one named.
        """
        most = self._limits.asks_per_cell
        holes = [
            name
            for name in columns
            if self._looked[key, name] < most and self._asked[key, name] < 2 * most
        ]
        attempt = 1 + max((self._asked[key, name] for name in holes), default=0)
        manager = self._manager(attempt, wanted)
        kind: AskKind = "settle" if any(self._looked[key, name] for name in holes) else "fill"
        self._asked.update({(key, name): attempt - self._asked[key, name] for name in holes})
        size = self._limits.cells_per_ask or len(self._schema.columns)
        for start in range(0, len(holes), size):
            self._put(
                Ask(kind, tuple(holes[start : start + size]), key, attempt=attempt, manager=manager)
            )

    def _put(self, ask: Ask) -> None:
        """Put an ask into the queue, unless nothing may be begun any more. Where a run is gone on
        with, what it had begun comes first, in its order.
        """
        if self._outcome not in _OVER and (
            ask.row is not None or self._outcome != "rows_exhausted"
        ):
            place = ask.rank
            heappush(self._queue, (self._numbers.get(ask, inf), -place[0], place, ask))

    def _end(self, outcome: TableOutcome) -> None:
        """Begin nothing any more; with `rows_exhausted`, no discovery."""
        self._outcome = outcome
        self._queue = (
            []
            if outcome in _OVER
            else [waiting for waiting in self._queue if waiting[-1].row is not None]
        )
        heapify(self._queue)

    async def _look(self) -> None:
        """Tell of the rows that have changed, and ask for the cells of new ones."""
        if self._assembly.overflows and self._outcome not in (*_OVER, "rows_exhausted"):
            self._end("rows_exhausted")
        for row in self._assembly.changed():
            await asyncio.sleep(0)
            self._context.on_event(RowChanged(row.key, row))
            cells = zip(self._schema.columns, row.cells, strict=True)
            wanted = [
                column.name for column, cell in cells if not column.key and cell.state != "given"
            ]
            for key in (row.key, *row.aliases):
                if key not in self._filled:
                    self._filled.add(key)
                    self._ask(key, wanted)

    async def _settle(self) -> None:
        """Ask again for cells in conflict. Only now, when all reports are there, as those of
        another key may have come to a row.
        """
        for key, columns in await in_worker(self._conflicts):
            await asyncio.sleep(0)
            self._ask(key, columns)

    def _conflicts(self) -> list[tuple[RowKey, list[str]]]:
        """The keys of rows, with their columns that are in conflict."""
        columns = [column.name for column in self._schema.columns]
        found = list[tuple[RowKey, list[str]]]()
        for row in self._assembly.table().rows:
            cells = zip(columns, row.cells, strict=True)
            if conflicts := [name for name, cell in cells if cell.state == "conflict"]:
                found.append((row.key, conflicts))
        return found
