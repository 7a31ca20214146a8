"""The mini executor on real vLLM: sub-queries through the gateway (`ExecutionService`), then the very prompts of their
turns straight to the engine, with the engine's prefix cache emptied before each; both with free output and held to its
form. In each round the pairs follow one another, so compare ratios.

Without a GPU, gateway and embedder compute on the engine's cores. With --apart, the engine has half of the cores to
itself, both ways. With --searched, all searches are answered from memory, so that the embedder computes nothing.
"""

import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

import aiohttp
import grpc
import msgspec
from msgspec import Meta
from rolegate.client import GatewayError
from rolegate.v1.execution_service_pb2 import ExecuteRequest, ExecuteResponse
from rolegate.v1.execution_service_pb2_grpc import ExecutionServiceStub

from benchmarks import harness
from benchmarks.gateway import gateway
from benchmarks.harness import work_folder
from benchmarks.load import in_flight
from benchmarks.mini_deployment import MiniDeployment, mini_deployment
from benchmarks.rounds import Figure, Round, Wanted, figure, mean
from executor_sft.miniworld.export import export
from executor_sft.miniworld.world import World
from router.errors import BadRequest
from router.models import Prompt, Sampling
from router.models.connection_pool import ConnectionPool
from router.models.openai_client import OpenAIHTTP
from router.protocol.turns import turn_pattern
from router.runs import RunFilter
from router.search.executor import STOP
from router.store import SQLArchive, opened
from router.trace import Execution, Run
from serving.config.config import Config, RolesConfig
from serving.config.file import load_config, preset

_TIMEOUT_S = 600.0
"""So long that a slow machine shows in the figures, not in calls that are given up."""


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    sub_queries: Annotated[int, Meta(ge=1, description="in each round")] = 100
    in_flight: Annotated[int, Meta(ge=1, description="sub-queries at once")] = 16
    rounds: Annotated[int, Meta(ge=1, description="each with new sub-queries")] = 10
    apart: Annotated[bool, Meta(description="half of the cores for the engine, half for all others")] = False
    searched: Annotated[bool, Meta(description="work on all once before, so that no search computes")] = False


class Pair(msgspec.Struct, frozen=True):
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


class Figures(msgspec.Struct, frozen=True):
    """Means of the pairs with their spread, and the pairs."""

    figures: list[Figure]
    pairs: list[Pair]


async def measure(options: Options) -> Figures:
    """Ask both ways, in turns. Raises `RolegateError`."""
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # for emptying the prefix cache
    config, pairs = _config(), list[Pair]()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(work_folder(None))
        move_away = stack.enter_context(two_halves()) if options.apart else lambda: None
        mini = await stack.enter_async_context(mini_deployment(config))
        move_away()
        sides = [await _side(stack, structured, mini, folder) for structured in (False, True)]
        asked = export(World(7, "test"), folder / "world", 2 * options.sub_queries * (options.rounds + 1))
        fresh = iter(dict.fromkeys(one.text for question in asked for one in question.sub_queries))
        for number in range(options.rounds + 1):
            some = list(islice(fresh, options.sub_queries))
            for side in sides if number % 2 else sides[::-1]:
                if options.searched:
                    await side.executed(some, options.in_flight)
                measured = await side.round(some, options.in_flight)
                pairs += [measured] if number else []  # the first round warms up
    return Figures([each for kind in (False, True) for each in figures(pairs, kind, options.sub_queries)], pairs)


@contextmanager
def two_halves() -> Iterator[Callable[[], None]]:
    """Bind this process to half of its cores, and with it what it starts; what is yielded moves it alone to the others.
    Raises `BadRequest` where that cannot be.
    """
    if not hasattr(os, "sched_setaffinity") or len(cores := sorted(os.sched_getaffinity(0))) < 2:
        raise BadRequest("--apart: this system binds no process to cores, or has one only; leave the option out.")
    half = len(cores) // 2
    _bind(cores[:half])
    try:
        yield lambda: _bind(cores[half:])
    finally:
        _bind(cores)


def _bind(cores: Sequence[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread.name), cores)


def _config() -> Config:
    """The preset `mini` with one engine, that of the executor."""
    config, replace = load_config(preset("mini")), msgspec.structs.replace
    role = replace(config.roles.execution, thinking=False, first_token_timeout_s=_TIMEOUT_S, call_timeout_s=_TIMEOUT_S)
    return replace(
        config,
        roles=RolesConfig(delegation=role, execution=role, answer=role),
        engines={name: engine for name, engine in config.engines.items() if name == role.engine},
        versions=replace(config.versions, start=None),
        server=replace(config.server, timeout_s=_TIMEOUT_S),
    )


def figures(pairs: Sequence[Pair], structured: bool, sub_queries: int) -> list[Figure]:
    """Figures of the pairs with one kind of output."""
    some, output = [pair for pair in pairs if pair.structured == structured], "structured" if structured else "free"
    found = {
        "ratio": [Round([pair.straight_s / pair.gateway_s]) for pair in some],
        "per_s": [Round([sub_queries / pair.gateway_s]) for pair in some],
    }
    ratio = Wanted(f"throughput of the gateway to the engine's, {output} output", mean, "ratio", least=0.97)
    return [figure(ratio, found), figure(Wanted(f"sub-queries a second, {output} output", mean, "per_s"), found)]


async def _side(stack: AsyncExitStack, structured: bool, mini: MiniDeployment, folder: Path) -> "_Side":
    """A gateway with a store of its own."""
    (url,), replace = mini.engines.values(), msgspec.structs.replace
    role = replace(mini.of.roles.execution, structured=structured)
    of = replace(mini.of, roles=replace(mini.of.roles, execution=role))
    (own := folder / f"structured-{structured}").mkdir()
    config = replace(mini, of=of).config(file := own / "rolegate.toml")
    process = await stack.enter_async_context(gateway(file))
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(process.words[0]))
    session = await stack.enter_async_context(aiohttp.ClientSession())
    pool = await stack.enter_async_context(ConnectionPool())
    straight = OpenAIHTTP(pool, url, role.model, thinking=False)
    return _Side(config, ExecutionServiceStub(channel).Execute, session, straight)


@dataclass(frozen=True, slots=True)
class _Side:
    """A gateway, and the engine behind it."""

    config: Config
    execute: Callable[..., Awaitable[ExecuteResponse]]
    session: aiohttp.ClientSession
    straight: OpenAIHTTP

    async def round(self, sub_queries: Sequence[str], at_once: int) -> Pair:
        """Ask all of them, both ways."""
        await self._empty()
        begun = time.perf_counter()
        ids = await self.executed(sub_queries, at_once)
        gateway_s = time.perf_counter() - begun
        async with opened(self.config.server.store) as database:
            runs = [await SQLArchive(database).load(run_id) for run_id in ids]
        await self._empty()
        begun = time.perf_counter()
        await in_flight(self._again, runs, at_once, "straight")
        straight_s = time.perf_counter() - begun
        calls = [call for run in runs for call in run.calls]
        usages = [call.usage for call in calls if call.usage]
        return Pair(
            structured=self.config.roles.execution.structured,
            gateway_s=gateway_s,
            straight_s=straight_s,
            turns=len(calls),
            malformed=sum(call.purpose == "correction" for call in calls),
            reported=sum(isinstance(run.result, Execution) and not run.result.failed for run in runs),
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            cached_tokens=sum(usage.cached_tokens or 0 for usage in usages),
        )

    async def executed(self, sub_queries: Sequence[str], at_once: int) -> list[str]:
        """Work on all of them through the gateway; the runs, with a report or not, in the order of their beginnings."""
        begun = time.time()

        async def ask(sub_query: str) -> None:
            try:
                await self.execute(ExecuteRequest(sub_query=sub_query), timeout=_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                if GatewayError.of(error, "").reason != "MALFORMED_OUTPUT":
                    raise

        await in_flight(ask, sub_queries, at_once, "through the gateway")
        async with opened(self.config.server.store) as database:
            listed = await SQLArchive(database).list(RunFilter(kind="execute", start=begun), len(sub_queries))
        return [run.id for run in reversed(listed.runs)]

    async def _empty(self) -> None:
        """Empty the engine's prefix cache."""
        url = f"{self.straight.endpoint.removesuffix('/v1')}/reset_prefix_cache"
        async with self.session.post(url, raise_for_status=True):
            pass

    async def _again(self, run: Run) -> None:
        """Send the prompts of its turns, one after the other, straight to the engine."""
        assert isinstance(run.result, Execution)
        messages, searches = run.result.conversation.messages, 0
        role, search = self.config.roles.execution, self.config.search
        sampling = Sampling(role.max_tokens, role.temperature, role.top_p, role.seed)
        own = [at for at, message in enumerate(messages) if message.role == "assistant"]
        for turn, at in enumerate(own, 1):
            may_search = searches < search.max_searches and turn < search.max_turns
            pattern = turn_pattern(searched=searches > 0, may_search=may_search) if role.structured else None
            prompt = Prompt(messages[:at], sampling, STOP, pattern=pattern)
            await self.straight.stream(prompt, lambda _delta: None)
            searches += messages[at].content.startswith("<search>")
