"""How a gateway is doing now, read from its parts whenever somebody asks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import get_args

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.calls.replicas import BreakerState, Upstreams
from router.runs.admission import Admission
from router.search.executor import Executes
from router.search.sharing import SharedExecutor


@dataclass(frozen=True, slots=True)
class Gauges(Collector):
    """Reads plain attributes, on the event loop."""

    admission: Admission
    upstreams: Upstreams
    executor: Callable[[], Executes | None]

    def collect(self) -> Iterator[Metric]:
        """Everything."""
        yield GaugeMetricFamily("rolegate_runs_in_flight", "Runs under way", value=self.admission.running)
        yield GaugeMetricFamily("rolegate_runs_queued", "Runs that wait to begin", value=self.admission.waiting)
        yield from self._roles()
        yield from self._endpoints()
        if isinstance(executor := self.executor(), SharedExecutor):
            yield self._reports(executor)

    def _roles(self) -> Iterator[Metric]:
        in_flight = GaugeMetricFamily("rolegate_role_calls_in_flight", "Attempts under way", labels=["role"])
        queued = GaugeMetricFamily("rolegate_role_calls_queued", "Attempts that wait for a place", labels=["role"])
        hedges = CounterMetricFamily("rolegate_hedges", "Calls that were made a second time", labels=["role"])
        fallbacks = CounterMetricFamily("rolegate_fallbacks", "Calls that another role's model got", labels=["role"])
        for name, traffic in self.upstreams.roles.items():
            in_flight.add_metric([name], traffic.in_flight)
            queued.add_metric([name], traffic.waiting)
            hedges.add_metric([name], traffic.hedges)
            fallbacks.add_metric([name], traffic.fallbacks)
        yield from (in_flight, queued, hedges, fallbacks)

    def _endpoints(self) -> Iterator[Metric]:
        state = GaugeMetricFamily("rolegate_breaker_state", "1 for the state it is in", labels=["deployment", "state"])
        opened = CounterMetricFamily("rolegate_breaker_openings", "How often it was opened", labels=["deployment"])
        in_flight = GaugeMetricFamily("rolegate_endpoint_calls_in_flight", "Calls under way", labels=["deployment"])
        for name, endpoint in self.upstreams.endpoints.items():
            for each in get_args(BreakerState):
                state.add_metric([name, each], endpoint.breaker.state == each)
            opened.add_metric([name], endpoint.breaker.openings)
            in_flight.add_metric([name], endpoint.in_flight)
        yield from (state, opened, in_flight)

    @staticmethod
    def _reports(executor: SharedExecutor) -> Metric:
        """Sub-queries by where their reports came from: `kept`, `shared` by a run at the same time, or `worked`."""
        found = CounterMetricFamily("rolegate_sub_queries", "Sub-queries by where reports came from", labels=["report"])
        for where, number in (("kept", executor.hits), ("shared", executor.shared), ("worked", executor.misses)):
            found.add_metric([where], number)
        return found
