"""`rolegate serve`: run the gateway until it is stopped."""

from collections.abc import Sequence
from typing import Literal

from serving.cli.command import parse
from serving.cli.options import ConfigOptions, HostPort
from serving.composition import running_gateway
from serving.config.file import load_config
from serving.logs import json_lines
from serving.signals import log_step, run_until_stopped


class ServeOptions(ConfigOptions):
    """Run the gateway until it is stopped.

    After SIGTERM or SIGINT, the gateway stops when the running requests have ended, or after
    server.grace_s seconds (docs/configuration.md). A second signal ends the running requests
    immediately.
    """

    address: HostPort | None = None
    """Listen for gRPC at this address (default: server.address of the config)."""
    http: HostPort | None = None
    """Serve web pages and the OpenAI-compatible API at this address (default: server.http of the
    config).
    """
    log_format: Literal["text", "json"] | None = None
    """Log as text, or as one JSON object per line (default: telemetry.log_format of the config)."""


def serve(arguments: Sequence[str]) -> int:
    """Run `rolegate serve`; return the exit status."""
    options = parse(ServeOptions, "serve", arguments)
    config = load_config(options.config)
    if (options.log_format or config.telemetry.log_format) == "json":
        json_lines()
    run_until_stopped(
        running_gateway(
            config,
            options.address or config.server.address,
            log_step,
            options.http or config.server.http,
        )
    )
    return 0
