"""Runs as OpenTelemetry traces."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from rolegate.v1.answer_service_pb2 import AnswerRequest
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub

from serving.config.config import TelemetryConfig
from tests.serving.telemetry.watched_gateway import QUESTION, watched_gateway

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"


class Receiver(TraceServiceServicer):
    """An OTLP receiver that records spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    async def Export(
        self, request: otlp.ExportTraceServiceRequest, _context: Any
    ) -> otlp.ExportTraceServiceResponse:
        """Record the spans."""
        self.spans += [
            span
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        return otlp.ExportTraceServiceResponse()


@asynccontextmanager
async def receiving() -> AsyncIterator[tuple[Receiver, str]]:
    """Yield a receiver and its address."""
    receiver = Receiver()
    server = grpc.aio.server()
    add_TraceServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield receiver, f"http://127.0.0.1:{port}"
    finally:
        await server.stop(None)


def attributes(span: Span) -> dict[str, str | int | float]:
    """Return the attributes of a span by name."""
    return {
        pair.key: getattr(pair.value, str(pair.value.WhichOneof("value")))
        for pair in span.attributes
    }


async def traced(
    folder: Path, metadata: Sequence[tuple[str, str]] = (), *, contents: bool = False
) -> list[Span]:
    """Return the spans of one answer."""
    async with receiving() as (receiver, endpoint):
        telemetry = TelemetryConfig(otlp=endpoint, contents=contents)
        async with (
            watched_gateway(folder, telemetry) as gateway,
            grpc.aio.insecure_channel(gateway.address) as channel,
        ):
            request = AnswerRequest(question=QUESTION)
            await AnswerServiceStub(channel).Answer(request, timeout=60, metadata=tuple(metadata))
        return receiver.spans


async def test_a_trace_is_a_tree_of_agents_and_chats(tmp_path: Path) -> None:
    """An answer is a workflow of agents; they chat within the trace and time of their parent."""
    spans = await traced(tmp_path, [("traceparent", f"00-{TRACE}-{CALLER}-01")])
    by_id = {span.span_id: span for span in spans}

    def path(span: Span) -> str:
        return (
            f"{path(by_id[span.parent_span_id])}/" if span.parent_span_id in by_id else ""
        ) + span.name

    root = "invoke_workflow rolegate"
    agent = "invoke_workflow rolegate/invoke_agent executor"
    assert sorted(map(path, spans)) == sorted(
        [
            root,
            *[f"{root}/chat delegator"] * 3,
            *[agent, f"{agent}/chat executor", f"{agent}/chat executor"] * 2,
            *[f"{root}/retrieval rolegate"] * 2,
            f"{root}/chat answerer",
        ]
    )
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert [span.parent_span_id.hex() for span in spans if span.name == root] == [CALLER]
    for span in spans:
        around = by_id.get(span.parent_span_id, span)
        assert around.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= around.end_time_unix_nano


async def test_chats_have_the_attributes_of_the_conventions(tmp_path: Path) -> None:
    """Spans have texts only if configured."""
    quiet = tmp_path / "quiet"
    telling = tmp_path / "telling"
    quiet.mkdir()
    telling.mkdir()
    spans = await traced(quiet)
    (chat,) = [attributes(span) for span in spans if span.name == "chat answerer"]
    assert chat["gen_ai.operation.name"] == "chat"
    assert (chat["gen_ai.request.model"], chat["gen_ai.request.max_tokens"]) == ("answerer", 64)
    assert (chat["server.address"], chat["gen_ai.usage.output_tokens"]) == ("127.0.0.1", 2)
    assert int(chat["gen_ai.usage.input_tokens"]) > 0
    assert not [span for span in spans if QUESTION in str(span)]
    with_contents = await traced(telling, contents=True)
    assert {span.name for span in with_contents if QUESTION in str(span)} == {
        "invoke_workflow rolegate",
        "invoke_agent executor",
    }
