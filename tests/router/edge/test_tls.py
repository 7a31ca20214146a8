"""TLS of gRPC and of the OpenAI-compatible server, with and without client certificates."""

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
from tests.router.accounts import open_access
from tests.router.clock import ended
from tests.router.deployment import Deployment
from tests.router.edge.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The authority that both sides trust."""
    return Authority(tmp_path)


def tls_of(authority: Authority, *, mutual: bool = False) -> TLS:
    """Return the files of a server."""
    certificate, key = authority.issue("server")
    return TLS(str(certificate), str(key), str(authority.certificate) if mutual else None)


@asynccontextmanager
async def grpc_server(tls: TLS) -> AsyncIterator[str]:
    """Yield the address of a gateway with TLS."""
    server = Server(Deployment().gateway(), None, tls=tls)
    try:
        yield f"127.0.0.1:{await server.start('127.0.0.1:0')}"
    finally:
        await server.drain(0)


async def answered(address: str, credentials: grpc.ChannelCredentials | None) -> str:
    """Ask over a new channel and return the answer."""
    secure = credentials and grpc.aio.secure_channel(address, credentials)
    async with secure or grpc.aio.insecure_channel(address) as channel:
        call = AnswerServiceStub(channel).Answer(
            AnswerRequest(question="Who directed Heat?"), timeout=10
        )
        return str((await ended(call)).answer)


async def status(address: str, context: ssl.SSLContext) -> int:
    """Return the status of the OpenAI-compatible server's health."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://{address}/health", ssl=context) as response,
    ):
        return response.status


async def test_a_client_needs_a_certificate_of_the_client_ca(
    authority: Authority, tmp_path: Path
) -> None:
    roots = authority.certificate.read_bytes()
    (tmp_path / "other").mkdir()
    untrusted_authority = Authority(tmp_path / "other", "other")
    async with grpc_server(tls_of(authority, mutual=True)) as address:
        trusted, untrusted = (
            grpc.ssl_channel_credentials(roots, key.read_bytes(), certificate.read_bytes())
            for certificate, key in (authority.issue("client"), untrusted_authority.issue("client"))
        )
        assert await answered(address, trusted) == "Michael Mann"
        for credentials in (grpc.ssl_channel_credentials(roots), untrusted):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await answered(address, credentials)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_the_openai_server_uses_the_same_certificates(authority: Authority) -> None:
    """Client certificates are checked too."""
    without_certificate = ssl.create_default_context(cafile=str(authority.certificate))
    with_certificate = ssl.create_default_context(cafile=str(authority.certificate))
    with_certificate.load_cert_chain(*authority.issue("client"))
    app = openai_app(Deployment().gateway(), open_access())
    plain = HTTPServer(app, 0.0, tls=tls_of(authority))
    assert await status(await plain.start("127.0.0.1:0", "server.http"), without_certificate) == 200
    await plain.drain()
    mutual = HTTPServer(
        openai_app(Deployment().gateway(), open_access()), 0.0, tls=tls_of(authority, mutual=True)
    )
    address = await mutual.start("127.0.0.1:0", "server.http")
    assert await status(address, with_certificate) == 200
    with pytest.raises(aiohttp.ClientError):
        await status(address, without_certificate)
    await mutual.drain()


def test_an_unusable_certificate_file_is_named(authority: Authority, tmp_path: Path) -> None:
    """The error names the config key. The file is missing, of another kind, or of another
    certificate.
    """
    certificate, key = authority.issue("server")
    _, other_key = authority.issue("other")
    _, locked_key = authority.issue("locked", b"secret")
    no_certificate = tmp_path / "nothing.pem"
    absent = tmp_path / "absent.pem"
    no_certificate.write_text("hello")
    for tls, message in (
        (TLS(str(absent), str(key)), f"server.tls.certificate: {absent} cannot be read"),
        (TLS(str(tmp_path), str(key)), f"server.tls.certificate: {tmp_path} cannot be read"),
        (
            TLS(str(no_certificate), str(key)),
            f"server.tls.certificate: {no_certificate} is not a certificate",
        ),
        (TLS(str(certificate), str(absent)), f"server.tls.key: {absent} cannot be read"),
        (
            TLS(str(certificate), str(no_certificate)),
            f"server.tls.key: {no_certificate} is not the certificate's key",
        ),
        (
            TLS(str(certificate), str(other_key)),
            f"server.tls.key: {other_key} is not the certificate's key",
        ),
        (
            TLS(str(certificate), str(locked_key)),
            f"server.tls.key: {locked_key} is not the certificate's key, without a pass",
        ),
        (
            TLS(str(certificate), str(key), str(absent)),
            f"server.tls.client_ca: {absent} cannot be read",
        ),
        (
            TLS(str(certificate), str(key), str(no_certificate)),
            f"server.tls.client_ca: {no_certificate} is not a certificate",
        ),
    ):
        for make in (tls.for_http, tls.for_grpc):
            with pytest.raises(BadConfig) as caught:
                make()
            assert str(caught.value).startswith(message)
