"""A gateway in a process of its own: `python -m benchmarks.gateway_child CONFIG [--no-store] [--quiet] [--lag FILE]`.

It listens on free ports of the loopback, prints the addresses of gRPC and of HTTP, and goes on until its standard input
ends.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import structlog

from router.ledger.journal import NoJournal
from router.runs.live import meanwhile
from serving.composition import running_gateway
from serving.config.file import load_config
from serving.logs import errors_only
from serving.signals import collect_seldom

EVERY_S = 0.005
"""Between two looks at how late the event loop is."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--no-store", action="store_true", help="keep nothing, for comparison")
    parser.add_argument("--quiet", action="store_true", help="log errors only")
    parser.add_argument(
        "--lag", type=Path, metavar="FILE", help="where it is kept how late the event loop was, and when"
    )
    given = parser.parse_args(arguments)
    if given.quiet:
        errors_only()
    else:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(_serve(given))


async def _serve(given: argparse.Namespace) -> None:
    journal = NoJournal() if given.no_store else None
    config = load_config(given.config)
    told: list[str] = []
    serving = running_gateway(config, "127.0.0.1:0", told.append, "127.0.0.1:0", journal=journal)
    async with _watched(given.lag), serving as address:
        collect_seldom()
        print(address, told[-1].rpartition(" ")[2], flush=True)
        await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def _watched(file: Path | None) -> AsyncIterator[None]:
    """Keep in `file` pairs of a Unix time and how many seconds late the event loop came to it."""
    seen: list[tuple[float, float]] = []

    async def watch() -> None:
        while True:
            due = time.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            seen.append((due, time.time() - due))

    if file is None:
        yield
        return
    async with meanwhile(watch()):
        yield
    file.write_bytes(msgspec.json.encode(seen))


if __name__ == "__main__":
    main()
