"""`rolegate serve`: run the gateway until it is stopped; SIGTERM and SIGINT drain it."""

import argparse
import asyncio
from collections.abc import Sequence

from serving.cli.options import add_config, chosen_config, host_port
from serving.composition import running_gateway
from serving.engines.workers import running_workers
from serving.signals import tell, until_stopped

_MOST_WORKERS = 64


def main(arguments: Sequence[str]) -> int:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(prog="rolegate serve", description=__doc__)
    add_config(parser)
    for option, what in (
        ("--address", "listen here instead of at the config's server.address"),
        ("--http", "open the OpenAI-compatible door here, not at server.http"),
    ):
        parser.add_argument(option, type=host_port, metavar="HOST:PORT", help=what)
    parser.add_argument("--workers", type=_count, default=1, metavar="N", help="processes (default: %(default)s)")
    given = parser.parse_args(arguments)
    config = chosen_config(given)
    address, http = given.address or config.server.address, given.http or config.server.http
    if given.workers > 1:
        service = running_workers(config, address, tell, http, given.workers)
    else:
        service = running_gateway(config, address, tell, http)
    asyncio.run(until_stopped(service))
    return 0


def _count(text: str) -> int:
    if not 1 <= (number := int(text)) <= _MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"{text}: must be 1 to {_MOST_WORKERS}")
    return number
