"""Runs as OpenTelemetry spans: an `invoke_workflow` for each run, current while it goes on; in it a
`chat` for each attempt of a call, a `retrieval` for each query, and an `invoke_agent` around those
of a sub-query.
"""

import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import NamedTuple
from urllib.parse import urlsplit

from opentelemetry.context import Context, attach, get_value, set_value
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from router.trace import Call, Execution, Run, Trajectory
from router.trace.call import WHOLE
from router.trace.export import output_of
from router.trace.values import TableRun

_SEARCHES = "rolegate-searches"
"""In the context of a run: its searches so far. Their spans begin at its end, as only then it is
known whether their texts must not be kept.
"""
_caller: ContextVar[Context | None] = ContextVar("caller", default=None)
"""The trace that a request goes on with."""

_USAGE = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "cache_read.input_tokens": "cached_tokens",
    "reasoning.output_tokens": "reasoning_tokens",
}
"""The conventions' names of the fields of a call's usage."""
_Attributes = Mapping[str, str | int | float | None]


class _Search(NamedTuple):
    query: str
    began_at: float
    ended_at: float
    error: str | None


class Traces:
    """An `Observer` that makes spans; requests go on with the trace that their `traceparent`
    names.
    """

    def __init__(
        self, provider: TracerProvider, addresses: Mapping[str, str | None], *, contents: bool
    ) -> None:
        """`provider`: where spans go; it is the caller's. `addresses`: base URLs by deployment.
        `contents`: whether spans hold questions, queries and answers, unless these must not be
        kept.
        """
        self._tracer = provider.get_tracer("rolegate")
        self._addresses = addresses
        self._contents = contents

    def request_began(self, method: str, metadata: Mapping[str, str]) -> None:
        """Find the caller's trace."""
        _caller.set(TraceContextTextMapPropagator().extract(metadata, Context()))

    def request_ended(self, method: str, code: str, duration_s: float) -> None:
        """Do nothing."""

    def run_began(self) -> None:
        """Begin its span, which is the current one from here on."""
        caller = _caller.get() or Context()
        span = self._tracer.start_span("invoke_workflow rolegate", caller)
        attach(set_value(_SEARCHES, [], set_span_in_context(span, caller)))

    def searched(self, query: str, began_at: float, duration_s: float, error: str | None) -> None:
        """Keep it for the end of the run."""
        searches = get_value(_SEARCHES)
        if isinstance(searches, list):
            searches.append(_Search(query, began_at, began_at + duration_s, error))

    def run_ended(self, run: Run, *, private: bool) -> None:
        """End its span, with all that is in it."""
        span = get_current_span()
        searches = get_value(_SEARCHES)
        if not isinstance(searches, list):
            return
        attach(Context())
        told = self._contents and not private
        result = run.result
        span.set_attributes(
            {
                "gen_ai.operation.name": "invoke_workflow",
                "gen_ai.workflow.name": "rolegate",
                "rolegate.run.id": run.id,
                "rolegate.run.kind": run.kind,
                "rolegate.tenant": run.tenant,
            }
        )
        executions: Sequence[Execution] = (result,) if isinstance(result, Execution) else ()
        if isinstance(result, Trajectory | TableRun):
            executions = result.executions
            span.set_attribute("rolegate.outcome", result.outcome)
            span.set_attributes(_messages(run.request, output_of(run)) if told else {})
        worked_on = [call.sub_query + 1 for call in run.calls if call.sub_query is not None]
        for index in range(max(len(executions), *worked_on, 0)):
            execution = executions[index] if index < len(executions) else None
            calls = [call for call in run.calls if call.sub_query == index]
            queries = {search.query for search in execution.every_search} if execution else set()
            mine = [
                search for search in searches if search.query in queries and search.error is None
            ]
            searches = [search for search in searches if search not in mine]
            if calls:
                self._agent(span, execution, calls, mine, told=told)
        for call in run.calls:
            if call.sub_query is None:
                self._chat(span, call)
        for search in searches:
            self._retrieval(span, search, told=told)
        _fail(span, None if run.status == "finished" else run.error.partition(":")[0] or run.status)
        span.end()

    def _agent(
        self,
        run: Span,
        execution: Execution | None,
        calls: Sequence[Call],
        searches: Sequence[_Search],
        *,
        told: bool,
    ) -> None:
        """An executor's work on a sub-query; without its execution, nobody waited for it."""
        times = [(call.started_at, call.started_at + call.duration_s) for call in calls]
        times += [(search.began_at, search.ended_at) for search in searches]
        attributes: _Attributes = {"gen_ai.agent.name": "executor"}
        error: str | None = "wasted"
        if execution is not None:
            error = execution.outcome if execution.failed else None
            report = "\n".join((execution.report.answer, *execution.report.evidence))
            messages = _messages(execution.sub_query, report) if told else {}
            attributes = {**attributes, "gen_ai.agent.version": execution.executor, **messages}
        during = min(began for began, _ in times), max(ended for _, ended in times)
        agent = self._span(run, "invoke_agent executor", during, attributes, error)
        for call in calls:
            self._chat(agent, call)
        for search in searches:
            self._retrieval(agent, search, told=told)

    def _chat(self, parent: Span, call: Call) -> None:
        parts = urlsplit(self._addresses.get(call.deployment) or "")
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
        during = (call.started_at, call.started_at + call.duration_s)
        error = call.outcome
        self._span(
            parent, f"chat {call.model}", during, attributes, None if error in WHOLE else error
        )

    def _retrieval(self, parent: Span, search: _Search, *, told: bool) -> None:
        text = search.query if told else None
        attributes = {"gen_ai.data_source.id": "rolegate", "gen_ai.retrieval.query.text": text}
        self._span(
            parent,
            "retrieval rolegate",
            (search.began_at, search.ended_at),
            attributes,
            search.error,
        )

    def _span(
        self,
        parent: Span,
        name: str,
        during: tuple[float, float],
        attributes: _Attributes,
        error: str | None,
    ) -> Span:
        """A span that has ended. `during`: its ends, Unix time in seconds. `error`: a word for
        what went wrong.
        """
        operation = name.partition(" ")[0]
        known = {key: value for key, value in attributes.items() if value is not None}
        span = self._tracer.start_span(
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


def _provider(deployment: str) -> str:
    """A provider as the conventions name it: LiteLLM's, the engine that we run, or the API that
    an endpoint speaks.
    """
    if deployment.startswith("engines."):
        return "vllm"
    return deployment.removeprefix("litellm:") if deployment.startswith("litellm:") else "openai"


def _messages(asked: str, said: str) -> dict[str, str]:
    parts = {"input": ("user", asked), "output": ("assistant", said)}
    return {
        f"gen_ai.{side}.messages": json.dumps(
            [{"role": role, "parts": [{"type": "text", "content": text}]}]
        )
        for side, (role, text) in parts.items()
    }
