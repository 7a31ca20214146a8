"""Metrics for Prometheus: counters and histograms of what has ended, and gauges of what is."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.calls import Upstreams
from router.calls.replicas import BreakerState
from router.runs import Admission
from router.search.report_cache import ReportCounts
from router.trace import Call, Run
from router.trace.export import outcome_of

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_LOOK_EVERY_S = 0.25


class Metrics:
    """An `Observer` that counts, in a registry of its own."""

    def __init__(self, *now: Collector) -> None:
        """`now`: collectors of what is, asked whenever somebody asks."""
        self.registry = registry = CollectorRegistry()
        ProcessCollector(namespace="rolegate", registry=registry)
        for collector in now:
            registry.register(collector)

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"rolegate_{name}", what, labels, registry=registry)

        def histogram(
            name: str, what: str, *labels: str, buckets: tuple[float, ...] = _SECONDS
        ) -> Histogram:
            return Histogram(
                f"rolegate_{name}_seconds", what, labels, buckets=buckets, registry=registry
            )

        self._under_way = Gauge(
            "rolegate_requests_in_flight", "Requests under way", ("rpc",), registry=registry
        )
        self._requests = counter("requests", "Requests by how they ended", "rpc", "code")
        self._request_s = histogram("request", "What requests took", "rpc")
        self._runs = counter("runs", "Runs by how they ended", "kind", "status", "outcome")
        self._run_s = histogram("run", "What runs took", "kind")
        self._calls = counter(
            "calls", "Attempts of model calls", "role", "model", "purpose", "outcome"
        )
        self._call_s = histogram("call", "What attempts of model calls took", "role")
        self._first_token_s = histogram(
            "first_token", "From the request to the first token", "role"
        )
        self._tokens = counter(
            "tokens", "Tokens; cached and reasoning are parts of the others", "role", "kind"
        )
        self._wasted = counter(
            "wasted_tokens", "Tokens of attempts whose output nobody got", "role"
        )
        self._unknown = counter("uncounted_calls", "Attempts whose tokens nobody knows", "role")
        self._dollars = counter(
            "cost_usd", "What the tokens cost, where the price is known", "role"
        )
        self._searches = counter(
            "searches", "Queries searched for; error is empty where it went well", "error"
        )
        self._search_s = histogram("search", "What searching for a query took")
        self._lag_s = histogram(
            "event_loop_lag", "How late the event loop is", buckets=_LAG_SECONDS
        )

    def request_began(self, method: str, metadata: Mapping[str, str]) -> None:
        """Count it as under way."""
        self._under_way.labels(method).inc()

    def request_ended(self, method: str, code: str, duration_s: float) -> None:
        """Count it."""
        self._under_way.labels(method).dec()
        self._requests.labels(method, code).inc()
        self._request_s.labels(method).observe(duration_s)

    def run_began(self) -> None:
        """Do nothing."""

    def run_ended(self, run: Run, *, private: bool) -> None:
        """Count it and its calls."""
        self._runs.labels(run.kind, run.status, outcome_of(run) or "").inc()
        self._run_s.labels(run.kind).observe(run.duration_s)
        for call in run.calls:
            self._count(call)

    def searched(self, query: str, began_at: float, duration_s: float, error: str | None) -> None:
        """Count it."""
        self._searches.labels(error or "").inc()
        self._search_s.observe(duration_s)

    async def watch_event_loop(self) -> None:
        """Measure how late the event loop is, for ever."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + _LOOK_EVERY_S
            await asyncio.sleep(_LOOK_EVERY_S)
            self._lag_s.observe(max(0.0, clock() - due))

    def _count(self, call: Call) -> None:
        self._calls.labels(call.role, call.model, call.purpose, call.outcome).inc()
        self._call_s.labels(call.role).observe(call.duration_s)
        if call.first_token_s is not None:
            self._first_token_s.labels(call.role).observe(call.first_token_s)
        if call.nano_usd is not None:
            self._dollars.labels(call.role).inc(call.nano_usd / 1e9)
        if call.usage is None:
            self._unknown.labels(call.role).inc()
            return
        self._wasted.labels(call.role).inc(call.wasted_tokens)
        for kind in ("prompt", "completion", "cached", "reasoning"):
            tokens: int | None = getattr(call.usage, f"{kind}_tokens")
            if tokens is not None:
                self._tokens.labels(call.role, kind).inc(tokens)


@dataclass(frozen=True, slots=True)
class Gauges(Collector):
    """Reads plain attributes, on the event loop."""

    admission: Admission
    upstreams: Upstreams
    reports: ReportCounts | None

    def collect(self) -> Iterator[Metric]:
        """Everything."""
        roles = self.upstreams.roles.items()
        endpoints = self.upstreams.endpoints.items()
        gauge = GaugeMetricFamily
        counter = CounterMetricFamily
        at = "deployment"
        yield gauge("rolegate_runs_in_flight", "Runs under way", value=self.admission.running)
        yield gauge("rolegate_runs_queued", "Runs that wait to begin", value=self.admission.waiting)
        under_way = [(name, role.in_flight) for name, role in roles]
        yield _family(gauge, "role_calls_in_flight", "Attempts under way", under_way, "role")
        waiting = [(name, role.waiting) for name, role in roles]
        yield _family(gauge, "role_calls_queued", "Attempts that wait for a place", waiting, "role")
        fallbacks = [(name, role.fallbacks) for name, role in roles]
        yield _family(
            counter, "fallbacks", "Calls that another role's model got", fallbacks, "role"
        )
        states = [
            (name, each, end.breaker.state == each)
            for name, end in endpoints
            for each in get_args(BreakerState)
        ]
        yield _family(gauge, "breaker_state", "1 for the state it is in", states, at, "state")
        openings = [(name, endpoint.breaker.openings) for name, endpoint in endpoints]
        yield _family(counter, "breaker_openings", "How often it was opened", openings, at)
        calls = [(name, endpoint.in_flight) for name, endpoint in endpoints]
        yield _family(gauge, "endpoint_calls_in_flight", "Calls under way", calls, at)
        if self.reports is not None:
            reports = asdict(self.reports).items()
            yield _family(
                counter, "sub_queries", "Sub-queries by where reports came from", reports, "report"
            )


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    what: str,
    rows: Iterable[tuple[str | float, ...]],
    *labels: str,
) -> Metric:
    """`rows`: what stands for the labels, and the value."""
    found = kind(f"rolegate_{name}", what, labels=labels)
    for *names, value in rows:
        found.add_metric([str(each) for each in names], float(value))
    return found
