"""Gateway under test with failing upstreams, simulated or real, and checks of what clients,
upstreams and the store saw.
"""

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rolegate.client import AsyncClient
from sqlalchemy import Connection, func, select

from benchmarks.gateway import OnePassage, at_once, canned_config, retrieval
from benchmarks.harness import Check
from benchmarks.load import ANSWERED, LoadResult, Outcomes, ask_until, question
from benchmarks.mini_deployment import mini_deployment
from executor_sft.miniworld.export import export, over, write_config
from executor_sft.miniworld.world import World
from router.background import background_tasks
from router.store import opened
from router.store.schema import CALLS, RUNS, run_of
from router.testing.fault_proxy import (
    FAULTS,
    SEARCH_FAULTS,
    Counted,
    Fault,
    FaultPlan,
    FaultProxy,
    FaultyRetriever,
    fault_proxies,
)
from router.testing.openai_server import ChatRequest, OpenAIServer, Reply, serving, writes
from router.trace import Run
from router.trace.call import COMPLETE_OUTCOMES
from serving.config.file import load_config, preset

Value = TypeVar("Value")
BACKBONES = 2
EXECUTORS = 3
CUT: tuple[Fault, ...] = ("cut",)
"""Fault after which the upstream's own token count is still comparable with the ledger."""
_AGAIN_SHARE = 0.5
"""Share of the interrupted questions that are asked again."""
_HURRIED_SHARE = 0.2
_MIN_S = 0.5
_PAUSE_S = 0.5
_WORLD = 31
_WORLD_QUESTIONS = 20_000
_WORLD_S = 60.0


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between the store and what clients and upstreams saw; all lists should be
    empty.
    """

    attempts: int
    """Attempts that reached an upstream."""
    rows: dict[str, int]
    """Rows of the ledger by outcome."""
    unaccounted: list[str]
    """Attempts that reached an upstream, but are not in the ledger or at another deployment there.
    """
    again: list[str]
    """Attempts that reached upstreams more than once."""
    invented: list[str]
    """Rows of ended attempts that reached no upstream."""
    miscounted: list[str]
    """Completed calls whose tokens the upstream counted differently."""
    lost: list[str]
    """Runs whose answer a client received, but whose usage or status in the store is different."""
    stuck: list[str]
    """Runs and calls that have not ended."""
    resumed: int = 0
    """Runs that resumed an interrupted one."""
    in_flight: int = 0
    """Calls repeated in resumed runs because they were in flight at a kill."""
    repeated: list[str] = []
    """Calls repeated in resumed runs although they had completed."""
    restarted: list[str] = []
    """Runs that started over instead of resuming an interrupted one."""


class PartFigures(msgspec.Struct, frozen=True):
    """Figures of one part."""

    part: str
    ended: Outcomes
    lag_ms: float
    """Max delay of this process's event loop, which runs clients, proxies and simulated models."""
    faults: dict[str, int]
    audit: Audit


@dataclass(slots=True)
class TestBed:
    """Config of the gateway under test, the proxies in front of its upstreams, and its clients."""

    config: Path
    deployments: Mapping[str, FaultProxy]
    """Proxies by the deployment name in the ledger."""
    plans: Sequence[FaultPlan]
    timeout_s: float
    chance: random.Random
    store: str
    """URL of the database."""
    questions: Iterator[str]
    """Unused questions; each is different."""
    models: Sequence[OpenAIServer] = ()
    """Simulated models."""
    ended: list[LoadResult] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    """Questions to ask again, as the gateway ended before they did."""
    happened: Counter[str] = field(default_factory=Counter)
    """Number of disturbances of gateways and database, by kind."""
    shared: bool = False
    """True if several gateways share the database; a run then cannot be resumed from another's
    log.
    """
    columns: str = ""
    """Columns of the tables to ask for; empty to ask for answers."""
    tables: dict[str, str] = field(default_factory=dict)
    """Rows of received tables, by question."""
    lag_s: float = 0.0

    @property
    def spent(self) -> int:
        """Tokens of all calls, as the simulated models count them."""
        return sum(model.tokens.total() for model in self.models)

    def fail(self, share: float) -> None:
        """Set the share of calls that fail."""
        for plan in self.plans:
            plan.share = share

    async def read(self, query: Callable[[Connection], Value]) -> Value:
        """Read the gateway's store."""
        async with opened(self.store) as database:
            return await database.read(query)

    async def watch(self) -> None:
        """Measure the delay of this process's event loop, forever."""
        while True:
            due = time.perf_counter() + 0.05
            await asyncio.sleep(0.05)
            self.lag_s = max(self.lag_s, time.perf_counter() - due)

    async def ask(
        self, client: AsyncClient, text: str, *, hurried_share: float = _HURRIED_SHARE
    ) -> LoadResult | None:
        """Ask a question, sometimes with a shorter deadline than the gateway's. Return None if the
        gateway is gone.
        """
        hurried = not self.columns and self.chance.random() < hurried_share
        deadline_s = self.timeout_s
        if hurried:
            deadline_s = self.chance.uniform(_MIN_S, self.timeout_s)
        ended = await ask_until(client, text, deadline_s, hurried=hurried, columns=self.columns)
        if ended.outcome.startswith("UNAVAILABLE,"):
            if self.columns or self.chance.random() < _AGAIN_SHARE:
                self.cut.append(text)
            return None
        self.ended.append(ended)
        if ended.rows:
            self.tables[text] = ended.rows
        return ended

    async def keep_asking(self, address: str, texts: Iterator[str], concurrency: int) -> None:
        """Ask until no question is left or the gateway is gone."""

        async def work(client: AsyncClient) -> None:
            for text in texts:
                if (ended := await self.ask(client, text)) is None:
                    return
                if ended.outcome != ANSWERED:
                    await asyncio.sleep(_PAUSE_S)

        async with AsyncClient(address) as client, asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work(client))

    async def figures(self) -> PartFigures:
        """Return the figures, after the gateway has ended."""
        faults = sum((plan.seen for plan in self.plans), self.happened)
        proxies = self.deployments.values()
        seen = {name: proxy.attempts for name, proxy in self.deployments.items()}
        counted = dict(chain.from_iterable(proxy.counted.items() for proxy in proxies))
        shown = dict(chain.from_iterable(proxy.conversations.items() for proxy in proxies))
        audit = await self.read(
            lambda connection: compared(connection, self.ended, seen, counted, shown)
        )
        name = self.config.parent.name
        ended = Outcomes.of(self.ended)
        return PartFigures(name, ended, self.lag_s * 1000, dict(faults.most_common()), audit)


@asynccontextmanager
async def canned(
    folder: Path,
    store: str,
    seed: int,
    faults: Sequence[Fault],
    *,
    timeout_s: float = 8.0,
    pace: float = 0.0,
    columns: str = "",
) -> AsyncIterator[TestBed]:
    """Start simulated models with replicas and a retrieval service behind fault proxies. `folder`
    has the name of the part. `store`: URL of the database. `pace`: tokens per second, 0 without
    delay. `columns`: see `TestBed`.
    """

    def reply(asked: ChatRequest) -> Reply:
        whole = Reply.of(tabular(asked)) if columns else at_once(asked)
        return Reply(whole.tokens, (), 0.05, lambda: 1 / pace) if pace else whole

    searching = FaultPlan(f"{seed} retrieval", 0.0, SEARCH_FAULTS)
    async with AsyncExitStack() as stack:
        models = [
            await stack.enter_async_context(serving(recording=False))
            for _ in range(BACKBONES + EXECUTORS)
        ]
        for model in models:
            model.plays(writes(reply))
        address = await stack.enter_async_context(
            retrieval(FaultyRetriever(OnePassage(), searching))
        )
        upstreams = [model.base_url for model in models]
        proxies = await stack.enter_async_context(fault_proxies(upstreams, seed, faults))
        urls = [proxy.base_url for proxy in proxies]
        waits = {"first_token_timeout_s": timeout_s / 8, "call_timeout_s": timeout_s / 2}
        # More attempts, as a table in which a call failed permanently would differ
        waits |= {"attempts": 6} if columns else {}
        executors = {
            "base_url": urls[BACKBONES],
            "replicas": urls[BACKBONES + 1 :],
            "fallbacks": ["delegation"],
        }
        roles: dict[str, dict[str, Any]] = {
            "delegation": waits,
            "execution": waits | executors,
            "answer": waits,
        }
        settings = {"timeout_s": timeout_s, **_kept(folder, store)}
        table = {"timeout_s": timeout_s}
        config = canned_config(
            folder,
            urls[:BACKBONES],
            address,
            roles,
            server=settings,
            table=table,
        )
        plans = [*([searching] if faults == FAULTS else []), *(proxy.plan for proxy in proxies)]
        deployments = dict(zip(urls, proxies, strict=True))
        texts = map(question, count())
        chance = random.Random(seed)
        bed = TestBed(
            config,
            deployments,
            plans,
            timeout_s,
            chance,
            store,
            texts,
            models,
            columns=columns,
        )
        await stack.enter_async_context(background_tasks(bed.watch()))
        yield bed


COLUMNS = "part*, maker, made:integer"
_ASKS = '<ask column="maker">Who made {part}?</ask><ask column="made">When was {part} made?</ask>'


def tabular(asked: ChatRequest) -> str:
    """Return the text of a turn on a table of `COLUMNS`. Names and values repeat the numbers in the
    question.
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


@asynccontextmanager
async def deployed(folder: Path, store: str, seed: int) -> AsyncIterator[TestBed]:
    """Start the demo's models on real vLLM, over an unseen world, behind fault proxies."""
    world = folder / "world"
    replace = msgspec.structs.replace
    questions = export(World(_WORLD, "test"), world, _WORLD_QUESTIONS)
    texts = dict.fromkeys(question.text for question in questions)
    async with (
        mini_deployment(over(load_config(preset("mini")), world)) as mini,
        fault_proxies(list(mini.engines.values()), seed, CUT) as proxies,
    ):
        deployments = {proxy.base_url: proxy for proxy in proxies}
        plans = [proxy.plan for proxy in proxies]
        engines = dict(zip(mini.engines, deployments, strict=True))
        config = replace(mini, engines=engines).config(file := folder / "rolegate.toml")
        write_config(
            replace(
                config, server=replace(config.server, timeout_s=_WORLD_S, **_kept(folder, store))
            ),
            file,
        )
        bed = TestBed(
            file,
            deployments,
            plans,
            _WORLD_S,
            random.Random(seed),
            store,
            iter(texts),
        )
        async with background_tasks(bed.watch()):
            yield bed


def _kept(folder: Path, store: str) -> dict[str, str]:
    return {"store": store} | ({} if store.startswith("sqlite") else {"log": f"{folder}/logs"})


def ended_and_booked(
    ended: Sequence[LoadResult],
    late: Sequence[LoadResult],
    audit: Audit,
    *,
    shared: bool = False,
) -> Iterator[Check]:
    """Yield the checks of all parts. `shared`: see `TestBed`."""
    untyped = [result.outcome for result in ended if not result.typed]
    answered = sum(result.outcome == ANSWERED for result in ended)
    yield Check("none ends 100 ms after its deadline", not late, f"{len(late)} of {len(ended)}")
    yield Check("each ends in an answer or a typed error", not untyped, named(untyped))
    yield Check("some are answered", answered > 0, f"{answered} of {len(ended)}")

    attempts = f"{audit.attempts:,}"
    yield Check("there are attempts", audit.attempts > 0, attempts)
    completed = f"{audit.rows.get('completed', 0):,}"
    resumed = f"{audit.resumed:,} that were resumed"
    in_flight = f"{resumed}; {audit.in_flight:,} had been in flight"
    checks = [
        ("every attempt is booked", audit.unaccounted, attempts),
        ("no attempt comes twice", audit.again, attempts),
        ("no row is invented", audit.invented, f"{sum(audit.rows.values()):,}"),
        ("completed calls are booked as upstreams counted them", audit.miscounted, completed),
        ("no answer is lost", audit.lost, f"{answered:,}"),
        ("nothing is left open", audit.stuck, ""),
        ("no completed call is made again", audit.repeated, in_flight),
    ]
    if not shared:
        checks.append(("who asks again goes on", audit.restarted, resumed))
    for text, names, total in checks:
        yield Check(text, not names, named(names, total))


def named(names: Sequence[str], total: str = "") -> str:
    """Return the first three names and the number of the others, of a total."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    shown = f"{', '.join(names[:3])}{more}" if names else "none"
    return f"{shown} of {total}" if total else shown


def compared(
    connection: Connection,
    ended: Iterable[LoadResult],
    seen: Mapping[str, Sequence[str]],
    counted: Mapping[str, Counted],
    shown: Mapping[str, bytes],
) -> Audit:
    """Compare the store with what clients and upstreams saw. `seen`: request ids by deployment, as
    the ledger names it. `counted`, `shown`: usage and conversation at the upstream, by request id.
    """
    arrived = Counter(chain.from_iterable(seen.values()))
    whole = (*COMPLETE_OUTCOMES, "refused", "content_refused", "protocol_error")
    rows = {f"{row.run_id}-{row.number}": row for row in connection.execute(select(CALLS))}
    runs = {
        run.id: run
        for run in map(run_of, connection.execute(select(RUNS).order_by(RUNS.c.started_at)))
    }
    again = [pair for run in runs.values() for pair in _made_again(run, runs, shown)]
    return Audit(
        attempts=arrived.total(),
        rows=dict(Counter(row.outcome for row in rows.values()).most_common()),
        unaccounted=[
            f"{name or 'request without an id'} at {deployment}"
            for deployment, names in seen.items()
            for name in names
            if name not in rows or rows[name].deployment != deployment
        ],
        again=[name for name, times in arrived.items() if times > 1],
        invented=[
            name for name, row in rows.items() if name not in arrived and row.outcome in whole
        ],
        miscounted=[
            name
            for name, row in rows.items()
            if row.outcome == "completed"
            and name in counted
            and counted[name] != Counted(row.prompt_tokens, row.completion_tokens)
        ],
        lost=_lost(connection, ended),
        stuck=[
            *connection.scalars(select(RUNS.c.run_id).where(RUNS.c.status == "running")),
            *(name for name, row in rows.items() if row.outcome == "open"),
        ],
        resumed=sum(bool(run.resumed_from) for run in runs.values()),
        in_flight=sum(not completed for _, completed in again),
        repeated=[name for name, completed in again if completed],
        restarted=[
            later.id
            for earlier, later in pairwise(sorted(runs.values(), key=lambda run: run.request))
            if earlier.request == later.request
            and earlier.status == "interrupted"
            and not later.resumed_from
        ],
    )


def _lost(connection: Connection, ended: Iterable[LoadResult]) -> list[str]:
    """Return the runs of answers whose status or usage in the store differs from the answer's."""
    tokens = func.coalesce(func.sum(CALLS.c.prompt_tokens + CALLS.c.completion_tokens), 0)
    summed = select(
        RUNS.c.run_id, RUNS.c.status, func.count(CALLS.c.number), tokens
    ).outerjoin_from(RUNS, CALLS)
    stored = {
        run_id: sums
        for run_id, *sums in connection.execute(summed.group_by(RUNS.c.run_id, RUNS.c.status))
    }
    answered = [result for result in ended if result.outcome == ANSWERED]
    return [
        result.run_id
        for result in answered
        if stored.get(result.run_id) != ["finished", result.attempts, result.tokens]
    ]


def _made_again(
    run: Run, runs: Mapping[str, Run], shown: Mapping[str, bytes]
) -> Iterator[tuple[str, bool]]:
    """Yield each call of a resumed run whose conversation was already sent in an earlier run, and
    whether the earlier call had completed.
    """
    completed = dict[bytes, bool]()
    earlier = runs.get(run.resumed_from)
    while earlier:
        for call in earlier.calls:
            if conversation := shown.get(call.request_id):
                completed.setdefault(conversation, False)
                completed[conversation] |= call.outcome == "completed"
        earlier = runs.get(earlier.resumed_from)
    for call in run.calls:
        if (conversation := shown.get(call.request_id)) in completed:
            yield call.request_id, completed[conversation]
