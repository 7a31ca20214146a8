"""Metrics for Prometheus: counters and histograms of finished work, and gauges of current state.

`docs/metrics.md` lists the names and help texts of all metrics. The label `tenant` has the names of
the first `_MAX_TENANTS` tenants; all further tenants are counted together as `other`.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.access import QuotaUse
from router.calls import Readiness, Upstreams
from router.calls.replicas import BreakerState
from router.edge.status import STATUS
from router.runs import Admission
from router.search.report_cache import ReportCounts
from router.trace import Call, Run
from router.trace.export import outcome_of

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_LAG_INTERVAL_S = 0.25
_MAX_TENANTS = 50
_OTHER = "other"
_REASONS = {kind.__name__: reason for kind, (_, reason) in STATUS.items()}
"""Reasons of failed runs (see docs/errors.md), by the name of the error class."""


class Metrics:
    """An `Observer` that counts requests, runs, calls and searches in a Prometheus registry."""

    def __init__(self, *collectors: Collector) -> None:
        """`collectors`: further collectors to register, such as `Gauges`."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._tenants = set[str]()
        """Tenants whose names are values of the label `tenant`."""
        self.registry = registry = CollectorRegistry()
        ProcessCollector(namespace="rolegate", registry=registry)
        for collector in collectors:
            registry.register(collector)

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"rolegate_{name}", what, labels, registry=registry)

        def histogram(
            name: str,
            what: str,
            *labels: str,
            buckets: tuple[float, ...] = _SECONDS,
        ) -> Histogram:
            return Histogram(
                f"rolegate_{name}_seconds",
                what,
                labels,
                buckets=buckets,
                registry=registry,
            )

        self._in_flight = Gauge(
            "rolegate_requests_in_flight",
            "Requests that are being served",
            ("rpc",),
            registry=registry,
        )
        self._requests = counter("requests", "Finished requests", "rpc", "code")
        self._request_s = histogram("request", "Duration of requests in seconds", "rpc")
        self._runs = counter(
            "runs",
            "Finished runs",
            "kind",
            "status",
            "outcome",
            "tenant",
        )
        self._failures = counter(
            "run_failures",
            "Runs that failed or were interrupted",
            "reason",
            "tenant",
        )
        self._quota_left = Gauge(
            "rolegate_quota_left_ratio",
            "Share of a tenant's quota that is left, from 0 to 1. After the first 50 tenants, "
            "all others share the label `other`, with the smallest share among them",
            ("tenant", "quota"),
            registry=registry,
        )
        self._warnings = counter(
            "quota_warnings",
            "Warnings that 80 % of a tenant's quota is spent. Only one gateway counts each warning",
            "tenant",
            "quota",
        )
        self._run_s = histogram("run", "Duration of runs in seconds", "kind")
        self._calls = counter(
            "calls",
            "Attempts of model calls",
            "role",
            "model",
            "purpose",
            "outcome",
        )
        self._call_s = histogram("call", "Duration of attempts of model calls in seconds", "role")
        self._first_token_s = histogram(
            "first_token", "Seconds from an attempt to its first token", "role"
        )
        self._tokens = counter(
            "tokens",
            "Tokens of model calls. Prompt tokens include cached tokens, and completion tokens "
            "include reasoning tokens",
            "role",
            "kind",
            "tenant",
        )
        self._wasted = counter(
            "wasted_tokens", "Tokens of attempts whose output was discarded", "role"
        )
        self._unknown = counter(
            "uncounted_calls", "Attempts of model calls with unknown token counts", "role"
        )
        self._dollars = counter(
            "cost_usd", "Cost in US dollars of calls with a known price", "role", "tenant"
        )
        self._searches = counter("searches", "Finished searches", "error")
        self._search_s = histogram("search", "Duration of searches in seconds")
        self._lag_s = histogram(
            "event_loop_lag", "Delay of the event loop's timers, in seconds", buckets=_LAG_SECONDS
        )

    def request_began(self, method: str, metadata: Mapping[str, str]) -> None:
        """Count a request in flight."""
        self._in_flight.labels(method).inc()

    def request_ended(self, method: str, code: str, duration_s: float) -> None:
        """Count a finished request."""
        self._in_flight.labels(method).dec()
        self._requests.labels(method, code).inc()
        self._request_s.labels(method).observe(duration_s)

    def run_began(self) -> None:
        """Do nothing: a run is counted when it ends."""

    def run_ended(self, run: Run, *, private: bool) -> None:
        """Count a finished run and its calls."""
        tenant = self._label(run.tenant)
        self._runs.labels(run.kind, run.status, outcome_of(run) or "", tenant).inc()
        self._run_s.labels(run.kind).observe(run.duration_s)
        if run.status == "failed":
            kind = run.error.partition(":")[0]
            self._failures.labels(_REASONS.get(kind, "INTERNAL"), tenant).inc()
        if run.status == "interrupted":
            self._failures.labels("RUN_INTERRUPTED", tenant).inc()
        for call in run.calls:
            self._count(call)

    def searched(
        self,
        query: str,
        began_at: float,
        duration_s: float,
        error: str | None,
    ) -> None:
        """Count a finished search."""
        self._searches.labels(error or "").inc()
        self._search_s.observe(duration_s)

    async def watch_event_loop(self) -> None:
        """Measure the lag of the event loop until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + _LAG_INTERVAL_S
            await asyncio.sleep(_LAG_INTERVAL_S)
            self._lag_s.observe(max(0.0, clock() - due))

    def show_quotas(self, uses: Iterable[QuotaUse], warnings: Iterable[QuotaUse]) -> None:
        """Set the gauges of the tenants' remaining quotas, and count new warnings."""
        smallest = dict[tuple[str, str], float]()
        for use in uses:
            labels = self._quota_labels(use)
            smallest[labels] = min(use.left, smallest.get(labels, 1.0))
        self._quota_left.clear()  # quotas may have been removed
        for labels, share in smallest.items():
            self._quota_left.labels(*labels).set(share)
        for use in warnings:
            self._warnings.labels(*self._quota_labels(use)).inc()

    def _quota_labels(self, use: QuotaUse) -> tuple[str, str]:
        return self._label(use.tenant), use.quota.removeprefix("nano_")

    def _label(self, tenant: str) -> str:
        """Return the value of the label `tenant`: the tenant's name, or `other` for all tenants
        after the first `_MAX_TENANTS`.
        """
        if tenant not in self._tenants:
            if len(self._tenants) >= _MAX_TENANTS:
                return _OTHER
            self._tenants.add(tenant)
        return tenant

    def _count(self, call: Call) -> None:
        tenant = self._label(call.tenant)
        self._calls.labels(call.role, call.model, call.purpose, call.outcome).inc()
        self._call_s.labels(call.role).observe(call.duration_s)
        if call.first_token_s is not None:
            self._first_token_s.labels(call.role).observe(call.first_token_s)
        if call.nano_usd is not None:
            self._dollars.labels(call.role, tenant).inc(call.nano_usd / 1e9)
        if call.usage is None:
            self._unknown.labels(call.role).inc()
            return
        self._wasted.labels(call.role).inc(call.wasted_tokens)
        for kind in ("prompt", "completion", "cached", "reasoning"):
            tokens: int | None = getattr(call.usage, f"{kind}_tokens")
            if tokens is not None:
                self._tokens.labels(call.role, kind, tenant).inc(tokens)


@dataclass(frozen=True, slots=True)
class Gauges(Collector):
    """A Prometheus collector of a gateway's current state. `collect` must run on the event loop."""

    admission: Admission
    upstreams: Upstreams
    reports: ReportCounts | None
    readiness: Readiness
    lag_s: Callable[[], float]
    """Function that returns the age in seconds of the oldest change that is in the write-ahead log
    but not yet in the database; 0 if there is no such change.
    """

    def collect(self) -> Iterator[Metric]:
        """Yield all gauges."""
        roles = self.upstreams.roles.items()
        endpoints = self.upstreams.endpoints.items()
        gauge = GaugeMetricFamily
        counter = CounterMetricFamily
        yield gauge(
            "rolegate_runs_in_flight", "Runs that are running", value=self.admission.running
        )
        yield gauge("rolegate_runs_queued", "Runs that wait to start", value=self.admission.waiting)
        yield gauge(
            "rolegate_store_lag_seconds",
            "Age in seconds of the oldest change of a run that is in the write-ahead log but not "
            "yet in the database; 0 if there is none",
            value=self.lag_s(),
        )
        yield _family(
            gauge,
            "ready",
            "Readiness of each part of the gateway: 1 if it is up, 0 if it is down",
            self.readiness.parts.items(),
            "part",
        )
        yield _family(
            gauge,
            "role_calls_in_flight",
            "Attempts of model calls in flight",
            ((name, role.in_flight) for name, role in roles),
            "role",
        )
        yield _family(
            gauge,
            "role_calls_queued",
            "Attempts of model calls that wait because of max_in_flight",
            ((name, role.waiting) for name, role in roles),
            "role",
        )
        yield _family(
            counter,
            "fallbacks",
            "Calls that a fallback role took over",
            ((name, role.fallbacks) for name, role in roles),
            "role",
        )

        states = [
            (name, state, endpoint.breaker.state == state)
            for (name, endpoint), state in product(endpoints, get_args(BreakerState))
        ]
        yield _family(
            gauge,
            "breaker_state",
            "State of the circuit breaker: 1 for the current state, 0 for the others",
            states,
            "deployment",
            "state",
        )
        yield _family(
            counter,
            "breaker_openings",
            "Number of times the circuit breaker has opened",
            ((name, endpoint.breaker.openings) for name, endpoint in endpoints),
            "deployment",
        )
        yield _family(
            gauge,
            "endpoint_calls_in_flight",
            "Attempts of model calls in flight at the deployment",
            ((name, endpoint.in_flight) for name, endpoint in endpoints),
            "deployment",
        )

        if self.reports is not None:
            yield _family(
                counter,
                "sub_queries",
                "Sub-queries, by the origin of their reports",
                asdict(self.reports).items(),
                "report",
            )


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    what: str,
    rows: Iterable[tuple[str | float, ...]],
    *labels: str,
) -> Metric:
    """Return a metric family (a metric with all its samples). `rows`: for each sample, a tuple of
    the values of its labels, followed by the sample's value.
    """
    family = kind(f"rolegate_{name}", what, labels=labels)
    for *names, value in rows:
        family.add_metric(list(map(str, names)), float(value))
    return family
