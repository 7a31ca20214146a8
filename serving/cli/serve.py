"""`rolegate serve`: run the gateway until it is stopped; SIGTERM and SIGINT drain it."""

import argparse
import asyncio
import signal
from collections.abc import Sequence

import structlog

from serving.cli.options import add_config, chosen_config
from serving.composition import running_gateway
from serving.config import Config

_log = structlog.get_logger("serve")


def main(arguments: Sequence[str]) -> int:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(prog="rolegate serve", description=__doc__)
    add_config(parser)
    parser.add_argument("--address", metavar="HOST:PORT", help="listen here instead of at the config's server.address")
    given = parser.parse_args(arguments)
    config = chosen_config(given)
    asyncio.run(_serve(config, given.address or config.server.address))
    return 0


async def _serve(config: Config, address: str) -> None:
    """Serve until a signal comes; one that comes while engines still load ends the start."""
    this = asyncio.current_task()
    assert this is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, this.cancel)
    try:
        async with running_gateway(config, address, lambda text: _log.info("serve.starting", step=text)) as listening:
            _log.info("serve.ready", address=listening)
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        _log.info("serve.stopped")
