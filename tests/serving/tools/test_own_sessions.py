"""Sessions of workers with servers that keep state: real child processes that speak MCP."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
import uvloop

from serving.config.config import ToolServerConfig
from tests.serving.tools.pools import done, faulty, pool_of, state, tools_of

OWN = faulty(own_sessions=True, max_in_flight=2)


def alive(process: int) -> bool:
    """Return whether a process runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


async def test_each_worker_has_a_session_from_its_first_call_to_its_end() -> None:
    """Two workers at once have two processes; no process outlives its worker."""
    async with tools_of(OWN) as (tools, readiness):
        async with tools.session() as first, tools.session() as second:
            assert [tool.name for tool in await first.available()] == ["do"]
            processes = [(await state(worker))["process"] for worker in (first, second, first)]
        assert processes[0] == processes[2] != processes[1]
        assert [alive(process) for process in processes] == [False] * 3
        assert readiness.all == {}


async def test_workers_share_a_server_without_own_sessions() -> None:
    async with tools_of(faulty()) as (tools, _):
        async with tools.session() as first, tools.session() as second:
            processes = {(await state(worker))["process"] for worker in (first, second)}
        assert len(processes) == 1
        assert all(map(alive, processes))


async def test_a_worker_waits_while_too_many_have_a_session() -> None:
    """It gets a session when another worker ends."""
    async with tools_of(OWN) as (tools, _), tools.session() as first, tools.session() as third:
        async with tools.session() as second:
            assert [await done(first), await done(second)] == ["done", "done"]
            waiting = asyncio.create_task(state(third))
            assert not (await asyncio.wait([waiting], timeout=0.5))[0]
        assert (await waiting)["lists"] == 1


async def test_a_cancelled_worker_ends_its_session() -> None:
    """This includes a server that ignores the end of its input; its place is free again."""
    processes = []

    async with tools_of(faulty("stays", own_sessions=True, max_in_flight=1)) as (tools, _):

        async def work() -> None:
            async with tools.session() as session:
                processes.append((await state(session))["process"])
                started.set()
                await done(session, "silent")

        started = asyncio.Event()
        worker = asyncio.create_task(work())
        await started.wait()
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker
        assert not alive(processes[0])
        async with tools.session() as session:
            assert await done(session) == "done"


async def test_a_session_that_does_not_start_fails_its_calls_only(tmp_path: Path) -> None:
    """The program starts once, to list its tools, and then no more."""
    script = f"mkdir {tmp_path}/started || exit; exec " + ' "$@"'
    command = ("sh", "-c", script, "sh", sys.executable, *OWN.command[1:])
    config = ToolServerConfig(command=command, allow=("do",), own_sessions=True)
    async with pool_of(web=config, other=faulty()) as (pool, readiness):
        async with pool.view(["web", "other"]).session() as session:
            assert len(await session.available()) == 2
            failure = await done(session)
            assert failure.startswith("failed: the server is down: Connection closed")
            assert "File exists" in failure
            assert await done(session, server="other") == "done"
        assert readiness.all == {}


async def test_a_session_that_dies_fails_one_call_and_starts_again() -> None:
    """Other workers' sessions are not affected."""
    async with tools_of(OWN) as (tools, _), tools.session() as first, tools.session() as second:
        other = await state(second)
        assert await done(first, "dies") == "failed: Connection closed"
        assert (await state(second))["process"] == other["process"]
        async with asyncio.timeout(20):
            while await done(first) != "done":
                await done(second, "slow0.1")


def test_own_sessions_work_on_uvloop() -> None:
    """`serve` uses it."""

    async def main() -> str:
        async with tools_of(OWN) as (tools, _), tools.session() as session:
            return await done(session)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == "done"
