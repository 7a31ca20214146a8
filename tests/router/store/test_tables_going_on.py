"""Tables of a killed gateway are resumed over the wire, on either database."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rolegate.v1 import table_service_pb2 as pb
from rolegate.v1.table_service_pb2_grpc import TableServiceStub

from benchmarks.load import rows_of
from router.edge.grpc.server import Server
from router.edge.grpc.services import RunServicer
from router.edge.grpc.table_service import TableServicer
from router.errors import StoreFailed
from router.runs import RequestOptions, RunFilter, Runs
from router.runs.live import LiveRuns
from router.table import TableLimits
from tests.conftest import Rolegate
from tests.router.accounts import open_access
from tests.router.deployment import HeldModel
from tests.router.edge.wire import connected, served
from tests.router.table.small_world import QUESTION, REQUEST, Reader, World, gateway, lead

if TYPE_CHECKING:
    from rolegate.v1.table_service_pb2_grpc import TableServiceAsyncStub

LIMITS = TableLimits(width=3)
COLUMNS = [
    pb.Column(name="city", key=True),
    pb.Column(name="founder"),
    pb.Column(name="founded", type=pb.COLUMN_TYPE_INTEGER),
]
WORLD = World(10, unstated=1, renamed=1)


async def test_a_detached_table_that_outlives_the_grace_of_a_shutdown_is_resumed(
    url: str, tmp_path: Path
) -> None:
    """The client repeats its request at the next gateway."""
    held: Any = HeldModel(Reader(), 12)
    asked = pb.FillTableRequest(question=QUESTION, columns=COLUMNS, request_id="mine")
    detached = pb.FillTableRequest(
        question=QUESTION, columns=COLUMNS, request_id="mine", detached=True
    )
    async with gateway(url, WORLD, held, lead(WORLD, 2), limits=LIMITS) as (first, archive):
        server = Server(first, None, TableServicer(first, Runs(archive, LiveRuns()), open_access()))
        async with connected(await server.start("127.0.0.1:0")) as channel:
            stub: TableServiceAsyncStub = TableServiceStub(channel)
            run_id = (await stub.FillTable(detached)).run_id
            await asyncio.wait_for(held.called.wait(), 10)
            await asyncio.wait_for(server.drain(0.01), 10)
    async with gateway(url, WORLD, limits=LIMITS, delegator=lead(WORLD, 2)) as (second, archive):
        tables = TableServicer(second, Runs(archive, LiveRuns()), open_access())
        async with served(Server(second, None, tables)) as channel:
            stub = TableServiceStub(channel)
            table = (await stub.FillTable(asked)).table
        assert (await archive.load(run_id)).status == "interrupted"
        assert (await archive.load(table.run_id)).resumed_from == run_id
    assert table.markdown == (await whole(tmp_path)).markdown


class _Killed(Exception):
    pass


async def whole(folder: Path) -> pb.Table:
    """Return the table of an undisturbed run."""
    async with gateway(folder / "whole", WORLD, limits=LIMITS, delegator=lead(WORLD, 2)) as (
        undisturbed,
        archive,
    ):
        tables = TableServicer(undisturbed, Runs(archive, LiveRuns()), open_access())
        async with served(Server(undisturbed, None, tables)) as channel:
            stub: TableServiceAsyncStub = TableServiceStub(channel)
            return (
                await stub.FillTable(pb.FillTableRequest(question=QUESTION, columns=COLUMNS))
            ).table


@pytest.mark.parametrize("free", [3, 12, 25])
@pytest.mark.parametrize("way", ["name", "identifier", "command"])
async def test_a_resumed_table_equals_an_undisturbed_one(
    url: str, tmp_path: Path, rolegate: Rolegate, way: str, free: int
) -> None:
    """The client repeats the request name or names the run."""
    held: Any = HeldModel(Reader(), free)
    with suppress(_Killed):
        async with gateway(url, WORLD, held, lead(WORLD, 2), limits=LIMITS) as (first, archive):
            filling = asyncio.create_task(
                first.fill_table(REQUEST, RequestOptions(request_id="mine"))
            )
            await asyncio.wait_for(held.called.wait(), 10)
            await asyncio.sleep(0)  # the log is written at the end of the loop's turn
            run_id = (await archive.list(RunFilter(), 1)).runs[0].id
            raise _Killed
    held.let.set()
    with pytest.raises(StoreFailed):
        await filling
    async with gateway(url, WORLD, limits=LIMITS, delegator=lead(WORLD, 2)) as (second, archive):
        runs = Runs(archive, LiveRuns())
        server = Server(second, None, RunServicer(runs), TableServicer(second, runs, open_access()))
        port = await server.start("127.0.0.1:0")
        async with connected(port) as channel:
            stub: TableServiceAsyncStub = TableServiceStub(channel)
            asked = pb.FillTableRequest(resume_run_id=run_id)
            if way == "command":
                address = ("--address", f"127.0.0.1:{port}")
                ended = await asyncio.to_thread(rolegate, "runs", "resume", run_id, *address)
                assert ended.status == 0
            if way != "identifier":
                asked = pb.FillTableRequest(question=QUESTION, columns=COLUMNS, request_id="mine")
            table = (await stub.FillTable(asked)).table
        await server.drain(0)
        run = await archive.load(table.run_id)
        before = await archive.load(run_id)
    expected = await whole(tmp_path)
    assert (before.status, run.status, run.resumed_from, run.request_id) == (
        "interrupted",
        "finished",
        run_id,
        "mine",
    )
    # The command prints the log of its gateway first
    assert way != "command" or ended.out.endswith(expected.markdown)
    assert table.markdown == expected.markdown
    assert rows_of(table) == rows_of(expected)
    completed = sum(call.outcome == "completed" for call in before.calls)
    assert completed + len(run.calls) == sum(used.attempts for used in expected.usage)
