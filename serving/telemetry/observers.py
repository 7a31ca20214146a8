"""Open the observers that `[telemetry]` configures: metrics and traces."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from router.background import background_tasks
from router.calls import Readiness, Upstreams
from router.edge.http.server import HTTPServer
from router.runs import Admission, Observer
from router.runs.observers import Observers
from router.search.report_cache import ReportCounts
from router.store import LogJournal
from serving.config.config import TelemetryConfig
from serving.config.secrets import webhook_key
from serving.engines.engine import Log
from serving.telemetry.quotas import ShowQuotas, Webhook, watch_quotas

if TYPE_CHECKING:
    from serving.telemetry.metrics import Metrics

_EXPORT_S = 5


@dataclass(slots=True)
class Watched:
    """Parts of a gateway whose state the observers read."""

    admission: Admission
    upstreams: Upstreams
    addresses: Mapping[str, str | None]
    """Base URL of each deployment (an engine or endpoint that serves a model), by its name in the
    ledger; None for a provider that LiteLLM calls.
    """
    reports: ReportCounts | None
    """Counts of the report cache; None without a cache."""
    readiness: Readiness
    journal: LogJournal


@asynccontextmanager
async def open_observers(
    config: TelemetryConfig,
    log: Log,
    watched: Watched,
    hosts: Iterable[str] = (),
) -> AsyncIterator[Observers]:
    """Open the configured observers, and close them on exit. The libraries of an observer are
    imported only if the observer is configured.

    `hosts`: host names that requests for metrics may be sent to, as for `HTTPServer`. Raises
    `BadConfig` if the server of metrics cannot listen.
    """
    async with AsyncExitStack() as stack:
        observers = list[Observer]()
        show: ShowQuotas | None = None
        if config.metrics is not None:
            metrics = await stack.enter_async_context(_metrics(config.metrics, log, watched, hosts))
            show = metrics.show_quotas
            observers.append(metrics)
        if config.otlp is not None:
            traces = _traces(config.otlp, config.contents, watched)
            observers.append(await stack.enter_async_context(traces))

        key = webhook_key(config.webhook_secret_env)
        webhook = Webhook(config.webhook, key) if config.webhook and key else None
        quotas = watch_quotas(watched.journal, webhook, show)
        await stack.enter_async_context(background_tasks(quotas))
        yield Observers(*observers)


@asynccontextmanager
async def _metrics(
    address: str,
    log: Log,
    watched: Watched,
    hosts: Iterable[str],
) -> "AsyncIterator[Metrics]":
    from prometheus_client.aiohttp import make_aiohttp_handler

    from serving.telemetry.metrics import Gauges, Metrics

    gauges = Gauges(
        watched.admission,
        watched.upstreams,
        watched.reports,
        watched.readiness,
        lambda: watched.journal.lag_s,
    )
    metrics = Metrics(gauges)
    app = web.Application()
    app.router.add_get("/metrics", make_aiohttp_handler(metrics.registry))
    server = HTTPServer(app, 0.0, hosts=hosts)
    log(f"metrics are at http://{await server.start(address, 'telemetry.metrics')}/metrics")
    try:
        async with background_tasks(metrics.watch_event_loop()):
            yield metrics
    finally:
        await server.drain()


@asynccontextmanager
async def _traces(endpoint: str, contents: bool, watched: Watched) -> AsyncIterator[Observer]:
    # At its start, the gateway has checked that the extra `otlp` is installed
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from serving.telemetry.traces import Traces

    provider = TracerProvider(
        resource=Resource.create({"service.name": "rolegate"}), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=_EXPORT_S)))
    try:
        yield Traces(provider.get_tracer("rolegate"), watched.addresses, contents)
    finally:
        await asyncio.to_thread(provider.shutdown)  # sends the remaining spans
