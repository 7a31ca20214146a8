"""`rolegate serve`: run the gateway until it is stopped; SIGTERM and SIGINT drain it."""

import asyncio
from collections.abc import Sequence

from serving.cli.options import add_config, chosen_config, host_port, new_parser
from serving.composition import running_gateway
from serving.signals import log_step, until_stopped


def serve(arguments: Sequence[str]) -> int:
    """Serve until told to stop."""
    parser = new_parser("serve", __doc__)
    add_config(parser)
    for option, what in (
        ("--address", "listen here instead of at the config's server.address"),
        ("--http", "serve OpenAI's protocol here, not at server.http"),
    ):
        parser.add_argument(option, type=host_port, metavar="HOST:PORT", help=what)
    given = parser.parse_args(arguments)
    config = chosen_config(given)
    address, http = given.address or config.server.address, given.http or config.server.http
    asyncio.run(until_stopped(running_gateway(config, address, log_step, http)))
    return 0
