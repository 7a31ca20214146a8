"""Connections to endpoints, against a server that sends scripted bytes."""

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path

import aiohttp
import httptools
import pytest
import uvloop

from router.models.connection_pool import (
    CertificateError,
    ConnectError,
    ConnectionPool,
    Target,
    TransportError,
)
from tests.router.clock import Clock, with_clock
from tests.router.edge.certificates import Authority

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
PLAIN = HEAD + b"Content-Length: 2\r\n\r\nhi"
CHUNKED = (
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1;x=y\r\ni\r\n0\r\nX-Trailer: t\r\n\r\n"
)
EARLY = b"HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n" + PLAIN


@pytest.fixture(
    params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"]
)
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Run the tests on either event loop."""
    policy: asyncio.AbstractEventLoopPolicy = request.param()
    return policy


class Kept:
    """A reader that keeps what it gets, and stops after `enough`."""

    def __init__(self, enough: bytes = b"\0", *, patient: bool = False) -> None:
        self.status = 0
        self.headers = dict[str, str]()
        self.body = b""
        self.pieces = 0
        self.patient = patient
        self._enough = enough

    def begun(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = dict(headers)

    def received(self, data: bytes) -> bool:
        self.body += data
        self.pieces += 1
        return self._enough in self.body


class Raw:
    """A server that answers each request with the next pieces, each in its own packet; None
    closes the connection.
    """

    def __init__(self, *replies: Sequence[bytes | None]) -> None:
        self.port = 0
        self._replies = iter(replies)
        self.requests: list[bytes] = []
        self.connections = 0
        self.requested = asyncio.Event()
        """Set once there was a request."""
        self.left = asyncio.Event()
        """Set once a client has closed its connection."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.requests.append(await reader.readuntil(b"{}"))
                self.requested.set()
                for piece in next(self._replies, ()):
                    if piece is None:
                        return
                    writer.write(piece)
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            writer.close()


@asynccontextmanager
async def raw(
    *replies: Sequence[bytes | None], tls: ssl.SSLContext | None = None
) -> AsyncIterator[Raw]:
    """Serve these replies."""
    scripted = Raw(*replies)
    server = await asyncio.start_server(scripted.answer, "127.0.0.1", 0, ssl=tls)
    scripted.port = server.sockets[0].getsockname()[1]
    async with server:
        yield scripted


async def post(
    pool: ConnectionPool, server: Raw, reader: Kept | None = None, scheme: str = "http"
) -> Kept:
    """Post one request, and return its reader after at most ten seconds."""
    reader = reader or Kept()
    target = Target(f"{scheme}://localhost:{server.port}/v1", {"X-Common": "a\r\nb"})
    async with asyncio.timeout(10):
        await pool.post(target, lambda: target.request(b"{}", "X-Own: 1\r\n"), reader)
    return reader


async def settled() -> None:
    """Let everything happen that takes no time."""
    for _ in range(100):
        await asyncio.sleep(0.0005)


@pytest.mark.parametrize("reply", [PLAIN, CHUNKED, EARLY])
async def test_a_reply_may_be_split_anywhere(pool: ConnectionPool, reply: bytes) -> None:
    """Patient readers get the same reply, and one connection serves all of them."""
    cuts = range(1, len(reply))
    async with raw(*[(reply[:at], reply[at:]) for at in cuts for _ in range(2)]) as server:
        for _ in cuts:
            for patient in (False, True):
                reader = await post(pool, server, Kept(patient=patient))
                assert (reader.status, reader.body, reader.headers["content-type"]) == (
                    200,
                    b"hi",
                    "text/plain",
                )
    assert server.connections == 1
    head = (
        f"POST /v1 HTTP/1.1\r\nHost: localhost:{server.port}\r\n"
        "Accept-Encoding: identity\r\nX-Common: a b\r\nContent-Length: 2\r\nX-Own: 1\r\n\r\n"
    )
    assert set(server.requests) == {head.encode() + b"{}"}


async def test_a_patient_reader_gets_its_pieces_in_groups(pool: ConnectionPool) -> None:
    """The first piece comes immediately, and a cut delivers the pieces held back."""
    pieces = [b"1\r\n%d\r\n" % (at % 10) for at in range(40)]
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    async with raw((head, *pieces, b"0\r\n\r\n"), (head, *pieces[:5])) as server:
        complete_reader = await post(pool, server, Kept(patient=True))
        cut_reader = Kept(patient=True)
        assert (complete_reader.body, complete_reader.pieces < 10) == (b"0123456789" * 4, True)
        server.requested.clear()
        request = asyncio.create_task(post(pool, server, cut_reader))
        await server.requested.wait()
        await settled()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    assert cut_reader.body == b"01234"


@pytest.mark.parametrize("garbage", [b"x", PLAIN])
async def test_bytes_after_a_reply_end_its_connection(pool: ConnectionPool, garbage: bytes) -> None:
    """Neither more HTTP nor other bytes harm the reply."""
    async with raw((PLAIN + garbage,), (PLAIN,)) as server:
        assert [(await post(pool, server)).body for _ in range(2)] == [b"hi", b"hi"]
    assert server.connections == 2


async def test_a_connection_that_sends_bytes_while_idle_is_closed(pool: ConnectionPool) -> None:
    async with raw((PLAIN, PLAIN), (PLAIN,)) as server:
        await post(pool, server)
        await server.left.wait()
        await post(pool, server)
    assert server.connections == 2


BROKEN: list[tuple[Sequence[bytes | None], type[Exception], str]] = [
    ((None,), TransportError, "closed before the reply ended"),
    ((HEAD, None), TransportError, "closed before the reply ended"),
    ((PLAIN[:-1], None), TransportError, "closed before the reply ended"),
    ((CHUNKED[:-9], None), TransportError, "closed before the reply ended"),
    ((b"SSH-2.0-x\r\n",), httptools.HttpParserError, "the reply is not valid HTTP"),
    (
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",),
        httptools.HttpParserError,
        "not valid HTTP",
    ),
    ((HEAD + b"X: " + b"x" * (1 << 17),), httptools.HttpParserError, "64 KiB of headers"),
    (
        (HEAD, *[b"X: " + b"x" * 1000 + b"\r\n"] * 100),
        httptools.HttpParserError,
        "64 KiB of headers",
    ),
    (
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"x" * (1 << 17),),
        httptools.HttpParserError,
        "64 KiB",
    ),
    (
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi",),
        httptools.HttpParserError,
        "'gzip'; turn compression off",
    ),
]


@pytest.mark.parametrize(("reply", "kind", "message"), BROKEN)
async def test_a_broken_reply_is_an_error_and_ends_its_connection(
    pool: ConnectionPool, reply: Sequence[bytes | None], kind: type[Exception], message: str
) -> None:
    """The error says what is wrong."""
    async with raw(reply, (PLAIN,)) as server:
        with pytest.raises(kind, match=message):
            await post(pool, server)
        assert (await post(pool, server)).body == b"hi"
    assert server.connections == 2


async def test_a_large_packet_is_read_in_steps(pool: ConnectionPool) -> None:
    """Other tasks get a turn between two steps."""
    body = b"data:{}\n\n" * 100_000
    head = HEAD + b"Content-Encoding: identity\r\nContent-Length: %d\r\n\r\n" % len(body)
    turns = 0
    pieces_by_turn: list[tuple[int, int]] = []

    class Counting(Kept):
        def received(self, data: bytes) -> bool:
            pieces_by_turn.append((turns, len(data)))
            return super().received(data)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    async with raw((head, body), (head, body, None)) as server:
        for _ in range(2):
            assert (await post(pool, server, Counting())).body == body
    counting.cancel()
    assert max(Counter(turn for turn, _ in pieces_by_turn).values()) <= 2
    assert max(length for _, length in pieces_by_turn) <= 16 << 10


@pytest.mark.parametrize(
    "head_and_body", [b"Connection: close\r\nContent-Length: 2\r\n\r\nhi", b"\r\nhi"]
)
async def test_a_connection_that_ends_with_its_reply_is_not_reused(
    pool: ConnectionPool, head_and_body: bytes
) -> None:
    """The reply says so, or has no length."""
    async with raw((HEAD + head_and_body, None), (PLAIN,)) as server:
        assert [(await post(pool, server)).body for _ in range(2)] == [b"hi", b"hi"]
    assert server.connections == 2


async def test_a_reader_that_stops_early_ends_its_call(pool: ConnectionPool) -> None:
    """The connection is reused as soon as the rest of the reply has come, and not before."""
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"
    async with raw((head,), (PLAIN,), (head, b"3\r\nyou\r\n0\r\n\r\n"), (PLAIN,)) as server:
        assert (await post(pool, server, Kept(b"hi"))).body == b"hi"
        await post(pool, server)
        assert server.connections == 2
        assert (await post(pool, server, Kept(b"hi"))).body.startswith(b"hi")
        await settled()
        await post(pool, server)
    assert server.connections == 2


async def test_cancelling_a_call_closes_its_connection(pool: ConnectionPool) -> None:
    """The server sees the client leave."""
    async with raw((HEAD,)) as server:
        request = asyncio.create_task(post(pool, server))
        await server.requested.wait()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        async with asyncio.timeout(10):
            await server.left.wait()


VARIABLE = ContextVar[str]("VARIABLE")


async def test_a_reader_runs_in_the_context_of_its_call(pool: ConnectionPool) -> None:
    """It does not run in the context of the call that opened the connection."""
    values = list[str]()

    class ContextReader(Kept):
        def received(self, data: bytes) -> bool:
            values.append(VARIABLE.get())
            return super().received(data)

    async with raw((PLAIN,), (PLAIN,)) as server:
        for name in ("a", "b"):
            VARIABLE.set(name)
            await post(pool, server, ContextReader())
    assert (values, server.connections) == (["a", "b"], 1)


async def test_calls_beyond_the_limit_wait() -> None:
    async with raw((HEAD,), (PLAIN,)) as server, ConnectionPool(1) as pool:
        active_call = asyncio.create_task(post(pool, server))
        await server.requested.wait()
        waiting_call = asyncio.create_task(post(pool, server))
        await settled()
        assert server.connections == 1
        active_call.cancel()
        assert (await waiting_call).body == b"hi"


def test_an_idle_connection_is_reused_for_four_seconds() -> None:
    """vLLM keeps connections for longer. Later they are closed."""

    async def main(clock: Clock) -> None:
        async with raw((PLAIN,), (PLAIN,), (PLAIN,)) as server, ConnectionPool() as pool:
            for pause_s in (3.9, 4.1, 0.0):
                await post(pool, server)
                await clock.advance(pause_s)
            assert server.connections == 2
            await clock.advance(5.0)
            await server.left.wait()

    with_clock(main)


@pytest.mark.parametrize(
    "address", ["ftp://x/v1", "no address", "http://", "http://x:99999/", "http://x:y/"]
)
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(aiohttp.InvalidURL):
        Target(address, {})


def test_an_address_is_encoded_in_ascii() -> None:
    """User and password become an Authorization header."""
    head = Target("http://me:p%40ss@bücher.example:81/a b?c=d", {}).request(b"")
    assert head == (
        b"POST /a%20b?c=d HTTP/1.1\r\nHost: xn--bcher-kva.example:81\r\n"
        b"Accept-Encoding: identity\r\nAuthorization: Basic bWU6cEBzcw==\r\n"
        b"Content-Length: 0\r\n\r\n"
    )


async def test_a_port_without_a_listener_is_a_connect_error(pool: ConnectionPool) -> None:
    """Nothing was sent."""
    async with raw() as server:
        pass
    with pytest.raises(ConnectError, match=f"cannot connect to localhost:{server.port}"):
        await post(pool, server)


async def test_a_server_without_a_trusted_certificate_is_sent_nothing(
    pool: ConnectionPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certificates of authorities that this machine trusts are accepted."""
    authority = Authority(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority.issue("server"))
    async with raw((PLAIN,), (PLAIN,), tls=tls) as server:
        with pytest.raises(CertificateError, match="cannot connect to localhost"):
            await post(pool, server, scheme="https")
        with pytest.raises(TransportError):
            await post(pool, server)
        assert not server.requests
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        async with ConnectionPool() as trusting_pool:
            assert [(await post(trusting_pool, server, scheme="https")).body for _ in range(2)] == [
                b"hi",
                b"hi",
            ]
        assert len(server.requests) == 2
