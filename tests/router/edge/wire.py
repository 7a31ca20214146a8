"""A real server on a free port of the loopback, and what its statuses say."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from router.edge.server import Server
from router.gateway import Gateway
from tests.router.clock import ended


@asynccontextmanager
async def served(gateway: Gateway | None) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a server of `gateway`."""
    server = Server(gateway, None)
    port = await server.start("127.0.0.1:0")
    try:
        async with connected(port) as channel:
            yield channel
    finally:
        await server.drain(0)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a port of the loopback."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel


def info_of(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    """What a status tells beside its code and message."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return info


async def next_of(call: Any) -> Any:
    """The next message of a stream."""
    return await ended(call.read())
