"""Open the observers that `[telemetry]` configures: metrics and traces."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from router.background import background_tasks
from router.calls import Readiness, Upstreams
from router.edge.http.server import HTTPServer
from router.runs import Admission, Observer
from router.runs.observers import Observers
from router.search.report_cache import ReportCounts
from router.store import LogJournal
from serving.config.config import TelemetryConfig
from serving.engines.engine import Log

_EXPORT_S = 5


@dataclass(slots=True)
class Watched:
    """Parts of a gateway whose state observers report."""

    admission: Admission
    upstreams: Upstreams
    addresses: Mapping[str, str | None]
    """Base URLs by deployment."""
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
    """Open the configured observers while the context is open. The libraries of an observer are
    only imported if it is configured.

    `hosts`: host names under which the metrics may be requested, as for `HTTPServer`. Raises
    `BadConfig`.
    """
    async with AsyncExitStack() as stack:
        observers: list[Observer] = []
        if config.metrics is not None:
            metrics = _metrics(config.metrics, log, watched, hosts)
            observers.append(await stack.enter_async_context(metrics))
        if config.otlp is not None:
            traces = _traces(config.otlp, config.contents, watched)
            observers.append(await stack.enter_async_context(traces))
        yield Observers(*observers)


@asynccontextmanager
async def _metrics(
    address: str,
    log: Log,
    watched: Watched,
    hosts: Iterable[str],
) -> AsyncIterator[Observer]:
    from prometheus_client.aiohttp import make_aiohttp_handler

    from serving.telemetry.metrics import Gauges, Metrics

    journal = watched.journal
    gauges = Gauges(
        watched.admission,
        watched.upstreams,
        watched.reports,
        watched.readiness,
        lambda: journal.lag_s,
    )
    metrics = Metrics(gauges)
    app = web.Application()
    app.router.add_get("/metrics", make_aiohttp_handler(metrics.registry))
    server = HTTPServer(app, 0.0, hosts=hosts)
    log(f"metrics are at http://{await server.start(address, 'telemetry.metrics')}/metrics")
    try:
        quotas = metrics.watch_quotas(journal.quotas_left)
        async with background_tasks(metrics.watch_event_loop(), quotas):
            yield metrics
    finally:
        await server.drain()


@asynccontextmanager
async def _traces(endpoint: str, contents: bool, watched: Watched) -> AsyncIterator[Observer]:
    # That the extra `otlp` is installed has been checked when the gateway started.
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
        yield Traces(provider, watched.addresses, contents=contents)
    finally:
        await asyncio.to_thread(provider.shutdown)  # sends the remaining spans
