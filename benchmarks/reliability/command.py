"""Check that nothing is lost and all costs are recorded exactly while upstreams fail and the
gateway is killed.

The endpoints of the models (upstreams) are behind proxies, which make a share of the calls fail. In
the part faults, a share of the searches fails too. A seed decides which calls fail, and how. There
are four parts:

faults    simulated models with many kinds of faults: connection resets, series of 429 and 503,
          calls that are never answered, streams that are very slow or end early, wrong usage,
          invalid UTF-8, duplicated chunks, health endpoints that hang
kills     slow simulated models. The gateway is killed (SIGKILL) at random moments and restarted,
          many times. Half of the interrupted questions are asked again, with the same request id,
          and must resume their runs
tables    as kills, but with tables. Each table is requested again until it is complete, and then
          compared with the table of an undisturbed run
vllm      as kills, but with the demo's models on real vLLM

The exit status is 1 if a check fails. Every check is printed with its result.
"""

import asyncio
import statistics
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, get_args

from msgspec import Meta
from rolegate.client import AsyncClient
from rolegate.v1.usage_service_pb2 import ReconciliationVerdict

from benchmarks import harness
from benchmarks.gateway import gateway
from benchmarks.harness import Check, watching, work_folder
from benchmarks.load import in_flight, rows_of
from benchmarks.reliability.audit import checks_of, compared, named
from benchmarks.reliability.testbed import COLUMNS, Conditions, TestBed, opened_bed
from executor_sft.command import Count
from router.frozen import Frozen
from router.store import opened
from router.testing.fault_proxy import FAULTS
from router.testing.postgres import running_postgres
from serving.terminal import complain

Part = Literal["faults", "kills", "tables", "vllm"]
_TABLE_S = 120.0
_PARTS: dict[Part, Conditions] = {
    "faults": Conditions(8.0, FAULTS),
    "kills": Conditions(8.0, pace=100.0),
    "tables": Conditions(_TABLE_S, pace=100.0, columns=COLUMNS),
    "vllm": Conditions(60.0, real=True),
}
_LATE_S = 0.1
_GROWTH = 0.1
_AGREE = {
    ReconciliationVerdict.RECONCILIATION_VERDICT_EQUAL,
    ReconciliationVerdict.RECONCILIATION_VERDICT_WITHIN_BOUNDS,
}


class Options(harness.Options):
    """Options of the benchmark."""

    parts: tuple[Part, ...] = get_args(Part)
    """parts to run, as described above: faults, kills, tables, vllm (default: all)"""
    questions: Annotated[int, Meta(ge=4)] = 2000
    """in the part faults: number of questions to ask"""
    in_flight: Count = 32
    """number of questions to ask at the same time"""
    share: Annotated[float, Meta(ge=0, le=1)] = 0.05
    """share of model calls that the benchmark lets fail, from 0 to 1"""
    kills: Count = 30
    """in each part except faults: number of times that the gateway is killed"""
    longest: Annotated[float, Meta(gt=0)] = 2.0
    """kill the gateway at a random time, at most this many seconds after its start"""
    store: Literal["sqlite", "postgres"] = "sqlite"
    """kind of database in which runs are stored"""
    seed: int = 0
    """seed that determines the faults and the times of the kills (default: 0)"""
    folder: Path | None = None
    """folder for the stores (default: a temporary folder)"""


class PartFigures(Frozen):
    """Figures of one part."""

    part: Part
    ended: dict[str, int]
    """Number of clients' requests for each value of `LoadResult.outcome`."""
    latest_ms: float
    """Time from the deadline to the end of the latest request, in milliseconds. Negative if all
    requests ended before their deadlines.
    """
    lag_ms: float
    """Max delay of the benchmark's event loop, in milliseconds. Clients, proxies and simulated
    models run in this event loop, so measured delays include this delay.
    """
    faults: dict[str, int]
    """Number of calls into which a fault was injected, by the kind of fault."""
    attempts: int
    """Number of calls that reached an upstream."""
    rows: dict[str, int]
    """Number of calls in the ledger, by outcome."""
    resumed: int
    """Number of runs that resumed an interrupted run."""
    in_flight: int
    """Number of calls that were interrupted by a kill, and so repeated by a resumed run."""


class Figures(Frozen):
    """Checks and figures of all parts of the benchmark."""

    checks: list[Check]
    parts: list[PartFigures]


async def measure(options: Options) -> Figures:
    """Run the chosen parts. Raises `RolegateError` if a gateway or upstream cannot be started."""
    checks = list[Check]()
    parts = list[PartFigures]()
    for part in options.parts:
        complain(f"reliability: {part}")
        postgres = running_postgres() if options.store == "postgres" else nullcontext()
        with work_folder(options.folder) as folder, postgres as server:
            store = server.url if server else f"sqlite:///{folder / part}/runs.db"
            figures, part_checks = await _part(part, folder / part, store, options)
        parts.append(figures)
        checks += [Check(f"{part}: {check.check}", check.held, check.seen) for check in part_checks]
    return Figures(checks, parts)


async def _part(
    part: Part,
    folder: Path,
    store: str,
    options: Options,
) -> tuple[PartFigures, list[Check]]:
    """Run a part, and return its figures and checks. `store`: URL of an empty database."""
    async with opened_bed(_PARTS[part], folder, store, options.seed) as bed:
        checks = await (_failing if part == "faults" else _killed)(bed, options)
        if part == "tables":
            checks.append(await _compared_tables(bed, options))

    ended = bed.ended
    attempts = [attempt for proxy in bed.proxies for attempt in proxy.attempts]
    async with opened(store) as database:
        audit = await database.read(lambda connection: compared(connection, ended, attempts))
    checks += checks_of(ended, _LATE_S + bed.lag_s, audit.wrong)
    figures = PartFigures(
        part,
        dict(Counter(result.outcome for result in ended).most_common()),
        max((result.late_s for result in ended), default=0.0) * 1000,
        bed.lag_s * 1000,
        dict(bed.faults.most_common()),
        len(attempts),
        audit.rows,
        audit.resumed,
        audit.in_flight,
    )
    return figures, checks


async def _failing(bed: TestBed, options: Options) -> list[Check]:
    """Ask a gateway questions while upstreams fail. Return checks that the gateway's memory and
    number of open files do not grow.
    """
    bed.fail(options.share)
    async with gateway(bed.config) as process, watching(process.watched) as samples:
        texts = islice(bed.questions, options.questions)
        await bed.keep_asking(process.words[0], texts, options.in_flight)
    names = ("memory", "open files")
    return [_growth(*column) for column in zip(names, zip(*samples, strict=True), strict=True)]


def _growth(name: str, samples: Sequence[float]) -> Check:
    """Return a check that a value does not grow by more than 10 %. It compares the second quarter
    of the samples with the last quarter; the first quarter is the warm-up.
    """
    quarter = len(samples) // 4
    first = statistics.median(samples[quarter : 2 * quarter + 1])
    last = statistics.median(samples[-quarter - 1 :])
    held = last <= first * (1 + _GROWTH)
    return Check(f"{name} within 10 %", held, f"{first:,.0f}, then {last:,.0f}")


async def _killed(bed: TestBed, options: Options) -> list[Check]:
    """Ask gateways questions while they are killed at random moments. Then let a last gateway
    finish the interrupted questions, and return a check that the ledger agrees with the upstreams'
    counters.
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
        verdicts = {row.verdict for row in await client.reconcile()}
    names = sorted(map(ReconciliationVerdict.Name, verdicts))
    agree = bool(verdicts) and verdicts <= _AGREE
    return [Check("the ledger agrees with the upstreams' counters", agree, named(names))]


async def _compared_tables(bed: TestBed, options: Options) -> Check:
    """Fill each table again, without faults and kills. Return a check that the second table equals
    the first.
    """
    async with gateway(bed.config) as process, AsyncClient(process.words[0]) as client:

        async def undisturbed(text: str) -> str:
            return rows_of((await client.table(text, COLUMNS, (), _TABLE_S)).message)

        expected = await in_flight(undisturbed, bed.tables, options.in_flight)
    pairs = zip(bed.tables.items(), expected, strict=True)
    different = [text for (text, rows), expected_rows in pairs if rows != expected_rows]
    return Check(
        "each table equals the table of an undisturbed run",
        bool(expected) and not different,
        named(different),
    )
