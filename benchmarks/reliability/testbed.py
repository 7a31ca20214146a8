"""Test bed: the config of a gateway under test, failing upstreams (simulated or real), and the
gateway's clients.
"""

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from rolegate.client import AsyncClient

from benchmarks.gateway import OnePassage, at_once, canned_config, retrieval
from benchmarks.load import ANSWERED, LoadResult, ask_until, question
from benchmarks.mini_deployment import mini_deployment
from executor_sft.miniworld.export import export, over, write_config
from executor_sft.miniworld.world import World
from router.background import background_tasks
from router.frozen import Frozen
from router.testing.fault_proxy import (
    FAULTS,
    SEARCH_FAULTS,
    Fault,
    FaultPlan,
    FaultProxy,
    FaultyRetriever,
    fault_proxies,
)
from router.testing.openai_server import ChatRequest, Reply, serving, writes
from serving.config.file import load_config, preset

COLUMNS = "part*, maker, made:integer"
"""Columns of the tables that clients ask for."""
_BACKBONES = 2
_EXECUTORS = 3
_CUT: tuple[Fault, ...] = ("cut",)
"""The kind of fault that ends a stream early. It does not falsify the upstreams' token counts, so
parts that compare the ledger with these counts inject only this fault.
"""
_AGAIN_SHARE = 0.5
"""Share of the interrupted questions that are asked again; interrupted tables are always requested
again.
"""
_HURRIED_SHARE = 0.2
"""Share of the questions for which the client sets a shorter deadline than the gateway."""
_MIN_S = 0.5
"""Min seconds of a client's shorter deadline."""
_PAUSE_S = 0.5
"""Seconds that a client waits after an error."""
_WORLD = 31
_WORLD_QUESTIONS = 20_000


class Conditions(Frozen):
    """Conditions of a part of the benchmark."""

    timeout_s: float
    """Deadline of the gateway for a request, in seconds."""
    faults: tuple[Fault, ...] = _CUT
    """Kinds of faults that are injected."""
    pace: float = 0.0
    """Speed of simulated models, in tokens per second; 0 for no delay."""
    columns: str = ""
    """Columns of the tables that clients ask for; empty if they ask for answers."""
    real: bool = False
    """True for the demo's models on vLLM, False for simulated models."""


@dataclass(slots=True)
class TestBed:
    """State of a part: the config of the gateway under test, proxies in front of the upstreams, and
    the clients' questions and results.
    """

    config: Path
    conditions: Conditions
    proxies: Sequence[FaultProxy]
    plans: Sequence[FaultPlan]
    questions: Iterator[str]
    """Questions that were not asked yet; all are different."""
    chance: random.Random
    ended: list[LoadResult] = field(default_factory=list)
    """Results that clients received."""
    cut: list[str] = field(default_factory=list)
    """Interrupted questions to ask again. The gateway was killed while it worked on them."""
    tables: dict[str, str] = field(default_factory=dict)
    """Tables that clients received, as text (`rows_of`); keys are questions."""
    lag_s: float = 0.0
    """Max delay of this process's event loop, in seconds. The measured delays of requests include
    it.
    """

    @property
    def faults(self) -> Counter[str]:
        """Number of calls into which a fault was injected, by the kind of fault."""
        return sum((plan.seen for plan in self.plans), Counter[str]())

    def fail(self, share: float) -> None:
        """Set the share of calls into which faults are injected."""
        for plan in self.plans:
            plan.share = share

    async def watch(self) -> None:
        """Measure the delay of this process's event loop until cancelled."""
        while True:
            due = time.perf_counter() + 0.05
            await asyncio.sleep(0.05)
            self.lag_s = max(self.lag_s, time.perf_counter() - due)

    async def ask(self, client: AsyncClient, text: str) -> LoadResult | None:
        """Ask a question; record the result and return it. For some questions, the client sets a
        shorter deadline than the gateway. Return None if the gateway ended before the answer.
        """
        columns = self.conditions.columns
        deadline_s = self.conditions.timeout_s
        hurried = not columns and self.chance.random() < _HURRIED_SHARE
        if hurried:
            deadline_s = self.chance.uniform(_MIN_S, deadline_s)
        ended = await ask_until(
            client,
            text,
            deadline_s,
            hurried=hurried,
            columns=columns,
        )
        if ended.outcome.startswith("UNAVAILABLE,"):
            if columns or self.chance.random() < _AGAIN_SHARE:
                self.cut.append(text)
            return None
        self.ended.append(ended)
        if ended.rows:
            self.tables[text] = ended.rows
        return ended

    async def keep_asking(self, address: str, texts: Iterator[str], concurrency: int) -> None:
        """Ask the gateway at `address` the questions `texts`, with `concurrency` in flight, until
        no question is left or the gateway has ended.
        """

        async def work(client: AsyncClient) -> None:
            for text in texts:
                if (ended := await self.ask(client, text)) is None:
                    return
                if ended.outcome != ANSWERED:
                    await asyncio.sleep(_PAUSE_S)

        async with AsyncClient(address) as client, asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work(client))


@asynccontextmanager
async def opened_bed(
    conditions: Conditions,
    folder: Path,
    store: str,
    seed: int,
) -> AsyncIterator[TestBed]:
    """Start upstreams behind fault proxies, and write the gateway's config into `folder`. Stop the
    upstreams on exit. `store`: URL of the gateway's database. `seed`: seed of the faults.
    """
    server = {"timeout_s": conditions.timeout_s, "store": store}
    if not store.startswith("sqlite"):
        server["log"] = f"{folder}/logs"
    open_upstreams = _deployed if conditions.real else _canned
    async with AsyncExitStack() as stack:
        config, proxies, searching, questions = await open_upstreams(
            stack,
            conditions,
            folder,
            server,
            seed,
        )
        plans = [*searching, *(proxy.plan for proxy in proxies)]
        bed = TestBed(
            config,
            conditions,
            proxies,
            plans,
            questions,
            random.Random(seed),
        )
        await stack.enter_async_context(background_tasks(bed.watch()))
        yield bed


_Upstreams = tuple[Path, list[FaultProxy], list[FaultPlan], Iterator[str]]
"""Path of the gateway's config, proxies in front of the models, fault plans of the retrieval (one
at most), and questions to ask.
"""


async def _canned(
    stack: AsyncExitStack,
    conditions: Conditions,
    folder: Path,
    server: dict[str, Any],
    seed: int,
) -> _Upstreams:
    """Start simulated models with replicas behind fault proxies, and a retrieval service."""
    enter = stack.enter_async_context
    pace = conditions.pace
    columns = conditions.columns

    def reply(asked: ChatRequest) -> Reply:
        whole = Reply.of(tabular(asked)) if columns else at_once(asked)
        return Reply(whole.tokens, 0.05, lambda: 1 / pace) if pace else whole

    models = [await enter(serving()) for _ in range(_BACKBONES + _EXECUTORS)]
    for model in models:
        model.plays(writes(reply))
    searching = FaultPlan(f"{seed} retrieval", 0.0, SEARCH_FAULTS)
    address = await enter(retrieval(FaultyRetriever(OnePassage(), searching)))
    upstreams = [model.base_url for model in models]
    proxies = await enter(fault_proxies(upstreams, seed, conditions.faults))

    urls = [proxy.base_url for proxy in proxies]
    timeout_s = conditions.timeout_s
    waits: dict[str, Any] = {
        "first_token_timeout_s": timeout_s / 8,
        "call_timeout_s": timeout_s / 2,
        # More attempts for tables, because a call whose last attempt fails would change the table
        "attempts": 6 if columns else 3,
    }
    executors = {
        "base_url": urls[_BACKBONES],
        "replicas": urls[_BACKBONES + 1 :],
        "fallbacks": ["delegation"],
    }
    config = canned_config(
        folder,
        urls[:_BACKBONES],
        address,
        {"delegation": waits, "execution": waits | executors, "answer": waits},
        server=server,
        table={"timeout_s": timeout_s},
    )
    faulty_search = [searching] if conditions.faults == FAULTS else []
    return config, proxies, faulty_search, map(question, count())


async def _deployed(
    stack: AsyncExitStack,
    conditions: Conditions,
    folder: Path,
    server: dict[str, Any],
    seed: int,
) -> _Upstreams:
    """Start the demo's models on real vLLM behind fault proxies, with questions about an unseen
    world.
    """
    world = folder / "world"
    questions = export(World(_WORLD, "test"), world, _WORLD_QUESTIONS)
    mini = await stack.enter_async_context(
        mini_deployment(over(load_config(preset("mini")), world))
    )
    upstreams = list(mini.engines.values())
    proxies = await stack.enter_async_context(fault_proxies(upstreams, seed, conditions.faults))
    urls = [proxy.base_url for proxy in proxies]
    engines = dict(zip(mini.engines, urls, strict=True))
    file = folder / "rolegate.toml"
    config = replace(mini, engines=engines).config(file)
    write_config(replace(config, server=replace(config.server, **server)), file)
    return file, proxies, [], iter(dict.fromkeys(question.text for question in questions))


_ASKS = '<ask column="maker">Who made {part}?</ask><ask column="made">When was {part} made?</ask>'


def tabular(asked: ChatRequest) -> str:
    """Return the text that a simulated model writes to fill a table with `COLUMNS`. Names and
    values repeat the numbers in the question, so that different tables have different content.
    """
    about = asked.texts[1]
    turns = len(asked.texts)
    numbers = re.findall(r"\d+", about)[:4]
    name = "-".join(numbers)
    if "<columns>" in about and turns > 4:
        return "<stop/>Enough evidence<stop>"
    if "<columns>" in about:
        shelves = [f"Which parts are on shelf {name}-{turns}-{number}?" for number in range(2)]
        return f"<search>{json.dumps(shelves)}</search>{_ASKS}"
    if turns == 2:
        return f"<search>{about}</search>"
    if "shelf" in about:
        answer = "\n".join(f"Part {name}-{number}" for number in range(4))
    else:
        last = int(numbers[-1])
        maker = "Michael Mann" if last % 3 else "not found"
        answer = f"maker: {maker}\nmade: {1943 + last}"
    return f"<answer>{answer}</answer>\n<evidence>Heat is a film by Michael Mann</evidence>"
