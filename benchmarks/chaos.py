"""Whether every question ends in time, answered or not, and every call is booked, while what is around the gateway
fails. Fault proxies stand before all its upstreams; what they do is drawn by a seed.

faults   models that answer at once, of which a share of calls goes wrong: resets, storms of 429 and of 503, calls that
         are never answered, streams that drip or are cut, lying usage, invalid UTF-8, duplicated chunks, stuck health
         endpoints
replica  models as slow as real ones, of which one replica dies again and again: what others' questions notice of it
engines  real vLLM engines (the preset `mini`), with the same faults, that are killed, and hang, and are started again

It ends with 1 where anything did not hold, which is named.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.chaos_accounts import Accounts
from benchmarks.chaos_engines import Engines, engines_killed
from benchmarks.chaos_faults import Faulty, faulty
from benchmarks.chaos_questions import ANSWERED, Load, Told
from benchmarks.chaos_replica import Replica, one_dead
from serving.files import write_atomically
from serving.logs import errors_only

_PARTS = ("faults", "replica", "engines")
_MOST_GROWTH = _MOST_SLOWER = 0.1
_NAMED = 3
_AT_ENGINES = 4
"""Questions in flight at real engines."""


class Check(msgspec.Struct, frozen=True):
    """Something that has to hold."""

    part: str
    what: str
    held: bool
    seen: str


class Figures(msgspec.Struct, frozen=True):
    """What was seen; None for what was not asked for."""

    checks: list[Check]
    faults: Faulty | None = None
    replica: Replica | None = None
    engines: Engines | None = None


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; 1 where anything did not hold."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(_PARTS)} (default: all)")
    parser.add_argument("--questions", type=int, default=10_000, metavar="N", help="of `faults` (default: 10,000)")
    parser.add_argument("--in-flight", type=int, default=32, metavar="N", help="of them (default: 32)")
    parser.add_argument("--share", type=float, default=0.05, help="of calls at which something fails (default: 0.05)")
    parser.add_argument("--replica-questions", type=int, default=1200, metavar="N", help="(default: 1,200)")
    parser.add_argument("--rate", type=float, default=8.0, metavar="N", help="of them a second (default: 8)")
    parser.add_argument("--engine-questions", type=int, default=200, metavar="N", help="at least (default: 200)")
    parser.add_argument("--kills", type=int, default=3, metavar="N", help="of engines (default: 3)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where the stores are put, and kept")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the figures go")
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - set(_PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    for part in given.parts or _PARTS:
        if given.folder and (given.folder / part).exists():
            parser.error(f"--folder: {given.folder / part} is there already; name a new folder")
    errors_only()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(_measured(given, given.folder or Path(folder)))
    if given.json:
        write_atomically(given.json, msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    _show(figures, Console())
    return int(not all(check.held for check in figures.checks))


async def _measured(given: argparse.Namespace, folder: Path) -> Figures:
    parts, share, seed = given.parts or _PARTS, given.share, given.seed
    faults = replica = engines = None
    folder.mkdir(parents=True, exist_ok=True)
    with Progress(console=Console(stderr=True)) as progress:

        def bar(part: str, total: int) -> Callable[[int], None]:
            task = progress.add_task(part, total=total)
            return lambda done: progress.update(task, completed=done)

        if "faults" in parts:
            step = bar("faults", given.questions)
            faults = await faulty(folder / "faults", Load(given.questions, given.in_flight, share, seed), step)
        if "replica" in parts:
            step = bar("replica", given.replica_questions)
            replica = await one_dead(folder / "replica", given.replica_questions, given.rate, seed, step)
        if "engines" in parts:
            step = bar("engines", given.engine_questions)
            load = Load(given.engine_questions, _AT_ENGINES, share, seed)
            engines = await engines_killed(folder / "engines", load, given.kills, step)
    return Figures([*_checks(faults, replica, engines, given.kills)], faults, replica, engines)


def _checks(faults: Faulty | None, replica: Replica | None, engines: Engines | None, kills: int) -> Iterator[Check]:
    if faults:
        yield from ended_and_booked("faults", faults.told, faults.accounts)
        first, last = faults.own_mb[0], faults.own_mb[-1]
        seen = f"{first:.1f} MB in the first thousand, {last:.1f} MB in the last ({faults.growth:+.1%})"
        yield Check("faults", "memory stays within 10 %", faults.growth <= _MOST_GROWTH, seen)
        first, last = faults.descriptors[0], faults.descriptors[-1]
        seen = f"{first:.0f} in the first thousand, {last:.0f} in the last"
        yield Check("faults", "open files stay within 10 %", last <= first * (1 + _MOST_GROWTH), seen)
    if replica:
        yield from ended_and_booked("replica", replica.told, replica.accounts)
        for beside in replica.beside:
            seen = f"{beside.well_p99_s:.2f} s, then {beside.p99_s:.2f} s ({beside.ratio - 1:+.1%})"
            held = beside.others > 0 and beside.ratio <= 1 + _MOST_SLOWER
            yield Check("replica", f"one {beside.death}: p99 of others within 10 %", held, seen)
    if engines:
        yield from ended_and_booked("engines", engines.told, engines.accounts)
        back = [death.down_s for death in engines.deaths if death.down_s is not None]
        seen = f"{engines.killed} kills; back after {', '.join(f'{seconds:.0f}' for seconds in back) or 'no'} s"
        yield Check("engines", "killed and back", engines.killed == kills and len(back) == len(engines.deaths), seen)
        answered, asked = engines.answered_afterwards, engines.asked_afterwards
        yield Check("engines", "answers again", answered == asked, f"{answered} of {asked} questions afterwards")


def ended_and_booked(part: str, told: Told, found: Accounts) -> Iterator[Check]:
    """What has to hold wherever questions are asked."""
    seen = f"{told.late} of {told.questions}; {told.latest_ms:+.0f} ms at most; the asker itself: {told.lag_ms:.0f} ms"
    yield Check(part, "none ends 100 ms after its deadline", not told.late, seen)
    yield Check(part, "each ends in an answer or a typed error", not told.untyped, _counts(told.outcomes))
    yield Check(part, "some are answered", ANSWERED in told.outcomes, f"{told.outcomes.get(ANSWERED, 0)} answers")
    yield Check(part, "no answer is lost", not found.lost, _named(found.lost))
    yield Check(part, "nothing is left open", not found.stuck, _named(found.stuck))
    yield Check(part, "no attempt comes twice", not found.again, _named(found.again))
    seen = f"{found.attempts} attempts at upstreams; {_named(found.unaccounted)}"
    yield Check(part, "every attempt is booked", bool(found.attempts) and not found.unaccounted, seen)
    yield Check(part, "no row is invented", not found.invented, f"{sum(found.rows.values())} rows")


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}" if names else "none"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _show(figures: Figures, console: Console) -> None:
    table = Table("part", "what has to hold", "", "seen")
    for check in figures.checks:
        table.add_row(check.part, check.what, "yes" if check.held else "NO", check.seen)
    console.print(table)
    for check in figures.checks:
        if not check.held:
            console.print(f"did not hold: {check.part}: {check.what}: {check.seen}")
