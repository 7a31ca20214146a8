"""Streams of uploads on the wire: what is refused before the store sees it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest
from rolegate.v1 import document_service_pb2 as pb

from router.access import Access, new_key
from router.edge.grpc.document_service import DocumentServicer
from router.edge.grpc.server import Server
from router.edge.limits import Limits
from router.trace.identity import DEFAULT_TENANT
from router.uploads import Build, UploadedDocument
from tests.router.accounts import KeptAccounts
from tests.router.edge.wire import connected

METHOD = "/rolegate.v1.DocumentService/UploadDocument"


class KeptUploads:
    """Uploads in memory."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], bytes] = {}

    async def upload(
        self,
        tenant: str,
        name: str,
        size: int,
        content: AsyncIterator[bytes],
        *,
        wait: bool = False,
    ) -> UploadedDocument:
        self.kept[tenant, name] = b"".join([piece async for piece in content])
        return UploadedDocument(name, size, 0.0, "indexed" if wait else "waiting")

    async def delete(self, tenant: str, name: str) -> None:
        del self.kept[tenant, name]

    async def build(self, tenant: str) -> Build:
        return Build("idle", (), up_to_date=True)


@asynccontextmanager
async def sending(
    uploads: KeptUploads, *, access: Access | None = None, reading_s: float = 60.0
) -> AsyncIterator[Any]:
    """Yield a function that sends a stream of bytes as an upload."""
    server = Server(
        None, DocumentServicer(uploads), access=access, limits=Limits(reading_s=reading_s)
    )
    port = await server.start("127.0.0.1:0")
    try:
        async with connected(port) as channel:
            yield cast(Any, channel).stream_unary(METHOD)
    finally:
        await server.drain(0)


def first(name: str = "a.txt", content: bytes = b"", **fields: Any) -> bytes:
    return pb.UploadDocumentRequest(name=name, content=content, **fields).SerializeToString()


async def refused(
    send: Any, messages: Sequence[bytes] | AsyncIterator[bytes], **options: Any
) -> Any:
    """Return the status of an upload that is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await send(messages if isinstance(messages, AsyncIterator) else iter(messages), **options)
    return caught.value.code(), caught.value.details()


async def test_the_pieces_of_a_stream_are_the_content() -> None:
    """Names and the wish to wait count in the first message only."""
    uploads = KeptUploads()
    async with sending(uploads) as send:
        pieces = [first(content=b"one ", wait=True), first("b.txt", b"two "), first("", b"three")]
        response = pb.UploadDocumentResponse.FromString(await send(iter(pieces)))
    assert uploads.kept == {(DEFAULT_TENANT, "a.txt"): b"one two three"}
    assert response.document.state == pb.DOCUMENT_STATE_INDEXED


async def test_a_stream_without_a_message_is_refused() -> None:
    async with sending(KeptUploads()) as send:
        code, message = await refused(send, [])
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "the upload has no message" in message


@pytest.mark.parametrize("at", [0, 1])
async def test_a_message_that_cannot_be_decoded_is_refused(at: int) -> None:
    uploads = KeptUploads()
    messages = [first(content=b"one")]
    messages.insert(at, b"\xff\xff\xff")
    async with sending(uploads) as send:
        code, message = await refused(send, messages)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "cannot be decoded" in message
    assert uploads.kept == {}


async def test_a_name_that_is_too_long_is_refused() -> None:
    async with sending(KeptUploads()) as send:
        code, message = await refused(send, [first("x" * 2000)])
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "name has 2000 characters; the limit is 1024; shorten it" in message


async def test_a_client_that_sends_nothing_is_not_waited_for() -> None:
    uploads = KeptUploads()

    async def silent() -> AsyncIterator[bytes]:
        yield first(content=b"one")
        await asyncio.Event().wait()

    async with sending(uploads, reading_s=0.2) as send:
        code, message = await refused(send, silent())
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "The client sent nothing for 0.2 s" in message
    assert uploads.kept == {}


async def test_a_stream_needs_a_key_with_the_scope() -> None:
    """Also if it is long: the client gets the status, and the store sees nothing."""
    uploads = KeptUploads()
    asks, ask_key = new_key("acme", ["ask"])
    manages, key = new_key("acme", ["documents"])
    pieces = [first(), *([first("", b"x" * (1 << 18))] * 40)]
    async with sending(uploads, access=Access(KeptAccounts(ask_key, key))) as send:
        assert (await refused(send, pieces))[0] is grpc.StatusCode.UNAUTHENTICATED
        metadata = (("authorization", f"Bearer {asks}"),)
        code, _ = await refused(send, pieces, metadata=metadata)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert uploads.kept == {}
        await send(iter(pieces), metadata=(("authorization", f"Bearer {manages}"),))
    assert list(uploads.kept) == [("acme", "a.txt")]
