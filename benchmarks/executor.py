"""The mini executor on real vLLM: sub-queries through the gateway (`ExecutionService`), then the very prompts of their
turns straight to the engine, with the engine's prefix cache emptied before each; both with free output and held to its
form. In each round the pairs follow one another, so compare ratios.

On a machine without a GPU, gateway and embedder compute on the engine's cores. With --apart, the engine has half of the
cores to itself, through the gateway and straight; should it be started again, it loses them. With --searched, all
searches are answered from memory, so that the embedder computes nothing.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from pathlib import Path

import aiohttp
import grpc
import msgspec
from rich.console import Console
from rich.table import Table
from rolegate.client import GatewayError
from rolegate.v1 import execution_service_pb2 as pb
from rolegate.v1.execution_service_pb2_grpc import ExecutionServiceStub

from benchmarks.asking import in_flight
from benchmarks.child import child
from benchmarks.core_halves import two_halves
from benchmarks.mini_deployment import MiniDeployment, mini_deployment
from executor_sft.miniworld.export import export
from executor_sft.miniworld.world import World
from router.models.model import Prompt, Sampling, gather
from router.models.openai_client import OpenAIHTTP
from router.protocol.turns import turn_pattern
from router.runs.archive import RunFilter
from router.search.executor import STOP
from router.store.archive import SQLArchive
from router.store.database import Database
from router.trace.run import Run
from router.trace.values import Execution
from serving.config.config import Config, RolesConfig
from serving.config.file import load_config, preset
from serving.files import write_atomically
from serving.logs import errors_only

_PATIENCE_S = 600.0


class Passed(msgspec.Struct, frozen=True):
    """Some sub-queries through the gateway, and their prompts straight to the engine."""

    structured: bool
    gateway_s: float
    straight_s: float
    turns: int
    malformed: int
    """Turns that had to be corrected."""
    reported: int
    """Sub-queries that came to a report."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Of the prompts', through the gateway."""

    def __str__(self) -> str:
        output = "structured" if self.structured else "free"
        return f"{output} output, {self.gateway_s:.1f} s through the gateway, {self.straight_s:.1f} s straight"


class Summary(msgspec.Struct, frozen=True):
    """All rounds with one kind of output."""

    structured: bool
    ratio: float
    """The gateway's throughput as a share of the engine's; the median of the rounds."""
    per_s: float
    """Sub-queries through the gateway; the median of the rounds."""
    turns: int
    malformed: int
    reported: int
    prompt_tokens: int
    completion_tokens: int
    cached_share: float
    """Of the prompt tokens."""


class Figures(msgspec.Struct, frozen=True):
    """What was measured."""

    sub_queries: int
    """In each round."""
    in_flight: int
    apart: bool
    """Whether the engine had cores of its own."""
    searched: bool
    prompt: str
    engine_arguments: tuple[str, ...]
    summaries: list[Summary]
    rounds: list[Passed]


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench executor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sub-queries", type=int, default=100, metavar="N", help="in each round (default: 100)")
    parser.add_argument("--in-flight", type=int, default=16, metavar="N", help="at a time (default: 16)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="each with new sub-queries (default: 3)")
    parser.add_argument("--apart", action="store_true", help="half of the cores for the engine, half for all others")
    parser.add_argument("--searched", action="store_true", help="work on all once before, so that no search computes")
    parser.add_argument("--prompt", type=Path, metavar="FILE", help="another system prompt, such as a long one")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the figures go")
    parser.add_argument("engine", nargs="*", metavar="ARGUMENT", help="of vLLM, after --, such as --block-size 64")
    given = parser.parse_args(arguments)
    errors_only()
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # for emptying the prefix cache
    figures = asyncio.run(_measured(given))
    if given.json:
        write_atomically(given.json, msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    _show(figures)
    return 0


def _config(given: argparse.Namespace) -> Config:
    """The preset `mini` with one engine, that of the executor."""
    config = load_config(preset("mini"))
    role, engine = config.roles.execution, config.engines[config.roles.execution.engine or ""]
    if given.prompt:
        role = msgspec.structs.replace(role, prompt=str(given.prompt.resolve()))
    # A slow machine shows in the figures, not in calls that are given up.
    role = msgspec.structs.replace(role, thinking=False, first_token_timeout_s=_PATIENCE_S, call_timeout_s=_PATIENCE_S)
    engine = msgspec.structs.replace(engine, arguments=(*engine.arguments, *given.engine))
    return msgspec.structs.replace(
        config,
        roles=RolesConfig(delegation=role, execution=role, answer=role),
        engines={role.engine or "": engine},
        versions=msgspec.structs.replace(config.versions, start=None),
        server=msgspec.structs.replace(config.server, timeout_s=_PATIENCE_S),
    )


async def _measured(given: argparse.Namespace) -> Figures:
    console, config = Console(stderr=True), _config(given)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        move_away = stack.enter_context(two_halves()) if given.apart else lambda: None
        mini = await stack.enter_async_context(mini_deployment(lambda step: console.print(step, style="dim"), config))
        (url,) = mini.engines.values()
        move_away()
        session = await stack.enter_async_context(aiohttp.ClientSession())
        straight = OpenAIHTTP(session, url, config.roles.execution.model, thinking=False)
        sides = [await _side(stack, structured, mini, straight, folder) for structured in (False, True)]
        fresh = iter(_sub_queries(folder / "world", given.sub_queries * (given.rounds + 1)))
        rounds: list[Passed] = []
        for number in range(given.rounds + 1):
            asked = list(islice(fresh, given.sub_queries))
            for side in sides if number % 2 else sides[::-1]:
                if given.searched:
                    await side.executed(asked, given.in_flight)
                passed = await side.passed(asked, given.in_flight, partial(_empty, session, url))
                rounds += [passed] if number else []  # the first round warms up
                console.print(f"round {number} of {given.rounds}: {passed}", style="dim")
    summaries = [_summary([one for one in rounds if one.structured == side], len(asked)) for side in (False, True)]
    return Figures(
        len(asked),
        given.in_flight,
        given.apart,
        given.searched,
        config.roles.execution.prompt,
        tuple(given.engine),
        summaries,
        rounds,
    )


async def _side(
    stack: AsyncExitStack, structured: bool, mini: MiniDeployment, straight: OpenAIHTTP, folder: Path
) -> "_Side":
    """A gateway with a store of its own."""
    file, store = folder / f"structured-{structured}.toml", f"sqlite:///{folder}/structured-{structured}.db"
    role = msgspec.structs.replace(mini.of.roles.execution, structured=structured)
    roles = msgspec.structs.replace(mini.of.roles, execution=role)
    config = msgspec.structs.replace(mini, of=msgspec.structs.replace(mini.of, roles=roles)).config(file, store)
    gateway = await stack.enter_async_context(child("benchmarks.gateway_child", str(file), "--quiet"))
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(gateway.told[0]))
    database = await Database.open(store)
    stack.push_async_callback(database.close)
    return _Side(structured, channel, SQLArchive(database), straight, config)


def _sub_queries(folder: Path, count: int) -> list[str]:
    """Different ones about the demo's world."""
    asked = export(World(7, "test"), folder, 2 * count)
    return list(dict.fromkeys(one.text for question in asked for one in question.sub_queries))[:count]


def _summary(rounds: Sequence[Passed], sub_queries: int) -> Summary:
    prompt_tokens = sum(one.prompt_tokens for one in rounds)
    return Summary(
        structured=rounds[0].structured,
        ratio=statistics.median(one.straight_s / one.gateway_s for one in rounds),
        per_s=statistics.median(sub_queries / one.gateway_s for one in rounds),
        turns=sum(one.turns for one in rounds),
        malformed=sum(one.malformed for one in rounds),
        reported=sum(one.reported for one in rounds),
        prompt_tokens=prompt_tokens,
        completion_tokens=sum(one.completion_tokens for one in rounds),
        cached_share=sum(one.cached_tokens for one in rounds) / prompt_tokens,
    )


async def _empty(session: aiohttp.ClientSession, url: str) -> None:
    async with session.post(f"{url.removesuffix('/v1')}/reset_prefix_cache", raise_for_status=True):
        pass


class _Side:
    """A gateway, and the engine behind it."""

    def __init__(
        self,
        structured: bool,
        channel: grpc.aio.Channel,
        archive: SQLArchive,
        straight: OpenAIHTTP,
        config: Config,
    ) -> None:
        self._structured, self._archive, self._straight = structured, archive, straight
        self._execute = ExecutionServiceStub(channel).Execute
        role, self._search = config.roles.execution, config.search
        self._sampling = Sampling(role.max_tokens, role.temperature, role.top_p, role.seed)

    async def passed(self, sub_queries: Sequence[str], at_once: int, empty: Callable[[], Awaitable[None]]) -> Passed:
        """All of them, both ways."""
        await empty()
        begun = time.perf_counter()
        runs = await self.executed(sub_queries, at_once)
        gateway_s = time.perf_counter() - begun
        found = [await self._archive.load(run_id) for run_id in runs]
        await empty()
        begun = time.perf_counter()
        await in_flight(lambda number: self._again(found[number]), len(found), at_once)
        return self._counted(found, gateway_s, time.perf_counter() - begun)

    async def executed(self, sub_queries: Sequence[str], at_once: int) -> list[str]:
        """The runs of all of them through the gateway, with a report or not, in the order of their beginnings."""
        begun = time.time()

        async def ask(number: int) -> None:
            try:
                await self._execute(pb.ExecuteRequest(sub_query=sub_queries[number]), timeout=_PATIENCE_S)
            except grpc.aio.AioRpcError as error:
                if GatewayError.of(error, "").reason != "MALFORMED_OUTPUT":
                    raise

        await in_flight(ask, len(sub_queries), at_once)
        listed = await self._archive.list(RunFilter(kind="execute", start=begun), len(sub_queries))
        return [run.id for run in reversed(listed.runs)]

    async def _again(self, run: Run) -> None:
        """The prompts of its turns, one after the other, straight to the engine."""
        assert isinstance(run.result, Execution)
        messages, searches = run.result.conversation.messages, 0
        own = [at for at, message in enumerate(messages) if message.role == "assistant"]
        for turn, at in enumerate(own, 1):
            may_search = searches < self._search.max_searches and turn < self._search.max_turns
            pattern = turn_pattern(searched=searches > 0, may_search=may_search) if self._structured else None
            prompt = Prompt(messages[:at], self._sampling, STOP, pattern=pattern)
            async with self._straight.stream(prompt) as deltas:
                await gather(deltas, lambda _delta: None)
            searches += messages[at].content.startswith("<search>")

    def _counted(self, runs: Sequence[Run], gateway_s: float, straight_s: float) -> Passed:
        calls = [call for run in runs for call in run.calls]
        usages = [call.usage for call in calls if call.usage]
        return Passed(
            structured=self._structured,
            gateway_s=gateway_s,
            straight_s=straight_s,
            turns=len(calls),
            malformed=sum(call.purpose == "correction" for call in calls),
            reported=sum(isinstance(run.result, Execution) and not run.result.failed for run in runs),
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            cached_tokens=sum(usage.cached_tokens or 0 for usage in usages),
        )


def _show(figures: Figures) -> None:
    table = Table("output", "ratio", "per s", "malformed", "reported", "tokens", "cached")
    for one in figures.summaries:
        table.add_row(
            "structured" if one.structured else "free",
            f"{one.ratio:.3f}",
            f"{one.per_s:.1f}",
            f"{one.malformed} of {one.turns}",
            str(one.reported),
            f"{one.prompt_tokens} + {one.completion_tokens}",
            f"{one.cached_share:.3f}",
        )
    Console().print(table)
