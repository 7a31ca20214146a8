"""Runs as OpenTelemetry traces. A run is told when it has ended, with the times at which everything happened."""

from collections.abc import Mapping
from contextvars import ContextVar

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from router.trace.run import Run
from serving.telemetry.span_tree import Node, Searched, span_trees

_parent: ContextVar[Context | None] = ContextVar("trace_parent", default=None)
_searches: ContextVar[list[Searched] | None] = ContextVar("trace_searches", default=None)
"""Of the run that the current task works on."""


class Traces:
    """An `Observer` that tells of runs; requests go on with the trace that their `traceparent` names."""

    def __init__(self, provider: TracerProvider, addresses: Mapping[str, str | None], *, contents: bool) -> None:
        """`provider`: where spans go; it is the caller's. `addresses`: base URLs by deployment. `contents`: whether
        spans hold questions, queries and answers, unless these must not be kept.
        """
        self._tracer = provider.get_tracer("rolegate")
        self._addresses, self._contents = addresses, contents

    def request_began(self, method: str, metadata: Mapping[str, str]) -> None:
        """Find the caller's trace."""
        _parent.set(TraceContextTextMapPropagator().extract(metadata))

    def request_ended(self, method: str, code: str, duration_s: float) -> None:
        """Of no interest."""

    def run_began(self) -> None:
        """Gather its searches."""
        _searches.set([])

    def searched(self, query: str, began_at: float, duration_s: float, error: str | None) -> None:
        """Keep it for the end of the run."""
        if (found := _searches.get()) is not None:
            found.append(Searched(query, began_at, duration_s, error))

    def run_ended(self, run: Run, *, private: bool) -> None:
        """Tell of it."""
        trees = span_trees(run, _searches.get() or [], self._addresses, told=self._contents and not private)
        for node in trees:
            self._tell(node, _parent.get())

    def _tell(self, node: Node, parent: Context | None) -> None:
        span = self._tracer.start_span(
            node.name,
            parent,
            SpanKind.CLIENT if node.remote else SpanKind.INTERNAL,
            attributes=node.attributes,
            start_time=_ns(node.began_at),
        )
        for child in node.children:
            self._tell(child, set_span_in_context(span, parent))
        if node.error is not None:
            span.set_attribute("error.type", node.error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(_ns(node.ended_at))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
