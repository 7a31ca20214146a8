"""What Prometheus may ask: counters and histograms of what has ended, and gauges of what is."""

import asyncio
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.registry import Collector

from router.trace.call import Call
from router.trace.run import Run
from router.trace.values import Trajectory

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_LOOK_EVERY_S = 0.25


class Metrics:
    """An `Observer` that counts, in a registry of its own."""

    def __init__(self, *now: Collector) -> None:
        """`now`: tell of what is, whenever somebody asks."""
        self.registry = registry = CollectorRegistry()
        ProcessCollector(namespace="rolegate", registry=registry)
        for collector in now:
            registry.register(collector)

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"rolegate_{name}", what, labels, registry=registry)

        def histogram(name: str, what: str, *labels: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
            return Histogram(f"rolegate_{name}_seconds", what, labels, buckets=buckets, registry=registry)

        self._under_way = Gauge("rolegate_requests_in_flight", "Requests under way", ("rpc",), registry=registry)
        self._requests = counter("requests", "Requests by how they ended", "rpc", "code")
        self._request_s = histogram("request", "What requests took", "rpc")
        self._runs = counter("runs", "Runs by how they ended", "kind", "status", "outcome")
        self._run_s = histogram("run", "What runs took", "kind")
        self._calls = counter("calls", "Attempts of model calls", "role", "model", "purpose", "outcome")
        self._call_s = histogram("call", "What attempts of model calls took", "role")
        self._first_token_s = histogram("first_token", "From the request to the first token", "role")
        self._tokens = counter("tokens", "Tokens; cached and reasoning are parts of the others", "role", "kind")
        self._wasted = counter("wasted_tokens", "Tokens of attempts whose output nobody got", "role")
        self._unknown = counter("uncounted_calls", "Attempts whose tokens nobody knows", "role")
        self._dollars = counter("cost_usd", "What the tokens cost, where the price is known", "role")
        self._searches = counter("searches", "Queries searched for; error is empty where it went well", "error")
        self._search_s = histogram("search", "What searching for a query took")
        self._lag_s = histogram("event_loop_lag", "How late the event loop is", buckets=_LAG_SECONDS)

    def request_began(self, method: str, metadata: Mapping[str, str]) -> None:
        """Count it as under way."""
        self._under_way.labels(method).inc()

    def request_ended(self, method: str, code: str, duration_s: float) -> None:
        """Count it."""
        self._under_way.labels(method).dec()
        self._requests.labels(method, code).inc()
        self._request_s.labels(method).observe(duration_s)

    def run_began(self) -> None:
        """Of no interest."""

    def run_ended(self, run: Run, *, private: bool) -> None:
        """Count it and its calls."""
        outcome = run.result.outcome if isinstance(run.result, Trajectory) and run.status == "finished" else ""
        self._runs.labels(run.kind, run.status, outcome).inc()
        self._run_s.labels(run.kind).observe(run.duration_s)
        for call in run.calls:
            self._count(call)

    def searched(self, query: str, began_at: float, duration_s: float, error: str | None) -> None:
        """Count it."""
        self._searches.labels(error or "").inc()
        self._search_s.observe(duration_s)

    async def watch_event_loop(self) -> None:
        """Look how late the event loop is, for ever."""
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
