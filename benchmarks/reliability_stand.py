"""Gateways to be asked while all fails: played models or real ones behind fault proxies, and clients."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rolegate.client import AsyncClient
from sqlalchemy import Connection

from benchmarks.gateway import OnePassage, at_once, canned_config, retrieval
from benchmarks.load import ANSWERED, Ended, Outcomes, ask_until, question
from benchmarks.mini_deployment import mini_deployment
from benchmarks.reliability_checks import Accounts, compared
from executor_sft.miniworld.export import export, over, write_config
from executor_sft.miniworld.world import World
from router.background import background_tasks
from router.store import opened
from router.testing.fault_proxy import (
    FAULTS,
    SEARCH_FAULTS,
    Fault,
    FaultPlan,
    FaultProxy,
    FaultyRetriever,
    fault_proxies,
)
from router.testing.openai_server import ChatRequest, OpenAIServer, Reply, serving, writes
from serving.config.file import load_config, preset

Value = TypeVar("Value")
BACKBONES, EXECUTORS = 2, 3
CUT: tuple[Fault, ...] = ("cut",)
"""Leaves the upstream's own count comparable with the ledger."""
_AGAIN_SHARE = 0.5
"""The share of the cut questions that are asked again."""
_HURRIED_SHARE, _LEAST_S = 0.2, 0.5
PAUSE_S = 0.5
_WORLD, _WORLD_QUESTIONS, _WORLD_S = 31, 20_000, 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part keeps what it writes, and the seed of what fails in it."""

    folder: Path
    """Named after the part."""
    seed: int
    store: str
    """The address of its database."""

    @property
    def settings(self) -> dict[str, str]:
        """Settings of a gateway; a file has its log beside it."""
        return {"store": self.store} | ({} if self.store.startswith("sqlite") else {"log": f"{self.folder}/logs"})


class PartFigures(msgspec.Struct, frozen=True):
    """Figures of one part."""

    part: str
    ended: Outcomes
    lag_ms: float
    """How late this process itself was at most, as clients, proxies and played models run in it."""
    faults: dict[str, int]
    accounts: Accounts


@dataclass(slots=True)
class Stand:
    """A gateway's config, the proxies before its upstreams, and clients that ask it."""

    config: Path
    deployments: Mapping[str, FaultProxy]
    """By the name that the ledger has for what is behind it."""
    plans: Sequence[FaultPlan]
    timeout_s: float
    chance: random.Random
    store: str
    """The address of its database."""
    questions: Iterator[str]
    """New ones, no two of which have one name."""
    models: Sequence[OpenAIServer] = ()
    """Those that are played."""
    ended: list[Ended] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    """Questions that are to be asked again, as the gateway ended before they did."""
    happened: Counter[str] = field(default_factory=Counter)
    """What was done to gateways and their database."""
    shared: bool = False
    """Whether several gateways have the database, none of which reads another one's log."""
    lag_s: float = 0.0

    @property
    def spent(self) -> int:
        """Tokens of all calls that came, as played models count them."""
        return sum(model.tokens.total() for model in self.models)

    def fail(self, share: float) -> None:
        """Let this share of calls go wrong from now on."""
        for plan in self.plans:
            plan.share = share

    async def read(self, query: Callable[[Connection], Value]) -> Value:
        """Read the gateway's store."""
        async with opened(self.store) as database:
            return await database.read(query)

    async def watch(self) -> None:
        """See how late this process is, for ever."""
        while True:
            due = time.perf_counter() + 0.05
            await asyncio.sleep(0.05)
            self.lag_s = max(self.lag_s, time.perf_counter() - due)

    async def ask(self, client: AsyncClient, text: str, *, hurried_share: float = _HURRIED_SHARE) -> Ended | None:
        """Ask a question, sometimes with less time than the gateway gives; None where the gateway is gone."""
        hurried = self.chance.random() < hurried_share
        deadline_s = self.chance.uniform(_LEAST_S, self.timeout_s) if hurried else self.timeout_s
        ended = await ask_until(client, text, deadline_s, hurried=hurried)
        if ended.outcome.startswith("UNAVAILABLE,"):
            if self.chance.random() < _AGAIN_SHARE:
                self.cut.append(text)
            return None
        self.ended.append(ended)
        return ended

    async def keep_asking(self, address: str, texts: Iterator[str], at_once: int) -> None:
        """Ask, until there is nothing to ask or the gateway is gone."""

        async def work(client: AsyncClient) -> None:
            for text in texts:
                if (ended := await self.ask(client, text)) is None:
                    return
                if ended.outcome != ANSWERED:
                    await asyncio.sleep(PAUSE_S)

        async with AsyncClient(address) as client, asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work(client))

    async def figures(self) -> PartFigures:
        """Sum up, once the gateway has ended."""
        faults = sum((plan.seen for plan in self.plans), self.happened)
        seen = {name: proxy.attempts for name, proxy in self.deployments.items()}
        counted = {name: usage for proxy in self.deployments.values() for name, usage in proxy.counted.items()}
        shown = {name: told for proxy in self.deployments.values() for name, told in proxy.conversations.items()}
        found = await self.read(lambda connection: compared(connection, self.ended, seen, counted, shown))
        if self.shared:
            found = msgspec.structs.replace(found, begun_anew=[])
        name, ended = self.config.parent.name, Outcomes.of(self.ended)
        return PartFigures(name, ended, self.lag_s * 1000, dict(faults.most_common()), found)


@asynccontextmanager
async def canned(
    place: Place, faults: Sequence[Fault], timeout_s: float = 8.0, pace: float = 0.0
) -> AsyncIterator[Stand]:
    """Played models with replicas, and a retrieval, behind fault proxies. `pace`: tokens a second; 0 for all at
    once.
    """

    def reply(asked: ChatRequest) -> Reply:
        return Reply(at_once(asked).tokens, (), 0.05, lambda: 1 / pace) if pace else at_once(asked)

    searching = FaultPlan(f"{place.seed} retrieval", 0.0, SEARCH_FAULTS)
    async with AsyncExitStack() as stack:
        models = [await stack.enter_async_context(serving(recording=False)) for _ in range(BACKBONES + EXECUTORS)]
        for model in models:
            model.plays(writes(reply))
        address = await stack.enter_async_context(retrieval(FaultyRetriever(OnePassage(), searching)))
        upstreams = [model.base_url for model in models]
        proxies = await stack.enter_async_context(fault_proxies(upstreams, place.seed, faults))
        urls = [proxy.base_url for proxy in proxies]
        waits = {"first_token_timeout_s": timeout_s / 8, "call_timeout_s": timeout_s / 2}
        executors = {"base_url": urls[BACKBONES], "replicas": urls[BACKBONES + 1 :], "fallbacks": ["delegation"]}
        roles: dict[str, dict[str, Any]] = {"delegation": waits, "execution": waits | executors, "answer": waits}
        settings = {"timeout_s": timeout_s, **place.settings}
        config = canned_config(place.folder, urls[:BACKBONES], address, roles, server=settings)
        plans = [*([searching] if faults == FAULTS else []), *(proxy.plan for proxy in proxies)]
        deployments, texts = dict(zip(urls, proxies, strict=True)), map(question, count())
        stand = Stand(config, deployments, plans, timeout_s, random.Random(place.seed), place.store, texts, models)
        await stack.enter_async_context(background_tasks(stand.watch()))
        yield stand


@asynccontextmanager
async def deployed(place: Place) -> AsyncIterator[Stand]:
    """The demo's models on real vLLM over a world that they have not seen, behind fault proxies."""
    world, replace = place.folder / "world", msgspec.structs.replace
    texts = dict.fromkeys(one.text for one in export(World(_WORLD, "test"), world, _WORLD_QUESTIONS))
    async with (
        mini_deployment(over(load_config(preset("mini")), world)) as mini,
        fault_proxies(list(mini.engines.values()), place.seed, CUT) as proxies,
    ):
        deployments, plans = {proxy.base_url: proxy for proxy in proxies}, [proxy.plan for proxy in proxies]
        engines = dict(zip(mini.engines, deployments, strict=True))
        config = replace(mini, engines=engines).config(file := place.folder / "rolegate.toml")
        write_config(replace(config, server=replace(config.server, timeout_s=_WORLD_S, **place.settings)), file)
        stand = Stand(file, deployments, plans, _WORLD_S, random.Random(place.seed), place.store, iter(texts))
        async with background_tasks(stand.watch()):
            yield stand
