"""Any bytes to any method get a response or a status of ours."""

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
    document_service_pb2,
    execution_service_pb2,
    retrieval_service_pb2,
    run_service_pb2,
    table_service_pb2,
    usage_service_pb2,
)

from router.edge.status import STATUS
from tests.router.deployment import STOP, Deployment, block
from tests.router.edge.wire import served, whole_server
from tests.router.retriever import FixedRetriever
from tests.scripted_model import ScriptedModel

_SERVICES = (
    answer_service_pb2,
    completion_service_pb2,
    document_service_pb2,
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
"""A message with two texts and a message in it, like most requests."""
_OURS = {code for code, _ in STATUS.values()} - {grpc.StatusCode.INTERNAL.value[0]}


def fields() -> st.SearchStrategy[bytes]:
    """Return bytes that look like a message: fields of any number and type, and other bytes."""
    number = st.integers(1, 12)
    text = st.binary(max_size=6) | st.text(max_size=6).map(str.encode)
    length_delimited = st.tuples(number, text).map(
        lambda field: bytes([field[0] << 3 | 2, len(field[1])]) + field[1]
    )
    varint = st.tuples(number, st.integers(0, 255)).map(
        lambda field: bytes([field[0] << 3, *_varint(field[1])])
    )
    return st.lists(length_delimited | varint | st.binary(max_size=3), max_size=5).map(b"".join)


def _varint(value: int) -> Iterator[int]:
    while value > 127:
        yield value & 127 | 128
        value >>= 7
    yield value


async def _called(
    channel: grpc.aio.Channel, method: MethodDescriptor, data: bytes
) -> grpc.aio.AioRpcError | None:
    """Return the error in which a call ends, or None."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    untyped = cast(Any, channel)
    try:
        if method.server_streaming:
            async for _ in untyped.unary_stream(path)(data, timeout=5):
                pass
        else:
            await untyped.unary_unary(path)(data, timeout=5)
    except grpc.aio.AioRpcError as error:
        return error
    return None


def test_any_request_gets_a_response_or_one_of_our_statuses() -> None:
    """An internal error is not among them."""
    requests: list[tuple[str, bytes]] = []

    @settings(deadline=None, max_examples=60, database=None)
    @given(st.sampled_from(sorted(_METHODS)), fields() | st.just(_PLAUSIBLE))
    def collect(name: str, data: bytes) -> None:
        requests.append((name, data))

    collect()

    async def main() -> None:
        deployment = Deployment(
            ScriptedModel(lambda prompt: block("a?") if len(prompt.messages) == 2 else STOP),
            answerer=ScriptedModel(lambda _prompt: "<answer>yes</answer>"),
        )
        async with served(whole_server(deployment, retriever=FixedRetriever({}))) as channel:
            for name, data in requests:
                error = await _called(channel, _METHODS[name], data)
                assert error is None or error.code().value[0] in _OURS, (name, data, error)

    asyncio.run(main())
