"""Encryption, with and without clients' certificates, of gRPC and of the OpenAI-compatible
server.
"""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import pytest
from rolegate.v1.answer_service_pb2 import AnswerRequest
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub

from router.edge.grpc.server import Server
from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from router.edge.listening import TLS
from router.errors import BadConfig
from tests.router.clock import ended
from tests.router.deployment import Deployment
from tests.router.edge.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Whom both sides trust."""
    return Authority(tmp_path)


def tls_of(authority: Authority, *, mutual: bool = False) -> TLS:
    """A server's files."""
    certificate, key = authority.issue("server")
    return TLS(str(certificate), str(key), str(authority.certificate) if mutual else None)


@asynccontextmanager
async def grpc_server(tls: TLS) -> AsyncIterator[str]:
    """The address of an encrypted gateway."""
    server = Server(Deployment().gateway(), None, tls=tls)
    try:
        yield f"127.0.0.1:{await server.start('127.0.0.1:0')}"
    finally:
        await server.drain(0)


async def answered(address: str, credentials: grpc.ChannelCredentials | None) -> str:
    """The answer over a channel of its own."""
    secure = credentials and grpc.aio.secure_channel(address, credentials)
    async with secure or grpc.aio.insecure_channel(address) as channel:
        call = AnswerServiceStub(channel).Answer(
            AnswerRequest(question="Who directed Heat?"), timeout=10
        )
        return str((await ended(call)).answer)


async def status(address: str, context: ssl.SSLContext) -> int:
    """That of the OpenAI-compatible server's health."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://{address}/health", ssl=context) as response,
    ):
        return response.status


async def test_clients_certificates(authority: Authority, tmp_path: Path) -> None:
    """With `client_ca`, who has none that it signed is turned away."""
    roots = authority.certificate.read_bytes()
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "other")
    async with grpc_server(tls_of(authority, mutual=True)) as address:
        known, unknown = (
            grpc.ssl_channel_credentials(roots, key.read_bytes(), certificate.read_bytes())
            for certificate, key in (authority.issue("client"), stranger.issue("client"))
        )
        assert await answered(address, known) == "Michael Mann"
        for credentials in (grpc.ssl_channel_credentials(roots), unknown):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await answered(address, credentials)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_the_openai_server_is_encrypted(authority: Authority) -> None:
    """By the same files, clients' certificates included."""
    trusting = ssl.create_default_context(cafile=str(authority.certificate))
    known = ssl.create_default_context(cafile=str(authority.certificate))
    known.load_cert_chain(*authority.issue("client"))
    app = openai_app(Deployment().gateway())
    plain = HTTPServer(app, 0.0, tls=tls_of(authority))
    assert await status(await plain.start("127.0.0.1:0", "server.http"), trusting) == 200
    await plain.drain()
    mutual = HTTPServer(openai_app(Deployment().gateway()), 0.0, tls=tls_of(authority, mutual=True))
    address = await mutual.start("127.0.0.1:0", "server.http")
    assert await status(address, known) == 200
    with pytest.raises(aiohttp.ClientError):
        await status(address, trusting)
    await mutual.drain()


def test_bad_files_are_named(authority: Authority, tmp_path: Path) -> None:
    """With their key in the config: what is missing, what is something else, and what does not
    belong together.
    """
    certificate, key = authority.issue("server")
    _, others = authority.issue("other")
    _, locked = authority.issue("locked", b"secret")
    nothing = tmp_path / "nothing.pem"
    absent = tmp_path / "absent.pem"
    nothing.write_text("hello")
    for tls, said in (
        (TLS(str(absent), str(key)), f"server.tls.certificate: {absent} cannot be read"),
        (TLS(str(tmp_path), str(key)), f"server.tls.certificate: {tmp_path} cannot be read"),
        (TLS(str(nothing), str(key)), f"server.tls.certificate: {nothing} is not a certificate"),
        (TLS(str(certificate), str(absent)), f"server.tls.key: {absent} cannot be read"),
        (
            TLS(str(certificate), str(nothing)),
            f"server.tls.key: {nothing} is not the certificate's key",
        ),
        (
            TLS(str(certificate), str(others)),
            f"server.tls.key: {others} is not the certificate's key",
        ),
        (
            TLS(str(certificate), str(locked)),
            f"server.tls.key: {locked} is not the certificate's key, without a pass",
        ),
        (
            TLS(str(certificate), str(key), str(absent)),
            f"server.tls.client_ca: {absent} cannot be read",
        ),
        (
            TLS(str(certificate), str(key), str(nothing)),
            f"server.tls.client_ca: {nothing} is not a certificate",
        ),
    ):
        for opened in (tls.for_http, tls.for_grpc):
            with pytest.raises(BadConfig) as caught:
                opened()
            assert str(caught.value).startswith(said)
