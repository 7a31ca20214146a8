"""Whatever bytes a client sends to whichever method, it gets a response or one of our statuses."""

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import grpc
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st
from rolegate.v1 import (
    answer_service_pb2,
    completion_service_pb2,
    execution_service_pb2,
    retrieval_service_pb2,
    run_service_pb2,
    table_service_pb2,
    usage_service_pb2,
)

from router.edge.status import STATUS
from router.models import ScriptedModel
from router.testing.retriever import FixedRetriever
from tests.router.deployment import STOP, Deployment, block
from tests.router.edge.wire import served, whole_server

_SERVICES = (
    answer_service_pb2,
    completion_service_pb2,
    execution_service_pb2,
    retrieval_service_pb2,
    run_service_pb2,
    table_service_pb2,
    usage_service_pb2,
)
_METHODS = {
    method.full_name: method
    for module in _SERVICES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
_PLAUSIBLE = b"\n\x04Who?\x12\x05key-1\x1a\x06\x08\x01\x12\x02\x08\x01"
"""A message with a text, another text and a message in it, as most requests have."""
_OURS = {code for code, _ in STATUS.values()} - {grpc.StatusCode.INTERNAL.value[0]}


def fields() -> st.SearchStrategy[bytes]:
    """Bytes that look like a message: fields of any number and type, and what is none."""
    number = st.integers(1, 12)
    text = st.binary(max_size=6) | st.text(max_size=6).map(str.encode)
    held = st.tuples(number, text).map(
        lambda field: bytes([field[0] << 3 | 2, len(field[1])]) + field[1]
    )
    varint = st.tuples(number, st.integers(0, 255)).map(
        lambda field: bytes([field[0] << 3, *_varint(field[1])])
    )
    return st.lists(held | varint | st.binary(max_size=3), max_size=5).map(b"".join)


def _varint(value: int) -> Iterator[int]:
    while value > 127:
        yield value & 127 | 128
        value >>= 7
    yield value


async def _called(
    channel: grpc.aio.Channel, method: MethodDescriptor, sent: bytes
) -> grpc.aio.AioRpcError | None:
    """The status that a call ends in; None where it ends well."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    untyped = cast(Any, channel)
    try:
        if method.server_streaming:
            async for _ in untyped.unary_stream(path)(sent, timeout=5):
                pass
        else:
            await untyped.unary_unary(path)(sent, timeout=5)
    except grpc.aio.AioRpcError as error:
        return error
    return None


def test_any_request() -> None:
    """No internal error, and none that is gRPC's own."""
    asked: list[tuple[str, bytes]] = []

    @settings(deadline=None, max_examples=60, database=None)
    @given(st.sampled_from(sorted(_METHODS)), fields() | st.just(_PLAUSIBLE))
    def collect(name: str, sent: bytes) -> None:
        asked.append((name, sent))

    collect()

    async def main() -> None:
        deployment = Deployment(
            ScriptedModel(lambda prompt: block("a?") if len(prompt.messages) == 2 else STOP),
            answerer=ScriptedModel(lambda _prompt: "<answer>yes</answer>"),
        )
        async with served(whole_server(deployment, retriever=FixedRetriever({}))) as channel:
            for name, sent in asked:
                error = await _called(channel, _METHODS[name], sent)
                assert error is None or error.code().value[0] in _OURS, (name, sent, error)

    asyncio.run(main())
