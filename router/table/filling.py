"""The loop that fills a table. Each piece of work for an executor is an ask: a discovery finds
rows, a fill looks up cells of a row, and a settling gets a second opinion on cells.

1. The delegator writes discoveries (questions that find rows), and a question template for each
   column that has none. It never sees the table, only its status: counts, and the names of some
   rows and missing cells.
2. Asks wait in one queue, from which up to `width` executors work at a time. There is one
   exception: executors may begin discoveries while the delegator is still writing them, and these
   are not queued. Asks about cells have priority over discoveries, so known rows are completed
   while further rows are searched for.
3. Each report is added to the table (`Assembly`). A discovery gives only the key columns of rows.
   For a new row, fills of its cells are queued. Cells that conditions are about come first. A row
   that contradicts a condition is not filled.

   - A cell is queued again if its report has no value, if no passage behind the report supports the
     value, if the value has the wrong type, or if it contradicts a condition and no sentence that
     names the row states it.
   - A cell is no longer queued when `asks_per_cell` executors have looked for it. Executors that
     failed do not count, but at most 2 × `asks_per_cell` executors are tried in all.
   - After one executor has looked for a cell, further asks for it are settlings, which word the
     question differently.
4. Once the queue is empty and no executor works, settlings are queued for cells with conflicting
   values, within the same limits.
5. When nothing is left to do, the delegator is shown the new status. It writes more discoveries, or
   stops.

Only executors see passages, and no model writes the table. When a deadline, a budget or the limit
on tasks is reached, the queue is emptied. Executors that are working finish, and the run ends with
the rows and cells found so far. When the limit on rows is reached, only discoveries are dropped.
"""

import asyncio
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import chain
from math import inf
from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import replace

from router.background import in_worker, loop_time, task_group
from router.errors import BadRequest, BudgetExhausted, UpstreamError
from router.frozen import Frozen
from router.protocol import NO_EVIDENCE, Passage
from router.protocol.decision import Dispatch
from router.protocol.sub_queries import normal_question
from router.protocol.tags import Malformed, one_line
from router.search import Delegator, RunContext
from router.search.context import Reporting
from router.search.dispatch import Dispatching
from router.search.executor import EXECUTOR, Executes
from router.search.indexes import Indexes
from router.search.retrieval import BOOKING, Booking
from router.table import table_delegation
from router.table.assembly import Assembly, ReportRows, Table, assemble
from router.table.cell_value import is_mistyped, row_key
from router.table.conditions import is_doubtful, with_conditions
from router.table.left_out import MAX_LEFT_OUT, left_out, named_with_values, values_of
from router.table.schema import checked_rows, checked_schema, question
from router.table.table_text import parse_table_turn
from router.trace import Conversation, Execution
from router.trace.table import Ask, AskKind, Column, Condition, RowKey, Schema, TableOutcome
from router.trace.values import (
    Planned,
    Reported,
    RoundStarted,
    RowChanged,
    SubQueryDispatched,
    TableRun,
)

_OVER: tuple[TableOutcome, ...] = ("tasks_exhausted", "time_exhausted", "budget_exhausted")
"""Outcomes after which no further ask is started."""
EXECUTOR_OF_TABLES = replace(EXECUTOR, parse=parse_table_turn)
"""Form of executor turns (how the turns are parsed and answered) if reports may contain tables."""
TABLE_FORM = "table"
"""Name of the form `EXECUTOR_OF_TABLES`: its key in the argument `forms` of `Executor`, and the
value of `Reporting.form`.
"""


TABLE_REPORTING = Reporting(
    TABLE_FORM,
    # A report without evidence counts, because each value is checked against the passages
    lambda execution: bool(execution.report.evidence) or not execution.failed,
    max_joined_chars=1_000_000,
    escalates=False,
)
"""How reports are written for a table. Executors report rows and cells, and managers join all lines
of their workers' reports. If a manager's report names another manager that should continue, the
first manager does not pass the sub-query on. Instead, this module queues an ask for the other
manager.
"""
_LARGE = 4_000
"""A report whose size (`_size`) is at most this number of characters is read on the event loop, in
less than 50 ms. Larger reports are read in a thread.
"""
_MAX_SEARCHED = 16
"""Max searches whose query is only the value of a condition."""
_ROW_CHARS = 100
"""Reading one row takes about as much time as reading this number of characters."""
_Count = Annotated[int, Meta(ge=1, le=10**6)]


class TableLimits(Frozen, forbid_unknown_fields=True, kw_only=True):
    """Limits of a run that fills a table."""

    width: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Max executors that work on a table at a time."""
    max_rounds: _Count = 10
    """Max turns of the delegator."""
    discoveries: _Count = 20
    """Max questions for rows, such as "Which cities are in Vorland?", in one turn of the delegator.
    """
    max_tasks: _Count = 3000
    """Max tasks of a run. A task is one piece of work for an executor: to find rows, or to look up
    cells of a row.
    """
    asks_per_cell: Annotated[int, Meta(ge=1, le=10)] = 2
    """Max executors that look for the value of one cell. If executors fail, up to twice as many are
    tried in all.
    """
    cells_per_ask: Annotated[int, Meta(ge=0, le=64)] = 0
    """Max cells of a row that one executor looks up; 0 for all wanted cells of the row."""
    max_rows: _Count = 2000
    """Max rows of a table."""
    discovery_passages: Annotated[int, Meta(ge=0, le=90)] = 50
    """Number of passages of each search that the gateway itself makes for a value of a condition,
    such as "Vorland"; 0 for no such searches. In the passages, the gateway looks for names of
    further rows, which `ask_left_out` then checks.
    """
    ask_left_out: bool = True
    """Whether names that no executor has reported as a row are checked, too: names in lists next to
    names of the table's rows, and names in passages that contain the value of a condition. One
    executor checks each name, at most 100 names in all. Names that meet all conditions become rows.
    In a table without conditions, names in lists are counted but not checked.
    """
    verify_lists: bool = False
    """Whether a second executor checks each list of rows that an executor has reported: it gets the
    names in the list, and searches for more names. The check is repeated until it finds nothing
    new. Each check costs the work of one executor.
    """
    timeout_s: Annotated[float, Meta(gt=0, le=86_400)] = 1800.0
    """Max duration of a request for a table, in seconds. It applies instead of server.timeout_s."""


class TableRequest(Frozen):
    """A client's request for a table."""

    question: str
    """Description of the wanted rows."""
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...] = ()
    """Known rows, with a value for each column. Empty values are looked up, other values are kept.
    """
    closed: bool = False
    """Whether `rows` are all rows of the table, so that no further rows are searched for."""
    max_rows: int = 0
    """Max rows of the table; 0 for the limit in the configuration."""
    conditions: tuple[Condition, ...] = ()
    """Conditions that the rows of the table must meet. The delegator may add others."""

    def checked(self, limits: TableLimits) -> "TableRequest":
        """Return the request with normalized values. Raises `BadRequest` for the first defect."""
        max_rows = min(self.max_rows or limits.max_rows, limits.max_rows)
        if self.max_rows < 0:
            raise BadRequest(
                f"max_rows: must not be negative, got {self.max_rows}; 0 is the server's limit."
            )
        if len(self.rows) > max_rows:
            raise BadRequest(
                f"rows: {len(self.rows)} rows given, at most {max_rows} (max_rows) are allowed; "
                "send fewer rows."
            )
        if self.closed and not self.rows:
            raise BadRequest(
                "closed: a closed table needs a row in `rows`; send rows, or unset closed."
            )

        schema = checked_schema(self.columns)
        rows = checked_rows(schema, self.rows)
        conditions = with_conditions(schema, self.conditions).conditions
        return replace(
            self, columns=schema.columns, rows=rows, max_rows=max_rows, conditions=conditions
        )


def table_of(run: TableRun) -> Table:
    """Return the table that results from the reports of a run."""
    return assemble(
        run.schema,
        run.given,
        zip(run.asks, run.executions, strict=True),
        asks_per_cell=run.asks_per_cell,
        max_rows=run.max_rows,
    )


def independent_discoveries(reports: Iterable[tuple[Ask, Execution]]) -> set[Ask]:
    """Return the discoveries whose executor searched in this run, instead of using a report of
    another run. Discoveries that were interrupted are left out.
    """
    return {
        ask
        for ask, execution in reports
        if ask.kind == "discover" and execution.looked and not execution.shared_from
    }


def _size(execution: Execution) -> int:
    """Return a measure of the time for reading a report, in characters: the characters of its
    passages, plus `_ROW_CHARS` for each line of its answer.
    """
    passages = chain.from_iterable(search.shown for search in execution.every_search)
    return sum(
        len(passage.text) for passage in passages
    ) + _ROW_CHARS * execution.report.answer.count("\n")


@dataclasses.dataclass(frozen=True, slots=True)
class WideSearch:
    """Fills tables: a delegator plans the work, and executors search. One instance serves any
    number of requests at a time.
    """

    delegator: Delegator
    executor: Executes
    limits: TableLimits
    early_dispatch: bool = True
    """Whether executors may start while the delegator still writes its turn, as in
    `FactorizedSearch`.
    """
    managers: Sequence[str] = ()
    """Names of the managers, if `executor` is `Managers`. Repeated asks for a cell go to the
    managers in turn.
    """
    indexes: Indexes | None = None
    """Indexes for the searches of `TableLimits.discovery_passages`; None for no such searches."""

    async def run(self, request: TableRequest, context: RunContext) -> TableRun:
        """Fill the table of a checked request, and return the run's result.

        If a deadline passes, or a budget or limit is reached, the result is the table so far, and
        its outcome names the reason. If an executor fails, its error is stored in
        `context.failures`, and other executors look for the same cells, within the limits of
        `asks_per_cell`. Raises `UpstreamError` if the delegator fails in its first turn and the
        request has no rows, and `StoreFailed` if the run cannot be recorded.
        """
        work = await in_worker(_Filling, self, request, context)
        try:
            async with task_group() as group:
                await work.fill(group)
        finally:
            context.ledger.decide(0)  # early calls of a turn that was cut off are wasted
            context.draft.result = work.result
        return work.result


class _Filling:
    """State of the filling of one table."""

    def __init__(self, search: WideSearch, request: TableRequest, context: RunContext) -> None:
        self._search = search
        self._request = request
        self._limits = search.limits
        self._context = replace(context, reporting=TABLE_REPORTING)
        self._group: asyncio.TaskGroup
        self._schema = with_conditions(Schema(request.columns), request.conditions)
        self._asked_schema = self._schema
        """The columns and conditions of the request, without the delegator's plan."""
        self._ignored: tuple[str, ...] = ()
        """Conditions in the delegator's plan that are ignored because they are invalid, each with
        the reason.
        """
        self._assembly: Assembly
        self._delegation = Conversation(())
        self._outcome: TableOutcome = "filled"
        """Stays "filled" unless something else ends the run."""
        self._round = 0

        self._discoveries = dict[tuple[str, str], str]()
        """Questions of discoveries, by their normal form and manager, in the order in which the
        delegator wrote them.
        """
        self._not_dispatched: tuple[str, ...] = ()
        """Questions that were not dispatched, because the delegator's last turn had too many
        questions.
        """
        self._listed = defaultdict[int, dict[RowKey, None]](dict)
        """The keys of the rows that each discovery has found, by the discovery's number."""
        self._list_titles = dict[int, str]()
        """Title of the document with most of the rows in `_listed`, by the discovery's number."""
        self._shown_keys = {
            row_key(self._schema, row): self._key_values(row) for row in request.rows
        }
        """Key values of each row in the form that models are shown, by the row's canonical key."""

        self._numbers = context.ledger.asks_before()
        """Sub-query numbers of all asks. In a resumed run, recorded asks keep their numbers."""
        self._asks = sorted(self._numbers, key=self._numbers.__getitem__)
        self._executions = dict[int, Execution]()
        self._queue = list[tuple[float, int, tuple[Any, ...], Ask]]()
        """Heap of waiting asks, ordered as `_put` describes."""
        self._at_work = dict[asyncio.Task[Execution], int]()
        """Tasks of the running executors, with their sub-query numbers."""

        self._last_attempt = defaultdict[RowKey, Counter[str]](Counter)
        """Number of the last attempt for each cell, by row and column."""
        self._looked = defaultdict[RowKey, Counter[str]](Counter)
        """Number of executors that looked for each cell without failing, by row and column."""
        self._left_out = set[RowKey]()
        """Keys of names that no report gave (`left_out.py`). Such a name becomes a row only if it
        meets all conditions.
        """
        self._names_checked = 0
        """Number of names added to `_left_out` so far. It is limited to `MAX_LEFT_OUT`."""
        self._about: list[Passage] | None = None
        """Passages of the searches whose query is only the value of a condition; None before these
        searches. No executor sees the passages.
        """
        self._steps = dict[RowKey, list[list[str]]]()
        """The columns that are still to be asked for in each row, one step after the other: first
        the column of each condition, then all others.
        """

    @property
    def result(self) -> TableRun:
        """The result so far. Executors that have not reported count as timed out."""
        cut = Execution("", NO_EVIDENCE, "timed_out")
        return TableRun(
            self._schema,
            self._request.rows,
            tuple(self._asks),
            tuple(self._executions.get(number, cut) for number in range(len(self._asks))),
            self._delegation,
            self._outcome,
            asks_per_cell=self._limits.asks_per_cell,
            max_rows=self._request.max_rows,
            ignored=self._ignored,
        )

    # The delegator's part

    async def fill(self, group: asyncio.TaskGroup) -> None:
        """Fill the table until its outcome is known. `group`: the task group in which executors
        run.
        """
        self._group = group
        opening = table_delegation.opening(self._request.question, self._schema)
        if self._request.rows:
            await in_worker(self._restart_assembly, "")
            opening += await in_worker(self._status)
        self._delegation = Conversation(self._search.delegator.role.opening(opening))
        # Start again with an empty assembly: `_status` has taken the changes of the given rows,
        # which must still be announced.
        await in_worker(self._restart_assembly, "")

        rounds = self._limits.max_rounds
        if self._request.closed:  # at most one turn, to get the missing question templates
            rounds = int(any(not (column.key or column.ask) for column in self._schema.columns))
        if not rounds:
            self._announce_plan()
            await self._work_off()
        for self._round in range(1, rounds + 1):
            searching = await self._turn()
            await self._work_off()
            if not searching or self._outcome != "filled":
                return
        if not self._request.closed:
            self._outcome = "rounds_exhausted"

    def _restart_assembly(self, text: str) -> None:
        """Start a new assembly of the table, without reports. Its columns get the question
        templates and conditions in the delegator's turn `text`.
        """
        schema = self._asked_schema
        shown = table_delegation.opening(self._request.question, schema)
        self._schema, self._ignored = table_delegation.planned(schema, text, shown)
        self._assembly = Assembly(
            self._schema,
            self._request.rows,
            asks_per_cell=self._limits.asks_per_cell,
            max_rows=self._request.max_rows,
        )

    def _announce_plan(self) -> None:
        self._context.on_event(Planned(self._schema.shown, self._schema.conditions))

    def _status(self) -> str:
        """Return the text that shows the delegator the table's status."""
        return table_delegation.status(
            self._assembly.table(),
            independent_discoveries(self._reports),
            self._not_dispatched,
        )

    @property
    def _reports(self) -> list[tuple[Ask, Execution]]:
        return [(self._asks[number], report) for number, report in self._executions.items()]

    async def _turn(self) -> bool:
        """Let the delegator take its next turn. Return whether it wrote new discoveries."""
        context = self._context
        first = self._round == 1
        context.on_event(RoundStarted(self._round))
        if not first:
            self._delegation = self._delegation.with_user_turn(await in_worker(self._status))

        early = Dispatching(
            self._search.executor,
            self._round,
            len(self._asks),
            context,
            self._group,
            max_early=self._limits.width,
        )
        questions = await self._decide(early)

        if first:
            outputs = self._delegation.outputs
            await in_worker(self._restart_assembly, outputs[-1].text if outputs else "")
            self._announce_plan()
        return await self._discover(questions, early)

    async def _decide(self, early: Dispatching) -> list[tuple[str, str]]:
        """Let the delegator write its turn. Return its discoveries, each as a question and the name
        of a manager, which is empty if the delegator named none.

        If the turn fails, the table's outcome is set. An `UpstreamError` is raised only in the
        first turn of a request without rows.
        """
        context = self._context
        closed = self._request.closed
        nothing_known = self._round == 1 and not self._request.rows
        # With several keys, `_text` adds a line to the question, so the early question would
        # differ.
        begins_early = (
            self._search.early_dispatch
            and not context.ledger.budgeted
            and len(self._schema.keys) == 1
            and not closed
            # A recorded ask already has a number, so early work would get a different number
            and Ask("discover", (), discovery=len(self._discoveries) + 1) not in self._numbers
        )
        try:
            async with asyncio.timeout_at(context.search_deadline):
                decision, self._delegation = await self._search.delegator.decide(
                    self._delegation, context.ledger, early if begins_early else None
                )
        except TimeoutError:
            self._outcome = "time_exhausted"
            return []
        except BudgetExhausted:
            self._outcome = "budget_exhausted"
            return []
        except UpstreamError as error:
            if nothing_known:
                raise
            self._outcome = "delegation_failed"
            context.failures[None] = error
            return []

        if isinstance(decision, Dispatch) and not closed:
            self._not_dispatched = decision.over_limit
            managers = decision.managers or [""] * len(decision.sub_queries)
            return list(zip(decision.sub_queries, managers, strict=True))

        malformed = isinstance(decision, Malformed) and self._round == 1 and not closed
        if malformed:
            context.failures[None] = self._search.delegator.role.malformed()
        if malformed or nothing_known:
            self._outcome = "no_search"
        return []

    async def _discover(self, questions: Iterable[tuple[str, str]], early: Dispatching) -> bool:
        """Queue the new questions of the delegator's turn. Executors that were started early, on
        the first of these questions, keep working. Return whether any question is new.
        """
        texts = list[str]()
        asks = list[Ask]()
        for text, manager in questions:
            identity = normal_question(text), self._manager(1, manager)
            if identity not in self._discoveries:
                self._discoveries[identity] = text
                texts.append(text)
                asks.append(Ask("discover", (), discovery=len(self._discoveries), manager=manager))

        # Early work has no manager, so it is kept only for the questions before the first one with
        # a manager.
        unnamed = next((at for at, ask in enumerate(asks) if ask.manager), len(asks))
        begun = await early.keep(texts[:unnamed])
        for ask, task in zip(asks, begun, strict=False):
            self._at_work[task] = self._record_dispatch(ask)
        early.emit_held_back()
        for ask in asks[len(begun) :]:
            self._put(ask)
        return bool(asks)

    # The executors' part

    async def _work_off(self) -> None:
        """Run executors until the queue is empty and no conflicting values are left to settle."""
        await self._announce()
        while True:
            await self._start_executors()
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
                await self._announce()

    async def _start_executors(self) -> None:
        """Start executors on the queued asks, up to `width` at a time. Set the outcome if a limit
        is reached.
        """
        while self._queue and len(self._at_work) < self._limits.width:
            await asyncio.sleep(0)  # lets other requests run
            if loop_time() >= self._context.search_deadline:
                self._end("time_exhausted")
            elif len(self._executions) + len(self._at_work) >= self._limits.max_tasks:
                self._end("tasks_exhausted")
            else:
                *_, ask = heappop(self._queue)
                number = self._record_dispatch(ask)
                self._at_work[self._group.create_task(self._work(number, ask))] = number

    async def _work(self, number: int, ask: Ask) -> Execution:
        """Run one executor on an ask. `number`: the number of the sub-query."""
        context = replace(self._context, manager=ask.manager)
        if ask.kind == "settle":  # a second opinion must not come from another run
            context = replace(context, sharing=False)
        execution = await self._search.executor.run(self._text(ask), number, context)
        context.on_event(Reported(number, execution))
        return execution

    def _record_dispatch(self, ask: Ask) -> int:
        """Record that work on an ask begins, and return the number of its sub-query."""
        number = self._numbers.setdefault(ask, len(self._asks))
        if number == len(self._asks):
            self._asks.append(ask)
        self._context.ledger.asked(number, ask)
        self._context.on_event(
            SubQueryDispatched(number, self._round, self._text(ask), ask, ask.manager)
        )
        return number

    def _text(self, ask: Ask) -> str:
        """Return the text of the sub-query that expresses an ask."""
        if ask.row is not None:
            name = self._shown_keys[ask.row]
            return question(self._schema, name, ask.columns, reworded=ask.kind == "settle")

        text = [*self._discoveries.values()][ask.discovery - 1]
        if len(self._schema.keys) > 1:
            text += (
                f"\nIn a table with the columns {', '.join(key.name for key in self._schema.keys)}."
            )
        if listed := self._listed[ask.discovery]:
            text += (
                f"\nOther than: {'; '.join(', '.join(self._shown_keys[key]) for key in listed)}."
            )
        if title := self._list_titles.get(ask.discovery):
            text += f"\nA list of them is in: {title}."
        return text

    def _take(self, number: int, execution: Execution) -> None:
        """Add a report to the table, and queue asks for the values that the report should have but
        lacks.
        """
        ask = self._asks[number]
        self._executions[number] = execution
        reading = self._assembly.add(ask, execution)

        if execution.outcome == "budget_exhausted":
            self._end("budget_exhausted")
        elif execution.outcome == "timed_out":
            self._end("time_exhausted")

        if ask.row is None:
            self._take_rows(ask, execution, reading)
            return
        if execution.looked:
            self._looked[ask.row].update(ask.columns)
        (row,) = reading.rows  # exactly one, as the ask names its row
        lacking = [
            column.name
            for column, claim in zip(self._schema.columns, row.claims, strict=True)
            if column.name in ask.columns
            and (
                claim is None
                or claim.support == "unsupported"
                or is_mistyped(column, claim.canonical)
                or is_doubtful(self._schema, column, claim)
            )
        ]
        # The next columns follow when nothing is asked for again
        if not self._ask(ask.row, lacking, execution.report.escalate_to):
            self._fill(ask.row)

    def _take_rows(self, ask: Ask, execution: Execution, reading: ReportRows) -> None:
        """Note the rows that a discovery found. Queue the discovery again if its executor failed,
        or if it found new rows and there may be more: its list was cut off, or `verify_lists` is
        set.
        """
        listed = self._listed[ask.discovery]
        new = dict.fromkeys(row.key for row in reading.rows if row.key not in listed)
        listed |= new
        for row in reading.rows:
            values = ["" if claim is None else claim.value for claim in row.claims]
            self._shown_keys.setdefault(row.key, self._key_values(values))

        for key in sorted(new.keys() & self._left_out):
            self._left_out.remove(key)
            self._fill(key)

        titles = Counter(
            one_line(citation.title)
            for row in reading.rows
            for claim in filter(None, row.claims)
            for citation in claim.citations
        )
        titles.pop("", None)  # documents without a title
        for title, _ in titles.most_common(1):
            self._list_titles.setdefault(ask.discovery, title)

        max_tries = 0
        if new and (reading.lost or self._limits.verify_lists):
            # Asking for the rest of a list replaces a turn of the delegator, so the limit on turns
            # applies
            max_tries = self._limits.max_rounds
        elif not execution.looked:
            max_tries = 2 * self._limits.asks_per_cell
        if ask.attempt < max_tries:
            attempt = ask.attempt + 1
            manager = ask.manager
            if execution.failed:
                manager = self._manager(attempt, execution.report.escalate_to)
            self._put(replace(ask, attempt=attempt, manager=manager))

    def _key_values(self, values: Sequence[str]) -> tuple[str, ...]:
        """Return the values of the key columns. `values`: one value for each column."""
        # Values of hidden columns, which are last, may be missing
        pairs = zip(self._schema.columns, values, strict=False)
        return tuple(value for column, value in pairs if column.key)

    def _manager(self, attempt: int, wanted: str) -> str:
        """Return the name of the manager for an attempt: `wanted` if a manager has that name.
        Otherwise, attempts go to the managers in turn, by number. Return an empty string if there
        are no managers.
        """
        managers = self._search.managers
        if not managers:
            return ""
        return wanted if wanted in managers else managers[(attempt - 1) % len(managers)]

    def _ask(self, key: RowKey, columns: Iterable[str], wanted: str = "") -> bool:
        """Queue asks for cells of a row, except for cells that have reached their limit of
        attempts. Return whether any cell is below its limit.

        `wanted`: the manager to which the last report escalated; empty if it did not.
        """
        limit = self._limits.asks_per_cell
        last_attempt = self._last_attempt[key]
        looked = self._looked[key]
        holes = [
            name for name in columns if looked[name] < limit and last_attempt[name] < 2 * limit
        ]
        attempt = 1 + max((last_attempt[name] for name in holes), default=0)
        manager = self._manager(attempt, wanted)
        kind: AskKind = "settle" if any(looked[name] for name in holes) else "fill"

        for name in holes:
            last_attempt[name] = attempt
        size = self._limits.cells_per_ask or len(self._schema.columns)
        for start in range(0, len(holes), size):
            names = tuple(holes[start : start + size])
            self._put(Ask(kind, names, key, attempt=attempt, manager=manager))
        return bool(holes)

    def _wanted(self, ask: Ask) -> bool:
        """Return whether work on `ask` may still begin, given the outcome so far."""
        if self._outcome == "rows_exhausted":
            return ask.row is not None
        return self._outcome not in _OVER

    def _put(self, ask: Ask) -> None:
        """Queue an ask, unless the outcome so far rules it out. In a resumed run, asks that the
        interrupted run recorded come first, by their numbers. Then come asks about cells, then
        discoveries, each by rank.
        """
        if self._wanted(ask):
            rank = ask.rank
            # By -rank[0]: settle, then fill, then discover.
            heappush(self._queue, (self._numbers.get(ask, inf), -rank[0], rank, ask))

    def _end(self, outcome: TableOutcome) -> None:
        """Set the outcome, and drop the queued asks that it rules out."""
        self._outcome = outcome
        self._queue = [entry for entry in self._queue if self._wanted(entry[-1])]
        heapify(self._queue)

    async def _announce(self) -> None:
        """Emit an event for each row that changed, and queue fills for rows that are new."""
        if self._assembly.overflows and self._outcome not in (*_OVER, "rows_exhausted"):
            self._end("rows_exhausted")
        for row in self._assembly.take_changed():
            await asyncio.sleep(0)
            self._context.on_event(RowChanged(row.key, row))
            given = {
                column.name
                for column, cell in zip(self._schema.shown, row.cells, strict=True)
                if cell.state == "given"
            }
            # Ask for each key of the row, although the keys name the same row. A report may show
            # that only after the keys were asked for, and the asks must not depend on the order of
            # the reports.
            for key in (row.key, *row.aliases):
                if key not in self._steps:
                    self._begin(key, given)

    def _begin(self, key: RowKey, given: Collection[str] = ()) -> None:
        """Queue the first asks for cells of a row. `given`: columns that the client gave."""
        columns = (column for column in self._schema.columns if not column.key)
        wanted = [column.name for column in columns if column.name not in given]
        checked = {condition.column.name for condition in self._schema.conditions}
        rest = [name for name in wanted if name not in checked]
        self._steps[key] = [*([name] for name in wanted if name in checked), rest]
        self._fill(key)

    def _fill(self, key: RowKey) -> None:
        """Queue the next asks for cells of a row. Queue nothing if the row contradicts a condition,
        or if no report gave the row's name and the row does not meet all conditions.

        Only reports about this key are considered, so that the asks do not depend on the order in
        which reports arrive.
        """
        steps = self._steps[key]
        states = self._assembly.check_states(key)
        is_checked = key not in self._left_out or states == {"met"}
        asked = "contradicted" in states
        while not asked and len(steps) > (0 if is_checked else 1):
            asked = self._ask(key, steps.pop(0))

    async def _ask_left_out(self, table: Table) -> None:
        """Queue asks about names that no report gave (`left_out.py`). These asks are about the
        columns of conditions. Asks about other columns follow if the name meets all conditions.
        """
        # Sort by rank, so that the names do not depend on the order in which reports arrive
        reports = sorted(self._reports, key=lambda pair: pair[0].rank)
        indexes = self._search.indexes
        count = self._limits.discovery_passages
        if indexes and count and self._about is None:
            self._about = []
            # Charge these searches to the first sub-query, because they belong to no sub-query
            booking = BOOKING.set(Booking(self._context.ledger, 0))
            with suppress(UpstreamError):
                for value in values_of(self._schema)[:_MAX_SEARCHED]:
                    self._about += (await indexes.search(self._context.scope, [value], count))[0]
            BOOKING.reset(booking)
        shown = {
            passage.id: passage
            for _, execution in reports
            for search in execution.every_search
            for passage in search.shown
        }
        names = await in_worker(
            lambda: (
                left_out(table, reports)
                + named_with_values(table, shown.values(), self._about or ())
            )
        )
        keys = {row_key(Schema(self._schema.keys), [name]): name for name in names}
        new = [key for key in keys if key not in self._shown_keys]
        rows_left = self._request.max_rows - len(table.every_row)
        for key in new[: max(0, min(rows_left, MAX_LEFT_OUT - self._names_checked))]:
            self._shown_keys[key] = (keys[key],)
            self._left_out.add(key)
            self._names_checked += 1
            self._begin(key)

    async def _settle(self) -> None:
        """Queue asks about names that no report gave, and settlings for cells with conflicting
        values, as far as `asks_per_cell` allows.

        This is done only when all reports have arrived, because a report may show that two keys
        name the same row, which joins their values.
        """
        table = await in_worker(self._assembly.table)
        if (
            self._limits.ask_left_out
            and self._outcome == "filled"
            and self._schema.conditions
            and len(self._schema.keys) == 1
            and not self._request.closed
        ):
            await self._ask_left_out(table)
        for row in table.rows:
            await asyncio.sleep(0)
            self._ask(
                row.key,
                [
                    column.name
                    for column, cell in zip(self._schema.shown, row.cells, strict=True)
                    if cell.state == "conflict"
                ],
            )
