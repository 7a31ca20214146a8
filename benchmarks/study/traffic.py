"""What logged traffic has spent, from a store or from an export of traces."""

from pathlib import Path

import msgspec

from benchmarks.study.pricing import merged
from router.errors import BadConfig
from router.ledger.usage import UsageQuery
from router.store.database import Database
from router.store.usage import SQLUsages
from router.trace.call import RoleTotal, totals
from router.trace.run import Run


class Traffic(msgspec.Struct, frozen=True):
    """Sums over runs of all kinds."""

    runs: int
    totals: list[RoleTotal]
    """By role and model."""


class _Exported(msgspec.Struct, frozen=True):
    """A line of `rolegate runs export`; what else it holds is not needed."""

    trace: str


async def of_store(url: str) -> Traffic:
    """What a store holds, sums of deleted runs included. Raises `BadConfig` and `StoreFailed`."""
    file = url.removeprefix("sqlite:///")
    if file != url and not Path(file).expanduser().exists():
        raise BadConfig(f"--store {url}: there is no such file; name the store of a gateway.")
    database = await Database.open(url)
    try:
        report = await SQLUsages(database).usage(UsageQuery())
    finally:
        await database.close()
    fields = set(RoleTotal.__struct_fields__)
    rows = [{key: value for key, value in msgspec.to_builtins(row).items() if key in fields} for row in report.rows]
    return Traffic(report.runs, [msgspec.convert(row, RoleTotal) for row in rows])


def of_traces(path: Path) -> Traffic:
    """What an export to JSON lines holds, a run in memory at a time. Raises `BadConfig`, naming file and line."""
    runs, found = 0, list[RoleTotal]()
    decoder = msgspec.json.Decoder(_Exported)
    try:
        with path.open("rb") as file:
            for runs, line in enumerate(file, 1):
                try:
                    run = msgspec.json.decode(decoder.decode(line).trace.strip(), type=Run)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise BadConfig(f"{path}:{runs}: {error}; name what `rolegate runs export` wrote.") from None
                found = merged([*found, *totals(run.calls)])
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read ({error.strerror}); name a file of traces.") from None
    return Traffic(runs, found)
