"""Tables that a model writes, to compare with: the papers' ways (WideSeek-R1 3; WideSearch).

The program reads what was written, keeps what was given, and looks each value up in all passages that were found.
"""

import asyncio
import dataclasses
import sys

from msgspec.structs import replace

from router.calls import Role
from router.errors import BudgetExhausted, OutOfTime, UpstreamError
from router.protocol import NO_EVIDENCE
from router.protocol.turns import ReportTurn
from router.search import RunContext
from router.search.context import ANSWERING_SHARE, Draft
from router.search.loop import Loop
from router.search.single_agent import SINGLE_AGENT
from router.table.assembly import read_report
from router.table.filling import TableRequest, table_of
from router.table.table_delegation import described
from router.table.table_text import parse_table_turn, to_markdown
from router.trace import Conversation, Execution, Trajectory
from router.trace.table import Ask, Schema, TableOutcome, TableTopologyName
from router.trace.values import Planned, Reported, RowChanged, SubQueryDispatched, TableRun, says_not_found

SINGLE_WRITER = dataclasses.replace(SINGLE_AGENT, parse=parse_table_turn, stop=("</search>",))
"""Of a single agent; no cell of its table ends its turn."""


class WrittenTables:
    """Fills tables by a loop that answers questions, whose answer is the table; any number of tables at once."""

    def __init__(self, loop: Loop, writer: Role, topology: TableTopologyName, max_tasks: int) -> None:
        """`writer`: the role that answers. `max_tasks`: executors that the loop may dispatch in all."""
        self._loop, self._writer, self._topology, self._max_tasks = loop, writer, topology, max_tasks

    async def run(self, request: TableRequest, context: RunContext) -> TableRun:
        """Fill the table of a checked request. What ends the search early, be it time, a budget or a limit, ends in the
        table that is written of what was found, or, where there is no time or money left for that, in the given rows.
        Raises `UpstreamError` where a model fails, or writes no table, and no row was given.
        """
        context.on_event(Planned(request.columns))
        now, found = asyncio.get_running_loop().time(), Trajectory("", "answered")
        until = now + (context.search_deadline - now) * (1 - ANSWERING_SHARE)
        inner = dataclasses.replace(
            context, deadline=context.search_deadline, search_deadline=until, draft=Draft(found), tabular=True
        )
        ended: TableOutcome | None = None
        try:
            inner.draft.result = found = await self._loop.run(_text(request), inner)
            if _written(request, found).failed and not says_not_found(found.answer):
                raise self._writer.malformed()
        except OutOfTime:
            ended = "time_exhausted"
        except BudgetExhausted:
            ended = "budget_exhausted"
        except UpstreamError as error:
            if not request.rows:
                raise
            ended, context.failures[None] = "delegation_failed", error
        finally:
            if isinstance(inner.draft.result, Trajectory):
                found = inner.draft.result
            context.draft.result = made = self._made(request, found, ended)
        context.draft.result = made = await _told(made, request, len(found.rounds) + 1, context)
        return made

    def _made(self, request: TableRequest, found: Trajectory, ended: TableOutcome | None) -> TableRun:
        """The run of a table: all that executors did, and last what was written."""
        executions, columns = found.executions, tuple(column.name for column in request.columns)
        asks = (Ask("fill", (), attempt=number) for number in range(1, len(executions) + 1))
        outcome: TableOutcome = "filled"
        match found.outcome:
            case "rounds_exhausted" if len(executions) >= self._max_tasks:
                outcome = "tasks_exhausted"
            case "answered" | "not_found":
                pass
            case other:
                outcome = other
        return TableRun(
            Schema(request.columns),
            request.rows,
            (*asks, Ask("discover", columns)),
            (*executions, _written(request, found)),
            found.delegation,
            ended or outcome,
            self._topology,
            max_rows=len(request.rows) if request.closed else request.max_rows,
        )


async def _told(made: TableRun, request: TableRequest, number: int, context: RunContext) -> TableRun:
    """Tell of what was written in round `number`; the run, which says where the table lacks rows."""
    *_, ask = made.asks
    *_, written = made.executions
    table = await asyncio.to_thread(table_of, replace(made, max_rows=sys.maxsize))
    lost = read_report(made.schema, ask, replace(written, searches=())).lost
    if made.outcome == "filled" and (lost or (len(table.rows) > made.max_rows and not request.closed)):
        made = replace(made, outcome="rows_exhausted")
    index = len(made.asks) - 1
    context.on_event(SubQueryDispatched(index, number, written.sub_query, ask))
    context.on_event(Reported(index, written))
    for row in table.rows[: made.max_rows]:
        context.on_event(RowChanged(row.key, row))
    return made


def _text(request: TableRequest) -> str:
    """The request, as a question."""
    text = f"{request.question}\n\nColumns, keys with a star: {', '.join(map(described, request.columns))}"
    if not request.rows:
        return text
    others = "There are no other rows" if request.closed else "There may be other rows"
    return f"{text}\n\nKnown rows, to be kept, with their empty cells filled. {others}.\n" + to_markdown(
        request.columns, request.rows
    )


def _written(request: TableRequest, found: Trajectory) -> Execution:
    """The table that stands in the last turn, as a report."""
    wrote, turn = found.answering or found.delegation, None
    if wrote and wrote.outputs and not says_not_found(found.answer):
        turn = parse_table_turn(wrote.outputs[-1].text, wrote.outputs[-1].finish_reason == "length")
    read = isinstance(turn, ReportTurn)
    report = turn.report if isinstance(turn, ReportTurn) else NO_EVIDENCE
    said = found.answering or Conversation(())
    return Execution(request.question, report, "reported" if read else "no_report", found.searches, said)
