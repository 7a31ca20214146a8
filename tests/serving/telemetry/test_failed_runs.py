"""Traces of runs with failures."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from router.amount import NOTHING
from router.protocol import NO_EVIDENCE
from router.trace import Call, Conversation, Execution, RoleName, Run, Trajectory
from router.trace.call import Outcome, Purpose
from serving.telemetry.traces import Traces

ADDRESSES = {"engines.backbone": "http://127.0.0.1:8000/v1", "litellm:deepseek": None}
SUB_QUERY = "Who directed Heat?"


def call(
    number: int, role: RoleName, outcome: Outcome = "completed", purpose: Purpose = "first"
) -> Call:
    """Return a call of one second that began `number` seconds after the run."""
    return Call(
        run_id="run-1",
        tenant="default",
        number=number,
        role=role,
        model=f"{role}-model",
        deployment="litellm:deepseek" if role == "execution" else "engines.backbone",
        executor_version=None,
        purpose=purpose,
        attempt=1,
        sub_query_index=0 if role == "execution" else None,
        max_tokens=64,
        reserved=NOTHING,
        started_at=1000.0 + number,
        outcome=outcome,
        usage=None,
        nano_usd=None,
        first_token_s=None,
        duration_s=1.0,
    )


def run(*calls: Call, error: str = "") -> Run:
    """Return a run with these calls, whose only sub-query has failed."""
    execution = Execution(SUB_QUERY, NO_EVIDENCE, "retrieval_failed", (), Conversation(()))
    return Run(
        id="run-1",
        kind="answer",
        request="When was the director of Heat born?",
        status="failed" if error else "finished",
        error=error,
        result=Trajectory("", "not_found", (execution,)),
        settings={},
        calls=calls,
        started_at=1000.0,
        duration_s=10.0,
    )


def told(
    ended: Run, *, private: bool = False, searches: Sequence[str | None] = ()
) -> tuple[ReadableSpan, ...]:
    """Return the spans of a run. `searches` are the errors of its searches, one each second."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = Traces(provider.get_tracer("rolegate"), ADDRESSES, contents=True)
    traces.run_began()
    for offset_s, error in enumerate(searches):
        traces.searched("the film Heat", 1005.0 + offset_s, 0.5, error)
    traces.run_ended(ended, private=private)
    return exporter.get_finished_spans()


def errors(spans: Sequence[ReadableSpan]) -> list[tuple[str, object]]:
    """Return the names and errors of failed spans."""
    failed = [span for span in spans if span.attributes and "error.type" in span.attributes]
    assert all(span.status.status_code.name == "ERROR" for span in failed)
    return sorted((span.name, (span.attributes or {})["error.type"]) for span in failed)


def test_every_attempt_has_a_span() -> None:
    """A retry or a correction is a sibling of the attempt that it repeats, with the times of the
    ledger.
    """
    spans = told(
        run(call(0, "delegation", "unavailable"), call(1, "delegation", "refused", purpose="retry"))
    )
    chats = [span for span in spans if span.name == "chat delegation-model"]
    assert [(span.start_time, span.end_time) for span in chats] == [
        (1_000_000_000_000, 1_001_000_000_000),
        (1_001_000_000_000, 1_002_000_000_000),
    ]
    assert [(span.attributes or {})["rolegate.purpose"] for span in chats] == ["first", "retry"]
    assert errors(spans) == [
        ("chat delegation-model", "refused"),
        ("chat delegation-model", "unavailable"),
    ]


def test_a_failed_run_has_the_error_s_class_only() -> None:
    """The workflow does not have the text of the error; an agent without a report has its
    outcome.
    """
    spans = told(
        run(call(0, "execution"), error="UpstreamRefused: http://10.0.0.7 says no"),
        searches=["UpstreamProtocolError"],
    )
    assert errors(spans) == [
        ("invoke_agent executor", "retrieval_failed"),
        ("invoke_workflow rolegate", "UpstreamRefused"),
        ("retrieval rolegate", "UpstreamProtocolError"),
    ]
    assert not [span for span in spans if "10.0.0.7" in span.to_json()]


@pytest.mark.parametrize("private", [True, False])
def test_texts_of_a_private_run_are_in_no_span(private: bool) -> None:
    """This holds with `contents`, too; queries never are in spans."""
    spans = told(run(call(0, "execution")), private=private, searches=[None])
    whole = "".join(span.to_json() for span in spans)
    assert [text in whole for text in ("director of Heat", SUB_QUERY)] == [not private] * 2
    assert "the film Heat" not in whole


def test_spans_name_server_and_provider() -> None:
    """Our engines are vLLM at their address; LiteLLM's models belong to their provider, without an
    address.
    """
    spans = told(run(call(0, "delegation"), call(1, "execution")))
    named = {span.name: dict(span.attributes or {}) for span in spans}
    engine = named["chat delegation-model"]
    hosted = named["chat execution-model"]
    assert (engine["gen_ai.provider.name"], engine["server.address"], engine["server.port"]) == (
        "vllm",
        "127.0.0.1",
        8000,
    )
    assert (hosted["gen_ai.provider.name"], "server.address" in hosted) == ("deepseek", False)
    assert "gen_ai.usage.input_tokens" not in engine


def test_a_run_without_a_request_has_its_own_trace() -> None:
    """A shadow run is not a child of the previous run of its task."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = Traces(provider.get_tracer("rolegate"), ADDRESSES, contents=True)
    for kind in ("answer", "shadow"):
        traces.run_began()
        traces.run_ended(replace(run(), kind=kind), private=False)
    traces.searched("nobody's", 1.0, 0.5, None)
    shadow_span, other = exporter.get_finished_spans()
    assert shadow_span.context and other.context
    assert shadow_span.context.trace_id != other.context.trace_id
