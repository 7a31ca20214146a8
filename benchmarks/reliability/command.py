"""Checks that nothing is lost and everything is booked exactly while upstreams fail and the gateway
is killed.

All upstreams are behind fault proxies, whose faults are drawn from a seed.

faults    simulated models, a share of whose calls fails: connection resets, storms of 429 and 503,
          calls that are never answered, streams that drip or are cut, wrong usage, invalid UTF-8,
          duplicated chunks, hanging health endpoints
kills     slow simulated models, and a gateway that is killed (SIGKILL) and restarted many times at
          random moments; half of the interrupted questions are asked again with the same request
          id and are resumed
tables    the same with tables, each asked for again until it is complete, and then compared with
          the table of an undisturbed run
vllm      the same as kills, with the demo's models on real vLLM
replica   models as slow as real ones, of which one replica dies again and again; other questions
          must not be slower
gateways  two or more gateways on one PostgreSQL, asked by many clients of one tenant until its
quota
          is spent and beyond; every few seconds one of them is killed or paused, or PostgreSQL is
          restarted

The exit status is 1 if a check fails; failed checks are named.
"""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
import psutil
from msgspec import Meta
from rolegate.client import AsyncClient
from rolegate.v1.usage_service_pb2 import ReconciliationVerdict
from sqlalchemy import select

from benchmarks import harness
from benchmarks.gateway import gateway
from benchmarks.harness import Check, own_bytes, work_folder
from benchmarks.load import (
    ANSWERED,
    LoadResult,
    ask_until,
    at_rate,
    in_flight,
    quantile,
    question,
    rows_of,
)
from benchmarks.reliability.testbed import (
    BACKBONES,
    COLUMNS,
    CUT,
    PartFigures,
    TestBed,
    canned,
    deployed,
    ended_and_booked,
    named,
)
from router.access import Tenant
from router.background import background_tasks
from router.errors import RolegateError
from router.store import SQLAccounts, opened
from router.store.schema import CALLS
from router.testing.fault_proxy import FAULTS, State
from router.testing.postgres import PostgresServer, running_postgres
from serving.terminal import complain

Part = Literal["faults", "kills", "tables", "vllm", "replica", "gateways"]
_PACE = 100.0
"""Tokens per second."""
_TABLE_S = 120.0
_LATE_S = 0.1
_GROWTH = 0.1
_SLOWER = 0.1
_EVERY_S = 0.5
_DEATHS: tuple[State, ...] = "gone", "silent"
_TIMES = 3
"""Deaths of a replica of each kind; as many questions are asked between deaths as during them."""
_RESTARTS = 5
"""Every fifth disturbance restarts PostgreSQL; the others pause or kill a gateway."""
_AGREE = {"EQUAL", "WITHIN_BOUNDS"}


class Options(harness.Options, frozen=True, kw_only=True):
    """Options of the benchmark."""

    parts: Annotated[tuple[Part, ...], Meta(description="parts to run; all by default")] = get_args(
        Part
    )
    questions: Annotated[int, Meta(ge=4, description="questions of faults and replica")] = 2000
    in_flight: Annotated[int, Meta(ge=1, description="concurrent questions")] = 32
    share: Annotated[float, Meta(ge=0, le=1, description="share of calls that fail")] = 0.05
    kills: Annotated[int, Meta(ge=1, description="number of kills")] = 30
    rate: Annotated[float, Meta(gt=0, description="questions a second, of replica")] = 8.0
    longest: Annotated[float, Meta(gt=0, description="max seconds between kills")] = 2.0
    store: Annotated[Literal["sqlite", "postgres"], Meta(description="database of the runs")] = (
        "sqlite"
    )
    gateways: Annotated[
        tuple[int, ...], Meta(description="gateways on one database, one part for each number")
    ] = (
        2,
        4,
    )
    clients: Annotated[int, Meta(ge=1, description="clients of the part gateways")] = 200
    quota: Annotated[int, Meta(ge=1, description="token quota of these clients")] = 400_000
    seconds: Annotated[float, Meta(gt=0, description="seconds that these clients ask")] = 60.0
    every: Annotated[float, Meta(gt=0, description="seconds between disturbances")] = 4.0
    stop: Annotated[float, Meta(gt=0, description="max seconds that a gateway is paused")] = 60.0
    quick: Annotated[
        bool, Meta(description="a little of each part, to see that all parts work")
    ] = False
    seed: Annotated[int, Meta(description="seed of the faults")] = 0
    folder: Annotated[Path, Meta(description="folder that keeps the stores")] | None = None


_Result = tuple[TestBed, list[Check]]
_Work = Callable[[Path, str, Options], Awaitable[_Result]]


class Figures(msgspec.Struct, frozen=True):
    """Checks, and the figures behind them."""

    checks: list[Check]
    parts: list[PartFigures]


async def measure(options: Options) -> Figures:
    """Run the parts. Raises `RolegateError`."""
    if options.quick:
        few = {
            "questions": 40,
            "kills": 2,
            "clients": 20,
            "quota": 30_000,
            "seconds": 12.0,
            "every": 2.0,
            "stop": 5.0,
        }
        options = msgspec.structs.replace(options, **few)
    checks = list[Check]()
    parts = list[PartFigures]()
    on_postgres = options.store == "postgres"
    run: dict[str, _Work] = {
        "faults": _faults,
        "kills": _kills,
        "tables": _tables,
        "vllm": _vllm,
        "replica": _replica,
    }
    run = {part: work for part, work in run.items() if part in options.parts}
    needed = running_postgres() if on_postgres or "gateways" in options.parts else nullcontext()
    with work_folder(options.folder) as folder, needed as server:
        if server and "gateways" in options.parts:
            run |= {
                f"{number} gateways": partial(_gateways, server, number)
                for number in options.gateways
            }
        for name, work in run.items():
            complain(f"reliability: {name}")
            shared = server and (on_postgres or name not in get_args(Part))
            store = server.new() if server and shared else f"sqlite:///{folder / name}/runs.db"
            bed, own_checks = await work(folder / name, store, options)
            figures = await bed.figures()
            parts.append(figures)
            late = [result for result in bed.ended if result.late_s > _LATE_S + bed.lag_s]
            booked = ended_and_booked(bed.ended, late, figures.audit, shared=bed.shared)
            checks += [
                msgspec.structs.replace(check, check=f"{name}: {check.check}")
                for check in (*booked, *own_checks)
            ]
    return Figures(checks, parts)


async def _faults(folder: Path, store: str, options: Options) -> _Result:
    samples = list[tuple[float, float]]()
    async with (
        canned(folder, store, options.seed, FAULTS) as bed,
        gateway(bed.config) as process,
    ):

        async def sample() -> None:
            while True:
                samples.append((own_bytes(process.watched) / 1e6, process.watched.num_fds()))
                await asyncio.sleep(_EVERY_S)

        bed.fail(options.share)
        async with background_tasks(sample()):
            texts = iter([question(number) for number in range(options.questions)])
            await bed.keep_asking(process.words[0], texts, options.in_flight)
    return bed, [
        *_growth("memory", [mb for mb, _ in samples]),
        *_growth("open files", [n for _, n in samples]),
    ]


def _growth(name: str, samples: Sequence[float]) -> Iterator[Check]:
    """Compare the second quarter of the samples, after the warm-up, with the last one."""
    quarter = len(samples) // 4
    if quarter:
        first = statistics.median(samples[quarter : 2 * quarter])
        last = statistics.median(samples[-quarter:])
        yield Check(
            f"{name} within 10 %", last <= first * (1 + _GROWTH), f"{first:.1f}, then {last:.1f}"
        )


async def _kills(folder: Path, store: str, options: Options) -> _Result:
    async with canned(folder, store, options.seed, CUT, pace=_PACE) as bed:
        return bed, await _killed(bed, options)


async def _tables(folder: Path, store: str, options: Options) -> _Result:
    async with canned(
        folder,
        store,
        options.seed,
        CUT,
        timeout_s=_TABLE_S,
        pace=_PACE,
        columns=COLUMNS,
    ) as bed:
        checks = await _killed(bed, options)
        async with gateway(bed.config) as process, AsyncClient(process.words[0]) as client:

            async def undisturbed(text: str) -> str:
                return rows_of((await client.table(text, COLUMNS, (), _TABLE_S)).message)

            expected = await in_flight(undisturbed, bed.tables, options.in_flight)
        different = [
            text
            for (text, rows), expected_rows in zip(bed.tables.items(), expected, strict=True)
            if rows != expected_rows
        ]
    checks.append(
        Check(
            "each table is what an undisturbed run makes of it",
            bool(expected) and not different,
            named(different, f"{len(expected):,}"),
        )
    )
    return bed, checks


async def _vllm(folder: Path, store: str, options: Options) -> _Result:
    async with deployed(folder, store, options.seed) as bed:
        return bed, await _killed(bed, options)


async def _killed(bed: TestBed, options: Options) -> list[Check]:
    """Ask gateways that are killed at random moments; the ledger of the last one has to agree with
    the upstreams' counters.
    """
    texts = (bed.cut.pop(0) if bed.cut else text for text in bed.questions)
    bed.fail(options.share)
    for _ in range(options.kills):
        async with gateway(bed.config) as process:
            asking = asyncio.create_task(
                bed.keep_asking(process.words[0], texts, options.in_flight)
            )
            await asyncio.sleep(bed.chance.uniform(0, options.longest))
            process.process.kill()
            await asking
    bed.fail(0.0)
    async with gateway(bed.config) as process, AsyncClient(process.words[0]) as client:
        await bed.keep_asking(process.words[0], iter(bed.cut), options.in_flight)
        names = [ReconciliationVerdict.Name(row.verdict) for row in await client.reconcile()]
    verdicts = {name.removeprefix("RECONCILIATION_VERDICT_") for name in names}
    held = bool(verdicts) and verdicts <= _AGREE
    return [Check("the ledger agrees with the upstreams' counters", held, named(sorted(verdicts)))]


async def _replica(folder: Path, store: str, options: Options) -> _Result:
    """Ask in turns while an executor's replica is dead and while it lives."""
    per_turn = max(1, options.questions // (4 * _TIMES))
    async with canned(
        folder,
        store,
        options.seed,
        CUT,
        timeout_s=20.0,
        pace=_PACE,
    ) as bed:
        name, dead = list(bed.deployments.items())[BACKBONES]
        by_state: dict[State, list[LoadResult]] = {"well": [], "gone": [], "silent": []}
        async with gateway(bed.config) as process, AsyncClient(process.words[0]) as client:
            await bed.ask(client, question(0))  # warms up
            for state in ("well", *_DEATHS) * _TIMES:
                await dead.become(state)
                texts = [f"{question(len(bed.ended))} {number}" for number in range(per_turn)]
                asked = await at_rate(
                    lambda text: bed.ask(client, text, hurried_share=0.0), texts, options.rate
                )
                by_state[state] += filter(None, asked)
        wanted = select(CALLS.c.run_id).distinct().where(CALLS.c.deployment == name)
        called = await bed.read(lambda connection: set(connection.scalars(wanted)))
        usual_s = quantile(_untouched(by_state["well"], called), 0.99)
        checks = list[Check]()
        for state in _DEATHS:
            others_s = _untouched(by_state[state], called)
            p99_s = quantile(others_s, 0.99)
            seen = f"{usual_s:.2f} s, then {p99_s:.2f} s of {len(others_s)}"
            held = bool(others_s) and p99_s <= usual_s * (1 + _SLOWER)
            checks.append(Check(f"one {state}, p99 of others within 10 %", held, seen))
    return bed, checks


def _untouched(ended: Sequence[LoadResult], called: set[str]) -> list[float]:
    """Return the seconds of answers whose runs are not in `called`."""
    return [
        result.took_s
        for result in ended
        if result.outcome == ANSWERED and result.run_id not in called
    ]


async def _gateways(
    server: PostgresServer,
    number: int,
    folder: Path,
    store: str,
    options: Options,
) -> _Result:
    """Ask gateways on one database that are killed and paused, as clients of one tenant with a
    quota.
    """
    async with canned(
        folder,
        store,
        options.seed,
        CUT,
        timeout_s=20.0,
        pace=20.0,
    ) as bed:
        async with opened(bed.store) as database:
            await SQLAccounts(database).set_tenant(
                Tenant("default", tokens_per_month=options.quota)
            )
        bed.shared = True
        shared = _Shared(bed, options, server, number)
        async with shared.connections, asyncio.TaskGroup() as group:
            for work in (*[shared.keep] * number, *[shared.ask] * options.clients, shared.disturb):
                group.create_task(work())
            await shared.begun.wait()
            await asyncio.sleep(options.seconds)
            shared.over.set()
        async with AsyncExitStack() as stack:  # reads the logs of killed gateways
            for _ in range(number):
                await stack.enter_async_context(gateway(bed.config))
        async with opened(bed.store) as database:
            spending = await SQLAccounts(database).spending("default")
            booked = max((period.tokens for period in spending), default=0)
    spent = bed.spent
    left = shared.left or [0]
    quota = options.quota
    refusals = (
        f"{len(shared.left):,} refusals; tokens left: {left[0]:,} at the first, "
        f"{statistics.median(left):,.0f} at the median, {quota - spent:,} in the end"
    )
    total = f"{spent:,} of {quota:,}; booked as {booked:,}"
    return bed, [
        Check(
            "no more is spent than the quota, by the upstreams' own count", spent <= quota, total
        ),
        Check("the quota is spent, until requests are refused", bool(shared.left), refusals),
    ]


class _Shared:
    """Gateways on one database, each restarted after it has ended, and their clients."""

    def __init__(
        self,
        bed: TestBed,
        options: Options,
        server: PostgresServer,
        number: int,
    ) -> None:
        self.bed = bed
        self.connections = AsyncExitStack()
        self.begun = asyncio.Event()
        self.over = asyncio.Event()
        self.left: list[int] = []
        """Tokens of the quota that are left at each refusal, by the upstreams' own count."""
        self._options = options
        self._server = server
        self._number = number
        self._chance = bed.chance
        self._clients: dict[psutil.Process, AsyncClient] = {}
        """Clients of live gateways, by process."""
        self._paused: set[psutil.Process] = set()

    async def keep(self) -> None:
        """Keep one gateway running until the part is over."""
        while not self.over.is_set():
            with suppress(RolegateError):  # the database is down
                async with gateway(self.bed.config) as process:
                    client = await self.connections.enter_async_context(
                        AsyncClient(process.words[0])
                    )
                    self._clients[process.watched] = client
                    if len(self._clients) == self._number:
                        self.begun.set()
                    ends = process.process.wait(), self.over.wait()
                    await asyncio.wait(
                        map(asyncio.create_task, ends), return_when=asyncio.FIRST_COMPLETED
                    )
                    del self._clients[process.watched]

    async def ask(self) -> None:
        """Ask random gateways, paused ones included; repeat each question until it is answered."""
        text = next(self.bed.questions)
        while not await self._is_over(self._chance.uniform(0, _EVERY_S)):
            if not self._clients:
                continue
            client = self._chance.choice(list(self._clients.values()))
            ended = await ask_until(client, text, self.bed.timeout_s, hurried=True)
            # The gateway has ended or is ending
            if ended.outcome.startswith(("UNAVAILABLE,", "CANCELLED,")):
                continue
            self.bed.ended.append(ended)
            if ended.outcome == ANSWERED:
                text = next(self.bed.questions)
            elif ended.outcome == "QUOTA_EXHAUSTED":
                self.left.append(self._options.quota - self.bed.spent)

    async def disturb(self) -> None:
        """Kill gateways, pause them while another one is awake, and restart the database."""
        await self.begun.wait()
        async with asyncio.TaskGroup() as group:
            for turn in count(1):
                if await self._is_over(self._options.every):
                    return
                awake = [process for process in self._clients if process not in self._paused]
                kind = "stopped" if turn % 2 else "killed"
                if turn % _RESTARTS == 0:
                    kind = "restarted"
                    await asyncio.to_thread(
                        self._server.restart, self._chance.choice(("fast", "immediate"))
                    )
                elif kind == "stopped" and len(awake) > 1:
                    group.create_task(self._pause(self._chance.choice(awake)))
                elif kind == "killed" and awake:
                    self._chance.choice(awake).kill()
                else:
                    continue
                self.bed.happened[kind] += 1

    async def _pause(self, process: psutil.Process) -> None:
        self._paused.add(process)
        process.suspend()
        await self._is_over(self._chance.uniform(1, self._options.stop))
        process.resume()
        self._paused.remove(process)

    async def _is_over(self, within_s: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.over.wait(), within_s)
        return self.over.is_set()
