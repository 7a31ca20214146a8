"""Nothing is lost and all is booked exactly, while everything around the gateway fails, and it is killed itself.

Fault proxies stand before all of its upstreams; what they do is drawn by a seed.

faults   played models, of which a share of calls goes wrong: resets, storms of 429 and of 503, calls that are never
         answered, streams that drip or are cut, lying usage, invalid UTF-8, duplicated chunks, stuck health endpoints
kills    played models that take their time, and a gateway that is killed (SIGKILL) at random moments and started again,
         many times; half of those whose question was cut ask it again under its name, and their runs go on
replica  models as slow as real ones, of which one replica dies again and again: the others' questions notice nothing

It ends with 1 where anything did not hold, which is named.
"""

import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta
from rolegate.client import AsyncClient
from rolegate.v1.usage_service_pb2 import ReconciliationVerdict
from sqlalchemy import Connection, func, select

from benchmarks import harness
from benchmarks.gateway import OnePassage, at_once, canned_config, gateway, retrieval
from benchmarks.harness import Check, own_bytes, work_folder
from benchmarks.load import ANSWERED, Ended, Outcomes, ask_until, at_rate, quantile, question
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
    State,
    fault_proxies,
)
from router.testing.openai_server import ChatRequest, Reply, serving, writes
from router.trace import Run
from router.trace.call import WHOLE
from serving.terminal import complain

Part = Literal["faults", "kills", "replica"]
Value = TypeVar("Value")
_BACKBONES, _EXECUTORS = 2, 3
_CUT: tuple[Fault, ...] = ("cut",)
"""Leaves the upstream's own count comparable with the ledger."""
_PACE, _AGAIN_SHARE = 100.0, 0.5
"""Tokens a second, and the share of the cut questions that are asked again."""
_HURRIED_SHARE, _LEAST_S = 0.2, 0.5
_LATE_S, _GROWTH, _SLOWER = 0.1, 0.1, 0.1
_EVERY_S, _PAUSE_S = 0.5, 0.5
_DEATHS: tuple[State, ...] = "gone", "silent"
_TIMES = 3
"""Deaths of a replica of each kind, with as many questions between as while it is dead."""
_AGREE = {"EQUAL", "WITHIN_BOUNDS"}


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    parts: Annotated[tuple[Part, ...], Meta(description="of faults, kills and replica")] = get_args(Part)
    questions: Annotated[int, Meta(ge=4, description="of faults and replica")] = 2000
    in_flight: Annotated[int, Meta(ge=1, description="questions at once")] = 32
    share: Annotated[float, Meta(ge=0, le=1, description="of calls at which something fails")] = 0.05
    kills: Annotated[int, Meta(ge=1, description="of gateways")] = 30
    rate: Annotated[float, Meta(gt=0, description="questions a second, of replica")] = 8.0
    longest: Annotated[float, Meta(gt=0, description="seconds between kills")] = 2.0
    seed: Annotated[int, Meta(description="of the faults")] = 0
    folder: Annotated[Path, Meta(description="where the stores are put, and kept")] | None = None


class Accounts(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between what clients and upstreams saw and the store; all lists should be empty."""

    attempts: int
    """That came to an upstream."""
    rows: dict[str, int]
    """Of the ledger, by outcome."""
    unaccounted: list[str]
    """Attempts that came to an upstream, and that the ledger does not have, or has at another one."""
    again: list[str]
    """Attempts that came more than once."""
    invented: list[str]
    """Rows of attempts that came to an end without having come to any upstream."""
    miscounted: list[str]
    """Completed calls that the upstream counted otherwise."""
    lost: list[str]
    """Runs whose answer a client received, and which are not in the store with all that the client was told."""
    stuck: list[str]
    """Runs and calls that have not ended."""
    gone_on: int = 0
    """Runs that went on with one that was cut."""
    in_flight: int = 0
    """Calls of theirs that were in flight at a kill, and were made again."""
    repeated: list[str] = []
    """Calls of theirs that had been completed before, and were made again all the same."""
    begun_anew: list[str] = []
    """Runs that should have gone on with one that was cut."""


class PartFigures(msgspec.Struct, frozen=True):
    """Figures of one part."""

    part: str
    ended: Outcomes
    lag_ms: float
    """How late this process itself was at most, as clients, proxies and played models run in it."""
    faults: dict[str, int]
    accounts: Accounts


class Figures(msgspec.Struct, frozen=True):
    """Checks, and what they rest on."""

    checks: list[Check]
    parts: list[PartFigures]


@dataclass(slots=True)
class Stand:
    """A gateway's config, the proxies before its upstreams, and clients that ask it."""

    config: Path
    deployments: Mapping[str, FaultProxy]
    """By the name that the ledger has for what is behind it."""
    plans: Sequence[FaultPlan]
    timeout_s: float
    chance: random.Random
    ended: list[Ended] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    """Questions that are to be asked again, as the gateway ended before they did."""
    lag_s: float = 0.0

    def fail(self, share: float) -> None:
        """Let this share of calls go wrong from now on."""
        for plan in self.plans:
            plan.share = share

    async def read(self, query: Callable[[Connection], Value]) -> Value:
        """Read the gateway's store."""
        async with opened(f"sqlite:///{self.config.parent}/runs.db") as database:
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
                    await asyncio.sleep(_PAUSE_S)

        async with AsyncClient(address) as client, asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work(client))

    async def figures(self) -> PartFigures:
        """Sum up, once the gateway has ended."""
        faults = sum((plan.seen for plan in self.plans), Counter[str]())
        seen = {name: proxy.attempts for name, proxy in self.deployments.items()}
        counted = {name: usage for proxy in self.deployments.values() for name, usage in proxy.counted.items()}
        shown = {name: told for proxy in self.deployments.values() for name, told in proxy.conversations.items()}
        found = await self.read(lambda connection: compared(connection, self.ended, seen, counted, shown))
        name, ended = self.config.parent.name, Outcomes.of(self.ended)
        return PartFigures(name, ended, self.lag_s * 1000, dict(faults.most_common()), found)


async def measure(options: Options) -> Figures:
    """Run the parts. Raises `RolegateError`."""
    checks, parts = list[Check](), list[PartFigures]()
    run = {"faults": _faults, "kills": _kills, "replica": _replica}
    with work_folder(options.folder) as folder:
        for part in options.parts:
            complain(f"reliability: {part}")
            stand, found = await run[part](folder / part, options)
            parts.append(await stand.figures())
            late = [one for one in stand.ended if one.late_s > _LATE_S + stand.lag_s]
            found = [*ended_and_booked(stand.ended, late, parts[-1].accounts), *found]
            checks += [msgspec.structs.replace(one, check=f"{part}: {one.check}") for one in found]
    return Figures(checks, parts)


def ended_and_booked(ended: Sequence[Ended], late: Sequence[Ended], found: Accounts) -> Iterator[Check]:
    """Checks that hold wherever questions are asked."""
    untyped, answered = [one.outcome for one in ended if not one.typed], sum(one.outcome == ANSWERED for one in ended)
    yield Check("none ends 100 ms after its deadline", not late, f"{len(late)} of {len(ended)}")
    yield Check("each ends in an answer or a typed error", not untyped, _named(untyped))
    yield Check("some are answered", answered > 0, f"{answered} of {len(ended)}")
    yield Check("there are attempts", found.attempts > 0, f"{found.attempts:,}")
    completed = f"{found.rows.get('completed', 0):,}"
    went_on = f"{found.gone_on:,} that went on"
    for text, names, of in (
        ("every attempt is booked", found.unaccounted, f"{found.attempts:,}"),
        ("no attempt comes twice", found.again, f"{found.attempts:,}"),
        ("no row is invented", found.invented, f"{sum(found.rows.values()):,}"),
        ("completed calls are booked as upstreams counted them", found.miscounted, completed),
        ("no answer is lost", found.lost, f"{answered:,}"),
        ("nothing is left open", found.stuck, ""),
        ("no completed call is made again", found.repeated, f"{went_on}; {found.in_flight:,} had been in flight"),
        ("who asks again goes on", found.begun_anew, went_on),
    ):
        yield Check(text, not names, _named(names, of))


def _named(names: Sequence[str], of: str = "") -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (f"{', '.join(names[:3])}{more}" if names else "none") + (of and f" of {of}")


@asynccontextmanager
async def _canned(
    folder: Path, options: Options, faults: Sequence[Fault], timeout_s: float = 8.0, pace: float = 0.0
) -> AsyncIterator[Stand]:
    """Played models with replicas, and a retrieval, behind fault proxies. `folder` is named after the part. `pace`:
    tokens a second; 0 for all at once.
    """

    def reply(asked: ChatRequest) -> Reply:
        return Reply(at_once(asked).tokens, (), 0.05, lambda: 1 / pace) if pace else at_once(asked)

    searching = FaultPlan(f"{options.seed} retrieval", 0.0, SEARCH_FAULTS)
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(recording=False)) for _ in range(_BACKBONES + _EXECUTORS)]
        for server in servers:
            server.plays(writes(reply))
        address = await stack.enter_async_context(retrieval(FaultyRetriever(OnePassage(), searching)))
        upstreams = [server.base_url for server in servers]
        proxies = await stack.enter_async_context(fault_proxies(upstreams, options.seed, faults))
        urls = [proxy.base_url for proxy in proxies]
        waits = {"first_token_timeout_s": timeout_s / 8, "call_timeout_s": timeout_s / 2}
        executors = {"base_url": urls[_BACKBONES], "replicas": urls[_BACKBONES + 1 :], "fallbacks": ["delegation"]}
        roles: dict[str, dict[str, Any]] = {"delegation": waits, "execution": waits | executors, "answer": waits}
        config = canned_config(folder, urls[:_BACKBONES], address, roles, server={"timeout_s": timeout_s})
        plans = [*([searching] if faults == FAULTS else []), *(proxy.plan for proxy in proxies)]
        stand = Stand(config, dict(zip(urls, proxies, strict=True)), plans, timeout_s, random.Random(options.seed))
        await stack.enter_async_context(background_tasks(stand.watch()))
        yield stand


async def _faults(folder: Path, options: Options) -> tuple[Stand, list[Check]]:
    samples = list[tuple[float, float]]()
    async with _canned(folder, options, FAULTS) as stand, gateway(stand.config) as process:

        async def sample() -> None:
            while True:
                samples.append((own_bytes(process.watched) / 1e6, process.watched.num_fds()))
                await asyncio.sleep(_EVERY_S)

        stand.fail(options.share)
        async with background_tasks(sample()):
            texts = iter([question(number) for number in range(options.questions)])
            await stand.keep_asking(process.words[0], texts, options.in_flight)
    return stand, [*_growth("memory", [mb for mb, _ in samples]), *_growth("open files", [n for _, n in samples])]


def _growth(name: str, samples: Sequence[float]) -> Iterator[Check]:
    """Compare the second quarter, when all is warm, with the last one."""
    quarter = len(samples) // 4
    if quarter:
        first, last = statistics.median(samples[quarter : 2 * quarter]), statistics.median(samples[-quarter:])
        yield Check(f"{name} within 10 %", last <= first * (1 + _GROWTH), f"{first:.1f}, then {last:.1f}")


async def _kills(folder: Path, options: Options) -> tuple[Stand, list[Check]]:
    """Ask gateways that are killed at random moments; the last one's ledger has to agree with the upstreams' counts."""
    async with _canned(folder, options, _CUT, pace=_PACE) as stand:
        texts = (stand.cut.pop(0) if stand.cut else question(number) for number in count())
        stand.fail(options.share)
        for _ in range(options.kills):
            async with gateway(stand.config) as process:
                asking = asyncio.create_task(stand.keep_asking(process.words[0], texts, options.in_flight))
                await asyncio.sleep(stand.chance.uniform(0, options.longest))
                process.process.kill()
                await asking
        stand.fail(0.0)
        async with gateway(stand.config) as process, AsyncClient(process.words[0]) as client:
            await stand.keep_asking(process.words[0], iter(stand.cut), options.in_flight)
            names = [ReconciliationVerdict.Name(row.verdict) for row in await client.reconcile()]
    verdicts = {name.removeprefix("RECONCILIATION_VERDICT_") for name in names}
    held = bool(verdicts) and verdicts <= _AGREE
    return stand, [Check("the ledger agrees with the upstreams' counters", held, _named(sorted(verdicts)))]


async def _replica(folder: Path, options: Options) -> tuple[Stand, list[Check]]:
    """Ask while an executor's replica is dead, and as much while it lives, in turns."""
    each = max(1, options.questions // (4 * _TIMES))
    async with _canned(folder, options, _CUT, 20.0, _PACE) as stand:
        name, dead = list(stand.deployments.items())[_BACKBONES]
        by_state: dict[State, list[Ended]] = {"well": [], "gone": [], "silent": []}
        async with gateway(stand.config) as process, AsyncClient(process.words[0]) as client:
            await stand.ask(client, question(0))  # warms up
            for state in ("well", *_DEATHS) * _TIMES:
                await dead.become(state)
                texts = [f"{question(len(stand.ended))} {number}" for number in range(each)]
                asked = await at_rate(lambda text: stand.ask(client, text, hurried_share=0.0), texts, options.rate)
                by_state[state] += [one for one in asked if one]
        wanted = select(CALLS.c.run_id).distinct().where(CALLS.c.deployment == name)
        called = await stand.read(lambda connection: set(connection.scalars(wanted)))
        usual_s, checks = quantile(_untouched(by_state["well"], called), 0.99), list[Check]()
        for state in _DEATHS:
            others_s = _untouched(by_state[state], called)
            p99_s = quantile(others_s, 0.99)
            seen = f"{usual_s:.2f} s, then {p99_s:.2f} s of {len(others_s)}"
            held = bool(others_s) and p99_s <= usual_s * (1 + _SLOWER)
            checks.append(Check(f"one {state}, p99 of others within 10 %", held, seen))
    return stand, checks


def _untouched(ended: Sequence[Ended], called: set[str]) -> list[float]:
    """Seconds of answers whose runs did not call a deployment."""
    return [one.took_s for one in ended if one.outcome == ANSWERED and one.run_id not in called]


def compared(
    connection: Connection,
    ended: Iterable[Ended],
    seen: Mapping[str, Sequence[str]],
    counted: Mapping[str, Counted],
    shown: Mapping[str, bytes],
) -> Accounts:
    """`seen`: request ids by deployment, as the ledger names it; `counted`: the upstreams' counts by request id;
    `shown`: what they were shown, by request id.
    """
    calls, came = CALLS.c, Counter(name for names in seen.values() for name in names)
    rows = {f"{row.run_id}-{row.number}": row for row in connection.execute(select(CALLS))}
    statuses = {row.run_id: row.status for row in connection.execute(select(RUNS.c.run_id, RUNS.c.status))}
    tokens = func.coalesce(func.sum(calls.prompt_tokens + calls.completion_tokens), 0)
    summed = connection.execute(select(calls.run_id, func.count(), tokens).group_by(calls.run_id))
    sums = {run_id: (attempts, total) for run_id, attempts, total in summed}
    whole = (*WHOLE, "refused", "protocol_error")
    booked = {name: Counted(row.prompt_tokens, row.completion_tokens) for name, row in rows.items() if row.counted}
    runs = {run.id: run for run in map(run_of, connection.execute(select(RUNS).order_by(RUNS.c.started_at)))}
    again = [pair for run in runs.values() for pair in _made_again(run, runs, shown)]
    return Accounts(
        attempts=sum(came.values()),
        rows=dict(Counter(row.outcome for row in rows.values()).most_common()),
        unaccounted=[
            f"{name or 'one without a name'} at {deployment}"
            for deployment, names in seen.items()
            for name in names
            if name not in rows or rows[name].deployment != deployment
        ],
        again=[name for name, times in came.items() if times > 1],
        invented=[name for name, row in rows.items() if name not in came and row.outcome in whole],
        miscounted=[
            name
            for name, row in rows.items()
            if row.outcome == "completed" and name in counted and booked.get(name) != counted[name]
        ],
        lost=[
            one.run_id
            for one in ended
            if one.outcome == ANSWERED
            and (statuses.get(one.run_id), sums.get(one.run_id, (0, 0))) != ("finished", (one.attempts, one.tokens))
        ],
        stuck=[
            *(run_id for run_id, status in statuses.items() if status == "running"),
            *(name for name, row in rows.items() if row.outcome == "open"),
        ],
        gone_on=sum(bool(run.resumed_from) for run in runs.values()),
        in_flight=sum(not completed for _, completed in again),
        repeated=[name for name, completed in again if completed],
        begun_anew=[
            later.id
            for earlier, later in pairwise(sorted(runs.values(), key=lambda run: run.request))
            if earlier.request == later.request and earlier.status == "interrupted" and not later.resumed_from
        ],
    )


def _made_again(run: Run, runs: Mapping[str, Run], shown: Mapping[str, bytes]) -> Iterator[tuple[str, bool]]:
    """The calls of a run that show a model what one was shown in a run that it goes on with, and whether that call had
    been completed.
    """
    completed = dict[bytes, bool]()
    earlier = runs.get(run.resumed_from)
    while earlier:
        for call in earlier.calls:
            if told := shown.get(call.request_id):
                completed[told] = completed.get(told, False) or call.outcome == "completed"
        earlier = runs.get(earlier.resumed_from)
    for call in run.calls:
        if (told := shown.get(call.request_id)) in completed:
            yield call.request_id, completed[told]
