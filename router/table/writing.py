"""Tables that a model writes, as baselines: the papers' ways (WideSeek-R1 3; WideSearch).

The program reads the written table, keeps given values, and looks each value up in all passages
that were found.
"""

import asyncio
import dataclasses
import sys
from typing import Any

from msgspec.structs import replace

from router.calls import Role
from router.errors import BudgetExhausted, OutOfTime, UpstreamError
from router.protocol import NO_EVIDENCE
from router.protocol.turns import ReportTurn
from router.search import RunContext
from router.search.context import ANSWERING_SHARE
from router.search.loop import Loop
from router.search.single_agent import SINGLE_AGENT
from router.table.assembly import read_report
from router.table.filling import TABLE_REPORTING, TableRequest, table_of
from router.table.table_delegation import described
from router.table.table_text import parse_table_turn, to_markdown
from router.trace import Conversation, Execution, Trajectory
from router.trace.table import Ask, Schema, TableTopologyName
from router.trace.values import Planned, Reported, Result, RowChanged, SubQueryDispatched, TableRun

SINGLE_WRITER = dataclasses.replace(SINGLE_AGENT, parse=parse_table_turn, stop=("</search>",))
"""Form of a single agent's turns; `</answer>` in a cell does not end a turn."""


class WrittenTables:
    """Fills tables with a loop that answers questions, whose answer is the table; any number at a
    time.
    """

    def __init__(
        self,
        loop: Loop,
        writer: Role,
        topology: TableTopologyName,
        max_tasks: int = 1,
    ) -> None:
        """`writer`: the role that answers. `max_tasks`: max executors that the loop dispatches."""
        self._loop = loop
        self._writer = writer
        self._topology = topology
        self._max_tasks = max_tasks

    async def run(self, request: TableRequest, context: RunContext) -> TableRun:
        """Fill the table of a checked request.

        If a deadline, budget or limit ends the search, the table is written from what was found; if
        no time or money is left for that, it has the given rows. Raises `UpstreamError` if a model
        fails or writes no table, and no row was given.
        """
        context.on_event(Planned(request.columns))
        now = asyncio.get_running_loop().time()
        ended = ""
        until = now + (context.search_deadline - now) * (1 - ANSWERING_SHARE)
        inner = dataclasses.replace(
            context,
            deadline=context.search_deadline,
            search_deadline=until,
            reporting=TABLE_REPORTING,
        )
        try:
            context.draft.result = trajectory = await self._loop.run(_question(request), inner)
            passages = any(search.passages for search in trajectory.searches)
            cut = trajectory.outcome in ("time_exhausted", "budget_exhausted")
            should_write = not cut and (passages or trajectory.answering)
            if should_write and _written(request, trajectory).failed:
                raise self._writer.malformed()
        except OutOfTime:
            ended = "time_exhausted"
        except BudgetExhausted:
            ended = "budget_exhausted"
        except UpstreamError as error:
            if not request.rows:
                raise
            ended = "delegation_failed"
            context.failures[None] = error
        finally:
            context.draft.result = run = self._made(request, context.draft.result, ended)

        table = await asyncio.to_thread(table_of, replace(run, max_rows=sys.maxsize))
        index = len(run.asks) - 1
        ask = run.asks[-1]
        written = run.executions[-1]
        unsupported = replace(written, searches=())
        reading = await asyncio.to_thread(read_report, run.schema, ask, unsupported)
        overflows = len(table.rows) > run.max_rows and not request.closed
        if run.outcome == "filled" and (reading.lost or overflows):
            context.draft.result = run = replace(run, outcome="rows_exhausted")

        context.on_event(SubQueryDispatched(index, 1, written.sub_query, ask))
        context.on_event(Reported(index, written))
        for row in table.rows[: run.max_rows]:
            context.on_event(RowChanged(row.key, row))
        return run

    def _made(
        self,
        request: TableRequest,
        result: Result | None,
        ended: str,
    ) -> TableRun:
        """Return the table's run: all executions, and the written table as the last one."""
        trajectory = result if isinstance(result, Trajectory) else Trajectory("", "answered")
        executions = trajectory.executions
        columns = tuple(column.name for column in request.columns)
        asks = (Ask("fill", (), attempt=number) for number in range(1, len(executions) + 1))
        outcome: Any = ended or trajectory.outcome
        if outcome in ("answered", "not_found"):
            outcome = "filled"
        elif outcome == "rounds_exhausted" and len(executions) >= self._max_tasks:
            outcome = "tasks_exhausted"
        return TableRun(
            Schema(request.columns),
            request.rows,
            (*asks, Ask("discover", columns)),
            (*executions, _written(request, trajectory)),
            trajectory.delegation,
            outcome,
            self._topology,
            max_rows=len(request.rows) if request.closed else request.max_rows,
        )


def _question(request: TableRequest) -> str:
    """Return the request as a question."""
    text = (
        f"{request.question}\n\nColumns, keys with a star: "
        f"{', '.join(map(described, request.columns))}"
    )
    if not request.rows:
        return text
    others = "There are no other rows" if request.closed else "There may be other rows"
    known = to_markdown(request.columns, request.rows)
    return f"{text}\n\nKnown rows, to be kept, with their empty cells filled. {others}.\n{known}"


def _written(request: TableRequest, trajectory: Trajectory) -> Execution:
    """Return the table in the last turn as a report."""
    conversation = trajectory.answering or Conversation(())
    turn = None
    alone = trajectory.topology == "single_agent"
    writer = trajectory.delegation if alone else trajectory.answering
    if writer and writer.outputs:
        output = writer.outputs[-1]
        turn = parse_table_turn(output.text, output.finish_reason == "length")
    searches = trajectory.searches
    if isinstance(turn, ReportTurn):
        return Execution(request.question, turn.report, "reported", searches, conversation)
    return Execution(request.question, NO_EVIDENCE, "no_report", searches, conversation)
