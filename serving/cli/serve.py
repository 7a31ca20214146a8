"""`rolegate serve`: run the gateway until it is stopped; SIGTERM and SIGINT drain it."""

from collections.abc import Sequence

from serving.cli.options import add_config, chosen_config, host_port, new_parser
from serving.composition import running_gateway
from serving.logs import json_lines
from serving.signals import log_step, run_until_stopped


def serve(arguments: Sequence[str]) -> int:
    """Serve until told to stop."""
    parser = new_parser("serve", __doc__)
    add_config(parser)
    for option, what in (
        ("--address", "listen here instead of at the config's server.address"),
        ("--http", "serve OpenAI's protocol here, not at server.http"),
    ):
        parser.add_argument(option, type=host_port, metavar="HOST:PORT", help=what)
    what = "one JSON object a line, or text (default: telemetry.log_format)"
    parser.add_argument("--log-format", choices=("text", "json"), help=what)
    given = parser.parse_args(arguments)
    config = chosen_config(given)
    if (given.log_format or config.telemetry.log_format) == "json":
        json_lines()
    address = given.address or config.server.address
    http = given.http or config.server.http
    run_until_stopped(running_gateway(config, address, log_step, http))
    return 0
