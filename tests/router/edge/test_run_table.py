"""The table of a run is folded once for all who look at it, and goes on from where it was."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rolegate.v1 import table_service_pb2 as pb
from rolegate.v1.table_service_pb2_grpc import TableServiceStub

from router.background import in_viewer
from router.edge.grpc.server import Server
from router.edge.grpc.services import RunServicer
from router.edge.grpc.table_service import TableServicer
from router.edge.run_table import TableEvents, run_table
from router.edge.status import as_seen_by
from router.errors import NotFound
from router.runs import Runs
from router.runs.live import LiveRuns
from router.table.assembly import Assembly
from router.trace import Event, Execution, Run
from router.trace.identity import LOCAL, Identity
from router.trace.table import Ask, RowKey
from router.trace.values import (
    Planned,
    Reported,
    RowChanged,
    RunStarted,
    SubQueryDispatched,
    TableRun,
)
from tests.router.deployment import Kept
from tests.router.edge.pages.demo import table
from tests.router.edge.pages.shown import keep, read, shown
from tests.router.edge.pages.world import browsing
from tests.router.edge.wire import served
from tests.router.scripted_tables import SCRIPT
from tests.router.store.stored import call, run
from tests.router.table.reports import SCHEMA
from tests.router.table.test_assembly import GIVEN, reports


def told(
    rows: Sequence[Sequence[str]], script: Sequence[tuple[Ask, Execution]]
) -> tuple[Event, ...]:
    """What a run of these reports tells."""
    events = list[Event]([RunStarted("run-1"), Planned(SCHEMA.columns)])
    known = dict[RowKey, object]()
    assembly = Assembly(SCHEMA, rows)
    for number, (ask, execution) in enumerate(script):
        events += [SubQueryDispatched(number, 1, "Which?", ask), Reported(number, execution)]
        assembly.add(ask, execution)
        events += [
            RowChanged(row.key, row)
            for row in assembly.table().rows
            if known.get(row.key) is not row
        ]
        known = {row.key: row for row in assembly.table().rows}
    return tuple(events)


@given(GIVEN, reports(), st.data())
def test_a_fold_that_goes_on_is_the_whole_one(
    rows: Sequence[Sequence[str]], script: list[tuple[Ask, Execution]], data: st.DataObject
) -> None:
    """At whatever events it was looked at before."""
    events = told(rows, script)
    going_on = replace(run("run-1"), kind="table", status="running", result=None)
    for end in sorted(data.draw(st.lists(st.integers(1, len(events))))):
        found = run_table(replace(going_on, events=events[:end]))
        whole = TableEvents(events[:end])
        assert found.table.rows == tuple(whole.rows.values())
        assert found.table.schema.columns == whole.columns
        assert found.executions == whole.executions
        assert {
            ask: number for number, ask in enumerate(found.asks) if ask in whole.asks
        } == whole.asks


class Counting(Kept):
    """Reads a run afresh each time, as a database does, and counts how often."""

    read = 0

    async def load(self, run_id: str, tenant: str | None = None) -> Run:
        self.read += 1
        await asyncio.sleep(0)
        found = await super().load(run_id, tenant)
        return replace(found, result=replace(found.result)) if found.result else found


def large() -> Run:
    """A table's run of many calls."""
    calls = tuple(call("run-1", number) for number in range(300))
    result = TableRun(
        SCHEMA, (), tuple(ask for ask, _ in SCRIPT), tuple(execution for _, execution in SCRIPT)
    )
    return replace(run("run-1"), kind="table", result=result, calls=calls)


async def test_many_look_at_one_large_run() -> None:
    """It is read once, and folded once, whoever comes first; each sees the same."""
    store = Counting()
    live = LiveRuns()
    keep(store, large())
    runs = Runs(store, live)
    tables: Any = None
    server = Server(None, None, RunServicer(runs), TableServicer(tables, runs))
    async with served(server) as channel:
        stub = TableServiceStub(channel)
        pages = await asyncio.gather(
            *(stub.GetTable(pb.GetTableRequest(run_id="run-1")) for _ in range(20))
        )
    assert store.read == 1
    assert len({page.SerializeToString(deterministic=True) for page in pages}) == 1
    one, other = await asyncio.gather(*(runs.get("run-1", LOCAL) for _ in range(2)))
    assert await in_viewer(run_table, one) is await in_viewer(run_table, other)


async def test_others_runs_are_not_there_however_often_they_are_read() -> None:
    """A run that is kept for those who look at it is shown to nobody else."""
    store = Counting()
    live = LiveRuns()
    keep(store, large())
    runs = Runs(store, live)
    await runs.get("run-1", LOCAL)
    with pytest.raises(NotFound):
        await runs.get("run-1", Identity("acme", frozenset(("ask",))))


def test_a_run_without_failed_tools_is_seen_as_it_is() -> None:
    """So that its table is known again."""
    stored = large()
    assert as_seen_by(stored, Identity("acme", frozenset(("ask",)))).result is stored.result


async def test_a_page_that_many_look_at() -> None:
    """Each shows the table, with its cells and its ways out."""
    async with shown(runs=[table("run-1")]) as pages, browsing(pages) as session:
        texts = await asyncio.gather(*(read(session, "/runs/run-1") for _ in range(8)))
        cells = await asyncio.gather(*(read(session, "/runs/run-1/cells/1/2") for _ in range(8)))
        files = await asyncio.gather(
            *(read(session, f"/runs/run-1/table.{kind}") for kind in ("csv", "md") * 4)
        )
    assert all("Krurou" in text and "4 rows" in text for text in texts)
    assert all("900" in text for text in cells)
    assert files == files[:2] * 4
    assert files[0] != files[1]
