"""Export runs as OpenTelemetry spans.

Each run is an `invoke_workflow` span, which is the current span during the run. Its children are an
`invoke_agent` span for each sub-query, a `retrieval` span for each search, and a `chat` span for
each attempt of a model call. But if an attempt belongs to a sub-query, its `chat` span is a child
of the `invoke_agent` span.
"""

import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from urllib.parse import urlsplit

from opentelemetry.context import Context, attach
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from router.frozen import Frozen
from router.trace import Call, Execution, Run, Trajectory
from router.trace.call import COMPLETE_OUTCOMES
from router.trace.export import output_of
from router.trace.values import TableRun

_caller: ContextVar[Context | None] = ContextVar("caller", default=None)
"""Trace context that the client of the current request sent; None outside requests."""

_USAGE = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "cache_read.input_tokens": "cached_tokens",
    "reasoning.output_tokens": "reasoning_tokens",
}
"""Fields of a call's usage, by their names in OpenTelemetry's semantic conventions."""
_Attributes = Mapping[str, str | int | float | None]


class Traces(Frozen):
    """An `Observer` that creates spans. If a request has the header `traceparent`, the spans belong
    to the caller's trace.
    """

    tracer: Tracer
    """Tracer that creates the spans. The caller closes the tracer's provider."""
    addresses: Mapping[str, str | None]
    """Base URL of each deployment (an engine or endpoint that serves a model), by its name in the
    ledger; None for a provider that LiteLLM calls.
    """
    contents: bool
    """True to put the texts of questions, sub-queries and answers into spans, except for private
    runs.
    """

    def request_began(self, method: str, metadata: Mapping[str, str]) -> None:
        """Read the trace context from the request's headers, for the request's run."""
        _caller.set(TraceContextTextMapPropagator().extract(metadata, Context()))

    def request_ended(self, method: str, code: str, duration_s: float) -> None:
        """Do nothing: `run_ended` ends the span of the run."""

    def run_began(self) -> None:
        """Start the span of the run, and make it the current span."""
        caller = _caller.get() or Context()
        span = self.tracer.start_span("invoke_workflow rolegate", caller)
        attach(set_span_in_context(span, caller))

    def searched(
        self,
        query: str,
        began_at: float,
        duration_s: float,
        error: str | None,
    ) -> None:
        """Create the span of a search. The query is left out, because the run may be private."""
        run = get_current_span()
        if run.is_recording():
            self._span(
                run,
                "retrieval rolegate",
                (began_at, began_at + duration_s),
                {"gen_ai.data_source.id": "rolegate"},
                error,
            )

    def run_ended(self, run: Run, *, private: bool) -> None:
        """Create the spans of the run's calls and sub-queries, and end the run's span."""
        span = get_current_span()
        if not span.is_recording():
            return
        attach(Context())
        contents = self.contents and not private
        span.set_attributes(
            {
                "gen_ai.operation.name": "invoke_workflow",
                "gen_ai.workflow.name": "rolegate",
                "rolegate.run.id": run.id,
                "rolegate.run.kind": run.kind,
                "rolegate.tenant": run.tenant,
            }
        )
        result = run.result
        executions: Sequence[Execution] = (result,) if isinstance(result, Execution) else ()
        if isinstance(result, Trajectory | TableRun):
            executions = result.executions
            span.set_attribute("rolegate.outcome", result.outcome)
            span.set_attributes(_messages(run.request, output_of(run)) if contents else {})

        sub_queries = {
            call.sub_query_index for call in run.calls if call.sub_query_index is not None
        }
        for index in sorted(sub_queries):
            calls = [call for call in run.calls if call.sub_query_index == index]
            execution = executions[index] if index < len(executions) else None
            self._agent(span, execution, calls, contents=contents)
        for call in run.calls:
            if call.sub_query_index is None:
                self._chat(span, call)
        _fail(span, None if run.status == "finished" else run.error.partition(":")[0] or run.status)
        span.end()

    def _agent(
        self,
        run: Span,
        execution: Execution | None,
        calls: Sequence[Call],
        *,
        contents: bool,
    ) -> None:
        """Create the spans of a sub-query and of its calls. `execution`: None if the sub-query's
        output was discarded; the span then gets the error `wasted`.
        """
        attributes: _Attributes = {"gen_ai.agent.name": "executor"}
        error: str | None = "wasted"
        if execution is not None:
            error = execution.outcome if execution.failed else None
            report = "\n".join((execution.report.answer, *execution.report.evidence))
            messages = _messages(execution.sub_query, report) if contents else {}
            attributes = {**attributes, "gen_ai.agent.version": execution.executor, **messages}
        times = [*map(_times, calls)]
        during = (min(times)[0], max(ended_at for _, ended_at in times))
        agent = self._span(
            run,
            "invoke_agent executor",
            during,
            attributes,
            error,
        )
        for call in calls:
            self._chat(agent, call)

    def _chat(self, parent: Span, call: Call) -> None:
        parts = urlsplit(self.addresses.get(call.deployment) or "")
        attributes: _Attributes = {
            "gen_ai.provider.name": _provider(call.deployment),
            "gen_ai.request.model": call.model,
            "gen_ai.request.max_tokens": call.max_tokens,
            "gen_ai.response.time_to_first_chunk": call.first_token_s,
            **{
                f"gen_ai.usage.{name}": getattr(call.usage, field, None)
                for name, field in _USAGE.items()
            },
            "rolegate.role": call.role,
            "rolegate.purpose": call.purpose,
            "rolegate.attempt": call.attempt,
            "server.address": parts.hostname,
            "server.port": parts.port or {"https": 443, "http": 80}.get(parts.scheme),
        }
        error = None if call.outcome in COMPLETE_OUTCOMES else call.outcome
        self._span(
            parent,
            f"chat {call.model}",
            _times(call),
            attributes,
            error,
        )

    def _span(
        self,
        parent: Span,
        name: str,
        during: tuple[float, float],
        attributes: _Attributes,
        error: str | None,
    ) -> Span:
        """Create a span that has ended. `during`: start and end, as Unix time in seconds. `error`:
        type of the error; None for success.
        """
        operation = name.partition(" ")[0]
        known = {key: value for key, value in attributes.items() if value is not None}
        span = self.tracer.start_span(
            name,
            set_span_in_context(parent, Context()),
            SpanKind.INTERNAL if operation == "invoke_agent" else SpanKind.CLIENT,
            attributes={"gen_ai.operation.name": operation, **known},
            start_time=int(during[0] * 1e9),
        )
        _fail(span, error)
        span.end(int(during[1] * 1e9))
        return span


def _fail(span: Span, error: str | None) -> None:
    if error is not None:
        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR))


def _times(call: Call) -> tuple[float, float]:
    return call.started_at, call.started_at + call.duration_s


def _provider(deployment: str) -> str:
    """Return the provider's name for OpenTelemetry's semantic conventions: `vllm` for an engine of
    the gateway, LiteLLM's name of the provider for calls through LiteLLM, and `openai` for any
    other endpoint.
    """
    if deployment.startswith("engines."):
        return "vllm"
    return deployment.removeprefix("litellm:") if deployment.startswith("litellm:") else "openai"


def _messages(question: str, answer: str) -> dict[str, str]:
    return {
        "gen_ai.input.messages": _message("user", question),
        "gen_ai.output.messages": _message("assistant", answer),
    }


def _message(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])
