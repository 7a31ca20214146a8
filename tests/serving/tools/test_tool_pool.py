"""A pool of real child processes that speak MCP, some of them faulty."""

import asyncio
import json
import os
import random
import time
import tracemalloc

import pytest
import uvloop

from router.calls import Readiness
from router.errors import ToolFailed
from router.search.tools import Tool
from serving.config.config import ToolServerConfig
from serving.tools.pool import tool_pool
from tests.serving.tools.faulty_server import ANSWERS, FAULTS, HOSTILE
from tests.serving.tools.pools import DO, done, faulty, pool_of, state, tools_of, until


async def test_tools_are_allowed_by_name() -> None:
    """Other tools, and tools of servers outside the view, are neither listed nor called."""
    async with pool_of(web=faulty(), other=faulty(), idle=faulty(allow=())) as (pool, _):
        view = pool.view(["idle", "web"])
        (tool,) = await view.available()
        assert (tool.server, tool.name, tool.description) == ("web", "do", "Does it.")
        assert tool.parameters == {"type": "object", "properties": {"fault": {"type": "string"}}}
        assert await done(view) == "done"
        for server, name in (
            ("web", "secret"),
            ("web", "nothing"),
            ("idle", "do"),
            ("other", "do"),
        ):
            with pytest.raises(ToolFailed, match=r"has no tool|may not call this server"):
                await view.call(Tool(server, name, "", {}), {})


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in ("silent", "dies")])
async def test_a_fault_fails_one_call_only(fault: str) -> None:
    """It fails quickly, other calls succeed, and the server is not restarted."""
    async with tools_of(faulty(timeout_s=15)) as (tools, readiness):
        before = await state(tools)
        began = time.monotonic()
        *beside, failed = await asyncio.gather(
            *(done(tools, "slow0.1") for _ in range(3)), done(tools, fault)
        )
        assert failed.startswith("failed: ")
        assert time.monotonic() - began < 10
        assert beside == ["done"] * 3
        assert (await state(tools))["process"] == before["process"]
        assert readiness.all == {}


async def test_a_call_that_times_out_is_cancelled_at_the_server() -> None:
    """Its slot is free again."""
    async with tools_of(faulty(timeout_s=2, max_in_flight=1)) as (tools, _):
        failed = "failed: the call took over 2 s; raise `timeout_s`"
        assert await done(tools, "silent") == failed
        assert len((await state(tools))["cancelled"]) == 1


async def test_a_cancelled_call_is_cancelled_at_the_server() -> None:
    """Its slot is free again."""
    async with tools_of(faulty(max_in_flight=1)) as (tools, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await tools.call(DO, {"fault": "silent"})
        assert len((await state(tools))["cancelled"]) == 1


async def test_calls_of_a_dead_server_fail_until_it_runs_again() -> None:
    """They fail immediately."""
    async with tools_of(faulty()) as (tools, readiness):
        before = await state(tools)
        ends = await asyncio.gather(done(tools, "silent"), done(tools, "dies"))
        assert set(ends) == {"failed: Connection closed"}
        await until(readiness, down=True)
        assert readiness.all["tools.web"] == (
            [],
            "Connection closed; the server's last line of standard error: its last words",
        )
        assert (await done(tools)).startswith("failed: the server is down: Connection closed")
        await until(readiness, down=False)
        assert (await state(tools))["process"] != before["process"]


async def test_a_server_that_dies_without_calls_is_restarted() -> None:
    async with tools_of(faulty()) as (tools, readiness):
        os.kill((await state(tools))["process"], 9)
        await until(readiness, down=True)
        await until(readiness, down=False)
        assert await done(tools) == "done"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            faulty("dies"),
            "Connection closed; the server's last line of standard error: there is no licence",
        ),
        (faulty("silent", timeout_s=0.5), "did not answer in time"),
        (faulty("invalid", timeout_s=0.5), "did not answer in time"),
        (ToolServerConfig(command=("no-such-program",)), "there is no program no-such-program"),
        (ToolServerConfig(command=("cat",)), "Method not found"),
        (ToolServerConfig(url="http://127.0.0.1:9/mcp"), "All connection attempts failed"),
    ],
)
async def test_a_server_that_does_not_start_has_no_tools(
    config: ToolServerConfig, why: str
) -> None:
    """Its calls fail and health says why; the other servers work."""
    async with pool_of(web=config, good=faulty()) as (pool, readiness):
        view = pool.view(["web", "good"])
        assert [tool.server for tool in await view.available()] == ["good"]
        assert (await done(view)).startswith(f"failed: the server is down: {why}")
        assert await done(view, server="good") == "done"
        assert list(readiness.all) == ["tools.web"]


async def test_an_announced_change_refreshes_the_tools() -> None:
    async with tools_of(faulty()) as (tools, _):
        for number in range(3):
            assert await done(tools, "changes") == "done"
            async with asyncio.timeout(10):
                while f"p{number}" not in (await tools.available())[0].parameters["properties"]:
                    await state(tools)


async def test_permanently_changing_tools_are_listed_after_a_pause() -> None:
    """Calls work meanwhile."""
    async with tool_pool({"web": faulty("restless")}, Readiness(), first_pause_s=3600) as pool:
        tools = pool.view(["web"])
        assert {await done(tools) for _ in range(20)} == {"done"}
        assert (await state(tools))["lists"] == 1


async def test_outputs_are_unchanged_up_to_the_limit() -> None:
    """They are cut at `max_chars`, and not checked against the server's schemas."""
    async with tools_of(faulty(max_chars=1000)) as (tools, _):
        assert await done(tools, "hostile") == HOSTILE
        assert await done(tools, "wide") == "y" * 1000
        assert await done(tools, "noise") == "done"
        assert await done(tools, "patterned") == "done"
        refused = await done(tools, "\ud800")
        assert refused == (
            "failed: a text in the arguments has half of a surrogate pair; call the tool without it"
        )
        assert await done(tools) == "done"


async def test_an_answer_that_is_too_long_takes_bounded_memory() -> None:
    """An answer of ten megabytes never takes more than twice the bound."""
    async with tools_of(faulty()) as (tools, _):
        tracemalloc.start()
        try:
            assert "or longer than `max_chars`" in await done(tools, "long")
            assert tracemalloc.get_traced_memory()[1] < 5_000_000
        finally:
            tracemalloc.stop()


async def test_a_server_s_environment_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the few variables that programs need, and those that its section names."""
    monkeypatch.setenv("A_KEY_OF_THE_GATEWAY", "sesame")
    monkeypatch.setenv("A_KEY_OF_THE_SERVER", "simsalabim-sesame")
    async with tools_of(faulty(env=("A_KEY_OF_THE_SERVER",))) as (tools, _):
        variables = json.loads(await done(tools, "environment"))
    assert set(variables) - {"PATH", "HOME", "LANG", "LC_CTYPE"} == {"A_KEY_OF_THE_SERVER"}


async def test_a_key_in_outputs_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is masked in whole and cut outputs, failures, health and tool descriptions."""
    monkeypatch.setenv("A_KEY_OF_THE_SERVER", "simsalabim-sesame")
    async with pool_of(web=faulty(env=("A_KEY_OF_THE_SERVER",), max_chars=1000)) as (
        pool,
        readiness,
    ):
        tools = pool.view(["web"])
        (do,) = await tools.available()
        assert (do.description, do.parameters["examples"]) == ("Does it.***", [{"***": "***"}])
        assert (await done(tools, "at the cut")).endswith("zz***")
        link = await tools.call(DO, {"fault": "link"})
        assert (link.title, link.address) == ("of ***", "http://pages/***")
        texts = [await done(tools, fault) for fault in ("environment", "error", "dies")]
        await until(readiness, down=True)
        texts.append(str(readiness.all))
    assert [text.count("***") for text in texts] == [1, 1, 0, 1]
    assert "sesame" not in "".join(texts)


def test_the_pool_works_on_uvloop() -> None:
    """`serve` uses it, and its pipes differ from asyncio's."""

    async def main() -> list[str]:
        async with pool_of(web=faulty(), dead=faulty("dies")) as (pool, readiness):
            tools = pool.view(["web", "dead"])
            assert [tool.server for tool in await tools.available()] == ["web"]
            ends = [await done(tools, fault) for fault in ("", "long", "dies")]
            await until(readiness, down=True)
            await until(readiness, down=False)
            return [*ends, await done(tools)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == [
            "done",
            "failed: the answer is compressed (turn that off), or longer than `max_chars` "
            "(ask for less)",
            "failed: Connection closed",
            "done",
        ]


@pytest.mark.parametrize("start", ["", "stays"])
async def test_servers_end_with_the_pool(start: str) -> None:
    """This includes a server that ignores the end of its input."""
    async with tools_of(faulty(start)) as (tools, _):
        process = (await state(tools))["process"]
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


async def test_calls_in_flight_are_limited_over_all_views() -> None:
    """This holds if calls fail, too."""
    async with pool_of(web=faulty(max_in_flight=3)) as (pool, _):
        views = [pool.view(["web"]) for _ in range(4)]
        luck = random.Random(7)
        faults = [
            luck.choice(["slow0.01", "slow0.02", "fails", "error", "no result"]) for _ in range(80)
        ]
        ends = await asyncio.gather(*(done(views[n % 4], fault) for n, fault in enumerate(faults)))
        counters = await state(views[0])
    assert [end == "done" for end in ends] == [fault.startswith("slow") for fault in faults]
    assert counters["most"] == 3


async def test_two_hundred_faults_leave_a_good_server_undisturbed() -> None:
    """Each call ends in time with an output or a failure."""
    luck = random.Random(22)
    timeout_s = 1.5
    waiting = [luck.choice([*ANSWERS, "dies", "slow0.05", ""]) for _ in range(200)]
    ends = dict[str, set[bool]]()
    longest = 0.0
    outcomes = list[str]()
    async with pool_of(web=faulty(timeout_s=timeout_s, max_in_flight=6), good=faulty()) as (
        pool,
        readiness,
    ):
        view = pool.view(["web"])
        healthy = pool.view(["good"])

        async def work() -> None:
            nonlocal longest
            while waiting:
                fault = waiting.pop()
                while await done(view) != "done":  # another worker's call has ended it
                    await until(readiness, down=False)
                    await asyncio.sleep(0)
                began = time.monotonic()
                ends.setdefault(fault, set()).add((await done(view, fault)).startswith("failed: "))
                longest = max(longest, time.monotonic() - began)

        async def look_after() -> None:
            while waiting:
                outcomes.append(await done(healthy, "slow0.01", "good"))

        await view.available()
        began = time.monotonic()
        await asyncio.gather(look_after(), *(work() for _ in range(6)))
        took_s = time.monotonic() - began
    print(
        f"\n200 faults in {took_s:.1f} s, the longest call {longest:.2f} s of "
        f"{timeout_s} s; {len(outcomes)} calls to the good server"
    )
    assert all(ends[fault] == {True} for fault in FAULTS)
    assert all(False in ends[fault] for fault in ("hostile", "noise", "wide", ""))
    assert set(outcomes) == {"done"}
    assert longest < timeout_s + 5  # the machine may be busy


@pytest.mark.timing
async def test_eight_workers_are_faster_than_one() -> None:
    """They finish the calls to a paced server much sooner."""
    took = {}
    async with tools_of(faulty(max_in_flight=8)) as (tools, _):
        for workers in (1, 8):
            began = time.monotonic()
            places = asyncio.Semaphore(workers)

            async def work(places: asyncio.Semaphore) -> None:
                async with places:
                    assert await done(tools, "slow0.05") == "done"

            await asyncio.gather(*(work(places) for _ in range(20)))
            took[workers] = time.monotonic() - began
    print(
        f"\n20 calls of 50 ms: one worker {took[1]:.2f} s, eight {took[8]:.2f} s, "
        f"{took[1] / took[8]:.1f} times as fast"
    )
    assert took[1] / took[8] > 3
