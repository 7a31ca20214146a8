"""Runs as OpenTelemetry traces. A run is told when it has ended, with the times at which everything happened."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from router.models.model import Usage
from router.protocol.evidence import Report
from router.trace.call import WHOLE, Call
from router.trace.run import Run
from router.trace.values import Execution, Trajectory

Attributes = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Searched:
    """A query that was searched for."""

    query: str
    began_at: float
    """Unix time, seconds."""
    duration_s: float
    error: str | None


@dataclass(frozen=True, slots=True)
class Node:
    """A span; times are Unix time in seconds."""

    name: str
    attributes: Attributes
    began_at: float
    ended_at: float
    error: str | None = None
    """A word for what went wrong."""
    children: "tuple[Node, ...]" = ()
    remote: bool = False
    """Whether the work is done elsewhere."""


def span_trees(
    run: Run, searches: Sequence[Searched], addresses: Mapping[str, str | None], *, told: bool
) -> list[Node]:
    """An `invoke_workflow` for an answer, otherwise what it did. In a workflow, a `plan` for each decision of the
    delegator and an `invoke_agent` for each sub-query; in these, a `chat` for each attempt of a call and a `retrieval`
    for each query.

    `addresses`: base URLs by deployment, where they are known. `told`: whether texts are put in.
    """
    executions = _executions(run)
    left, calls = list(searches), sorted(run.calls, key=lambda call: call.started_at)
    chat = {call.number: _chat(call, addresses.get(call.deployment)) for call in calls}
    agents = []
    for index in sorted({call.sub_query for call in calls if call.sub_query is not None} | set(range(len(executions)))):
        execution = executions[index] if index < len(executions) else None
        nodes = [chat[call.number] for call in calls if call.sub_query == index]
        nodes += [_retrieval(search, told=told) for search in _taken(left, execution)]
        if nodes:
            agents.append(_agent(nodes, execution, told=told))
    plans = [_plan([chat[call.number] for call in decision]) for decision in _decisions(calls)]
    rest = [chat[call.number] for call in calls if call.sub_query is None and call.role != "delegation"]
    nodes = [*plans, *agents, *rest, *(_retrieval(search, told=told) for search in left)]
    return [_workflow(run, nodes, told=told)] if run.kind in ("answer", "shadow") else nodes


def _executions(run: Run) -> tuple[Execution, ...]:
    if isinstance(run.result, Trajectory):
        return run.result.executions
    return (run.result,) if isinstance(run.result, Execution) else ()


def _decisions(calls: Iterable[Call]) -> list[list[Call]]:
    """The delegator's calls by what they decide: retries and corrections go with what they try again."""
    decisions: list[list[Call]] = []
    for call in calls:
        if call.role == "delegation" and call.sub_query is None:
            if call.purpose == "first" or not decisions:
                decisions.append([])
            decisions[-1].append(call)
    return decisions


def _taken(left: list[Searched], execution: Execution | None) -> list[Searched]:
    """Those of `left` that an execution has the results of, which are taken away."""
    taken = []
    for record in execution.searches if execution else ():
        search = next((search for search in left if search.query == record.query and search.error is None), None)
        if search is not None:
            left.remove(search)
            taken.append(search)
    return taken


def _workflow(run: Run, children: Sequence[Node], *, told: bool) -> Node:
    result = run.result
    attributes = {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "rolegate",
        "rolegate.run.id": run.id,
        "rolegate.run.kind": run.kind,
        "rolegate.tenant": run.tenant,
    }
    if isinstance(result, Trajectory):
        attributes["rolegate.outcome"] = result.outcome
        attributes |= _messages(run.request, result.answer) if told else {}
    error = None if run.status == "finished" else run.error.partition(":")[0] or run.status
    until = max([run.started_at + run.duration_s, *(child.ended_at for child in children)])
    return Node("invoke_workflow rolegate", attributes, run.started_at, until, error, tuple(children))


def _plan(chats: Sequence[Node]) -> Node:
    attributes = {"gen_ai.operation.name": "plan", "gen_ai.agent.name": "delegator"}
    return _over("plan delegator", attributes, chats, chats[-1].error)


def _agent(nodes: Sequence[Node], execution: Execution | None, *, told: bool) -> Node:
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "executor"}
    if execution is None:
        return _over("invoke_agent executor", attributes, nodes, "discarded")
    attributes["gen_ai.agent.version"] = execution.executor
    if told:
        attributes |= _messages(execution.sub_query, _text(execution.report))
    return _over("invoke_agent executor", attributes, nodes, execution.outcome if execution.failed else None)


def _chat(call: Call, address: str | None) -> Node:
    attributes: dict[str, str | int | float] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _provider(call.deployment),
        "gen_ai.request.model": call.model,
        "gen_ai.request.max_tokens": call.max_tokens,
        "rolegate.role": call.role,
        "rolegate.purpose": call.purpose,
        "rolegate.attempt": call.attempt,
    }
    if address:
        parts = urlsplit(address)
        attributes["server.address"] = parts.hostname or ""
        attributes["server.port"] = parts.port or (443 if parts.scheme == "https" else 80)
    if call.first_token_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = call.first_token_s
    attributes |= _counted(call.usage) if call.usage else {}
    error = None if call.outcome in WHOLE else call.outcome
    until = call.started_at + call.duration_s
    return Node(f"chat {call.model}", attributes, call.started_at, until, error, remote=True)


def _counted(usage: Usage) -> dict[str, int]:
    counted = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
    }
    return {name: tokens for name, tokens in counted.items() if tokens is not None}


def _retrieval(search: Searched, *, told: bool) -> Node:
    attributes = {"gen_ai.operation.name": "retrieval", "gen_ai.data_source.id": "rolegate"}
    if told:
        attributes["gen_ai.retrieval.query.text"] = search.query
    until = search.began_at + search.duration_s
    return Node("retrieval rolegate", attributes, search.began_at, until, search.error, remote=True)


def _over(name: str, attributes: Attributes, nodes: Sequence[Node], error: str | None) -> Node:
    """A span from the beginning of the first of these to the end of the last."""
    began_at, ended_at = min(node.began_at for node in nodes), max(node.ended_at for node in nodes)
    return Node(name, attributes, began_at, ended_at, error, tuple(nodes))


def _provider(deployment: str) -> str:
    """As the conventions name it: LiteLLM's provider, the engine that we run, or the API that an endpoint speaks."""
    if deployment.startswith("engines."):
        return "vllm"
    return deployment.removeprefix("litellm:") if deployment.startswith("litellm:") else "openai"


def _messages(asked: str, said: str) -> dict[str, str]:
    parts = {"input": ("user", asked), "output": ("assistant", said)}
    return {
        f"gen_ai.{side}.messages": json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])
        for side, (role, text) in parts.items()
    }


def _text(report: Report) -> str:
    return "\n".join((report.answer, *report.evidence))


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
