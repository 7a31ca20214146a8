"""Connections to endpoints, against a server that sends bytes as they are scripted."""

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
    """On either loop."""
    policy: asyncio.AbstractEventLoopPolicy = request.param()
    return policy


class Kept:
    """A reader that keeps what it gets, and wants no more once it has `enough`."""

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
    """Answers each request with the next pieces, each in a packet of its own; None closes the
    connection.
    """

    def __init__(self, *replies: Sequence[bytes | None]) -> None:
        self.port = 0
        self._replies = iter(replies)
        self.requests: list[bytes] = []
        self.connections = 0
        self.asked = asyncio.Event()
        self.left = asyncio.Event()
        """Set once there was a request, and once a client has left."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.requests.append(await reader.readuntil(b"{}"))
                self.asked.set()
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
    """A server that plays these."""
    played = Raw(*replies)
    server = await asyncio.start_server(played.answer, "127.0.0.1", 0, ssl=tls)
    played.port = server.sockets[0].getsockname()[1]
    async with server:
        yield played


async def post(
    pool: ConnectionPool, server: Raw, reader: Kept | None = None, scheme: str = "http"
) -> Kept:
    """What comes of one request, within ten seconds."""
    reader = reader or Kept()
    target = Target(f"{scheme}://localhost:{server.port}/v1", {"X-Common": "a\r\nb"})
    async with asyncio.timeout(10):
        await pool.post(target, lambda: target.request(b"{}", "X-Own: 1\r\n"), reader)
    return reader


async def settled() -> None:
    """Let happen all that needs no time."""
    for _ in range(100):
        await asyncio.sleep(0.0005)


@pytest.mark.parametrize("reply", [PLAIN, CHUNKED, EARLY])
async def test_a_reply_that_is_split_anywhere(pool: ConnectionPool, reply: bytes) -> None:
    """Wherever its packets end, it is the same, for patient readers too; and one connection
    serves them all.
    """
    cuts = range(1, len(reply))
    async with raw(*[(reply[:at], reply[at:]) for at in cuts for _ in range(2)]) as server:
        for _ in cuts:
            for patient in (False, True):
                got = await post(pool, server, Kept(patient=patient))
                assert (got.status, got.body, got.headers["content-type"]) == (
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


async def test_a_patient_reader(pool: ConnectionPool) -> None:
    """It gets the first piece at once and others a few at a time, and what it has not got yet
    where it is cut.
    """
    pieces = [b"1\r\n%d\r\n" % (at % 10) for at in range(40)]
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    async with raw((head, *pieces, b"0\r\n\r\n"), (head, *pieces[:5])) as server:
        whole = await post(pool, server, Kept(patient=True))
        cut = Kept(patient=True)
        assert (whole.body, whole.pieces < 10) == (b"0123456789" * 4, True)
        server.asked.clear()
        asking = asyncio.create_task(post(pool, server, cut))
        await server.asked.wait()
        await settled()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert cut.body == b"01234"


@pytest.mark.parametrize("garbage", [b"x", PLAIN])
async def test_what_follows_a_reply(pool: ConnectionPool, garbage: bytes) -> None:
    """It is the end of its connection, be it more than was asked for or no HTTP, and no harm to
    the reply.
    """
    async with raw((PLAIN + garbage,), (PLAIN,)) as server:
        assert [(await post(pool, server)).body for _ in range(2)] == [b"hi", b"hi"]
    assert server.connections == 2


async def test_garbage_while_idle(pool: ConnectionPool) -> None:
    """A connection that says something unasked is left."""
    async with raw((PLAIN, PLAIN), (PLAIN,)) as server:
        await post(pool, server)
        await server.left.wait()
        await post(pool, server)
    assert server.connections == 2


BROKEN: list[tuple[Sequence[bytes | None], type[Exception], str]] = [
    ((None,), TransportError, "closed before the end"),
    ((HEAD, None), TransportError, "closed before the end"),
    ((PLAIN[:-1], None), TransportError, "closed before the end"),
    ((CHUNKED[:-9], None), TransportError, "closed before the end"),
    ((b"SSH-2.0-x\r\n",), httptools.HttpParserError, "no HTTP reply"),
    (
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",),
        httptools.HttpParserError,
        "no HTTP",
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
        "'gzip', though none was accepted",
    ),
]


@pytest.mark.parametrize(("reply", "kind", "said"), BROKEN)
async def test_broken_replies(
    pool: ConnectionPool, reply: Sequence[bytes | None], kind: type[Exception], said: str
) -> None:
    """Each is an error that says what is wrong, and its connection is not used again."""
    async with raw(reply, (PLAIN,)) as server:
        with pytest.raises(kind, match=said):
            await post(pool, server)
        assert (await post(pool, server)).body == b"hi"
    assert server.connections == 2


async def test_much_that_comes_at_once_is_read_in_steps(pool: ConnectionPool) -> None:
    """Other tasks have a turn between any two steps."""
    body = b"data:{}\n\n" * 100_000
    head = HEAD + b"Content-Encoding: identity\r\nContent-Length: %d\r\n\r\n" % len(body)
    turns = 0
    seen: list[tuple[int, int]] = []

    class Counting(Kept):
        def received(self, data: bytes) -> bool:
            seen.append((turns, len(data)))
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
    assert max(Counter(turn for turn, _ in seen).values()) <= 2
    assert max(length for _, length in seen) <= 16 << 10


@pytest.mark.parametrize("last", [b"Connection: close\r\nContent-Length: 2\r\n\r\nhi", b"\r\nhi"])
async def test_the_last_reply_of_a_connection(pool: ConnectionPool, last: bytes) -> None:
    """One that says so, or whose length is that of its connection."""
    async with raw((HEAD + last, None), (PLAIN,)) as server:
        assert [(await post(pool, server)).body for _ in range(2)] == [b"hi", b"hi"]
    assert server.connections == 2


async def test_no_more_is_wanted(pool: ConnectionPool) -> None:
    """The call is over at once; the connection serves again as soon as the rest has come, and
    not before.
    """
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"
    async with raw((head,), (PLAIN,), (head, b"3\r\nyou\r\n0\r\n\r\n"), (PLAIN,)) as server:
        assert (await post(pool, server, Kept(b"hi"))).body == b"hi"
        await post(pool, server)
        assert server.connections == 2
        assert (await post(pool, server, Kept(b"hi"))).body.startswith(b"hi")
        await settled()
        await post(pool, server)
    assert server.connections == 2


async def test_cancelling(pool: ConnectionPool) -> None:
    """The connection is closed, from which the server learns of it."""
    async with raw((HEAD,)) as server:
        asking = asyncio.create_task(post(pool, server))
        await server.asked.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        async with asyncio.timeout(10):
            await server.left.wait()


VARIABLE = ContextVar[str]("VARIABLE")


async def test_the_callers_context(pool: ConnectionPool) -> None:
    """A reader works in the context of the call that it reads for, whoever opened the
    connection.
    """
    seen = list[str]()

    class Sees(Kept):
        def received(self, data: bytes) -> bool:
            seen.append(VARIABLE.get())
            return super().received(data)

    async with raw((PLAIN,), (PLAIN,)) as server:
        for name in ("a", "b"):
            VARIABLE.set(name)
            await post(pool, server, Sees())
    assert (seen, server.connections) == (["a", "b"], 1)


async def test_a_limit() -> None:
    """No more calls are under way at a time."""
    async with raw((HEAD,), (PLAIN,)) as server, ConnectionPool(1) as pool:
        first = asyncio.create_task(post(pool, server))
        await server.asked.wait()
        second = asyncio.create_task(post(pool, server))
        await settled()
        assert server.connections == 1
        first.cancel()
        assert (await second).body == b"hi"


def test_idle_connections() -> None:
    """They serve for four seconds, within which vLLM does not close them, and are closed soon
    after.
    """

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
def test_what_is_no_address(address: str) -> None:
    """It is refused."""
    with pytest.raises(aiohttp.InvalidURL):
        Target(address, {})


def test_addresses() -> None:
    """Users and passwords are sent as such, hosts and paths in their ASCII forms."""
    head = Target("http://me:p%40ss@bücher.example:81/a b?c=d", {}).request(b"")
    assert head == (
        b"POST /a%20b?c=d HTTP/1.1\r\nHost: xn--bcher-kva.example:81\r\n"
        b"Accept-Encoding: identity\r\nAuthorization: Basic bWU6cEBzcw==\r\n"
        b"Content-Length: 0\r\n\r\n"
    )


async def test_a_name_that_stands_for_nothing(pool: ConnectionPool) -> None:
    """So does a port where nobody listens: nothing was sent."""
    async with raw() as server:
        pass
    with pytest.raises(ConnectError, match=f"cannot connect to localhost:{server.port}"):
        await post(pool, server)


async def test_tls(pool: ConnectionPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is who it says, by the authorities that this machine trusts, or it is sent
    nothing.
    """
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
        async with ConnectionPool() as trusting:
            assert [(await post(trusting, server, scheme="https")).body for _ in range(2)] == [
                b"hi",
                b"hi",
            ]
        assert len(server.requests) == 2
