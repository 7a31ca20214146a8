"""A gateway with telemetry, over models and a retriever that answer immediately."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace
from rolegate.client import AsyncClient

from benchmarks.gateway import canned_config, played
from serving.composition import running_gateway
from serving.config.config import TelemetryConfig
from serving.config.file import load_config

QUESTION = "When was the director of Heat born?"


@dataclass(frozen=True, slots=True)
class WatchedGateway:
    """Address, client, base URL of the models, and startup messages of the gateway."""

    address: str
    client: AsyncClient
    models: str
    told: list[str]

    def listens(self, subject: str) -> str:
        """Return the address of the metrics or of HTTP."""
        return next(step.rpartition(" ")[2] for step in self.told if subject in step)


@asynccontextmanager
async def watched_gateway(
    folder: Path, telemetry: TelemetryConfig, http: str | None = None, hosts: tuple[str, ...] = ()
) -> AsyncIterator[WatchedGateway]:
    """Run the gateway while the context is open."""
    lines: list[str] = []
    async with played() as (models, retrieval):
        file = canned_config(folder, [models.base_url], retrieval, report_cache={"enabled": True})
        config = load_config(file)
        config = replace(
            config, telemetry=telemetry, server=replace(config.server, http_hosts=hosts)
        )
        async with (
            running_gateway(config, "127.0.0.1:0", lines.append, http) as address,
            AsyncClient(address) as client,
        ):
            yield WatchedGateway(address, client, models.base_url, lines)
