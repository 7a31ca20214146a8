"""The table of a run is folded once for all its readers, and continued from its last state."""

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
from tests.router.accounts import open_access
from tests.router.deployment import Kept
from tests.router.edge.pages.demo import table
from tests.router.edge.pages.shown import keep, read, shown
from tests.router.edge.pages.world import browsing
from tests.router.edge.wire import served
from tests.router.scripted_tables import SCRIPT
from tests.router.store.stored import call, run
from tests.router.table.reports import SCHEMA
from tests.router.table.test_assembly import GIVEN, reports


def events_of(
    rows: Sequence[Sequence[str]], script: Sequence[tuple[Ask, Execution]]
) -> tuple[Event, ...]:
    """Return the events of a run with these reports."""
    events = list[Event]([RunStarted("run-1"), Planned(SCHEMA.columns)])
    rows_by_key = dict[RowKey, object]()
    assembly = Assembly(SCHEMA, rows)
    for number, (ask, execution) in enumerate(script):
        events += [SubQueryDispatched(number, 1, "Which?", ask), Reported(number, execution)]
        assembly.add(ask, execution)
        events += [
            RowChanged(row.key, row)
            for row in assembly.table().rows
            if rows_by_key.get(row.key) is not row
        ]
        rows_by_key = {row.key: row for row in assembly.table().rows}
    return tuple(events)


@given(GIVEN, reports(), st.data())
def test_a_continued_fold_equals_a_fresh_one(
    rows: Sequence[Sequence[str]], script: list[tuple[Ask, Execution]], data: st.DataObject
) -> None:
    """Holds after reads at any events."""
    events = events_of(rows, script)
    running = replace(run("run-1"), kind="table", status="running", result=None)
    for end in sorted(data.draw(st.lists(st.integers(1, len(events))))):
        continued = run_table(replace(running, events=events[:end]))
        fresh = TableEvents(events[:end])
        assert continued.table.rows == tuple(fresh.rows.values())
        assert continued.table.schema.columns == fresh.columns
        assert continued.executions == fresh.executions
        assert {
            ask: number for number, ask in enumerate(continued.asks) if ask in fresh.asks
        } == fresh.asks


class Counting(Kept):
    """A store that reads a run again each time, as a database does, and counts the reads."""

    read = 0

    async def load(self, run_id: str, tenant: str | None = None) -> Run:
        self.read += 1
        await asyncio.sleep(0)
        stored_run = await super().load(run_id, tenant)
        return (
            replace(stored_run, result=replace(stored_run.result))
            if stored_run.result
            else stored_run
        )


def large() -> Run:
    """Return a table's run with many calls."""
    calls = tuple(call("run-1", number) for number in range(300))
    result = TableRun(
        SCHEMA, (), tuple(ask for ask, _ in SCRIPT), tuple(execution for _, execution in SCRIPT)
    )
    return replace(run("run-1"), kind="table", result=result, calls=calls)


async def test_concurrent_readers_share_one_read_and_one_fold() -> None:
    """All get the same page."""
    store = Counting()
    live = LiveRuns()
    keep(store, large())
    runs = Runs(store, live)
    tables: Any = None
    server = Server(None, None, RunServicer(runs), TableServicer(tables, runs, open_access()))
    async with served(server) as channel:
        stub = TableServiceStub(channel)
        pages = await asyncio.gather(
            *(stub.GetTable(pb.GetTableRequest(run_id="run-1")) for _ in range(20))
        )
    assert store.read == 1
    assert len({page.SerializeToString(deterministic=True) for page in pages}) == 1
    first_run, same_run = await asyncio.gather(*(runs.get("run-1", LOCAL) for _ in range(2)))
    assert await in_viewer(run_table, first_run) is await in_viewer(run_table, same_run)


async def test_a_run_in_memory_is_not_found_by_another_tenant() -> None:
    """A cached run is returned to its owner only."""
    store = Counting()
    live = LiveRuns()
    keep(store, large())
    runs = Runs(store, live)
    await runs.get("run-1", LOCAL)
    with pytest.raises(NotFound):
        await runs.get("run-1", Identity("acme", frozenset(("ask",))))


def test_a_run_without_failed_tools_keeps_its_result_object() -> None:
    """Its folded table is therefore found again."""
    stored_run = large()
    assert as_seen_by(stored_run, Identity("acme", frozenset(("ask",)))).result is stored_run.result


async def test_concurrent_readers_of_a_page_see_the_whole_table() -> None:
    """Cells and downloads are complete too."""
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
