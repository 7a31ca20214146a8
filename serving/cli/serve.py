"""`rolegate serve`: run the gateway until it is stopped."""

from collections.abc import Sequence
from typing import Literal

from serving.cli.command import parse
from serving.cli.options import ConfigOptions, HostPort
from serving.composition import running_gateway
from serving.config.file import load_config
from serving.logs import json_lines
from serving.signals import log_step, run_until_stopped


class ServeOptions(ConfigOptions, frozen=True):
    """Run the gateway until it is stopped; SIGTERM and SIGINT drain it."""

    address: HostPort | None = None
    """Listen here instead of at the config's server.address."""
    http: HostPort | None = None
    """Serve OpenAI's protocol and pages here instead of at server.http."""
    log_format: Literal["text", "json"] | None = None
    """Log text, or one JSON object per line (default: telemetry.log_format)."""


def serve(arguments: Sequence[str]) -> int:
    """Serve until a signal stops the gateway."""
    options = parse(ServeOptions, "serve", arguments)
    config = load_config(options.config)
    if (options.log_format or config.telemetry.log_format) == "json":
        json_lines()
    address = options.address or config.server.address
    http = options.http or config.server.http
    run_until_stopped(running_gateway(config, address, log_step, http))
    return 0
