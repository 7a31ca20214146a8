"""A gateway in a process of its own: `python -m benchmarks.gateway_child CONFIG [--no-store] [--quiet]`.

It listens on a free port of the loopback, prints the address, and goes on until its standard input ends.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog

from router.no_journal import NoJournal
from serving.composition import running_gateway
from serving.config_file import load_config
from serving.garbage import collect_seldom
from serving.logs import errors_only


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--no-store", action="store_true", help="keep nothing, for comparison")
    parser.add_argument("--quiet", action="store_true", help="log errors only")
    given = parser.parse_args(arguments)
    if given.quiet:
        errors_only()
    else:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(_serve(given))


async def _serve(given: argparse.Namespace) -> None:
    journal = NoJournal() if given.no_store else None
    config = load_config(given.config)
    async with running_gateway(config, "127.0.0.1:0", lambda _step: None, journal=journal) as address:
        collect_seldom()
        print(address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    main()
