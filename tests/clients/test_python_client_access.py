"""The Python client with keys, certificates and broken connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from rolegate.client import AsyncClient, Client, Connection, GatewayError, calls

from router.access import Access, Key, new_key
from router.edge.grpc.server import Server
from router.edge.listening import TLS
from router.errors import QuotaExhausted
from router.ledger import RunStart
from router.ledger.journal import Admitted, EarlierRun
from router.trace.identity import SCOPES
from tests.router.accounts import KeptAccounts
from tests.router.clock import ended
from tests.router.deployment import STOP, Deployment, Kept, block
from tests.router.edge.certificates import Authority
from tests.router.edge.wire import whole_server
from tests.scripted_model import ScriptedModel

QUESTION = "Who directed Heat?"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Certificate authority that both sides trust."""
    return Authority(tmp_path)


@asynccontextmanager
async def started(server: Server) -> AsyncIterator[str]:
    """Start a server and yield its address."""
    try:
        yield f"127.0.0.1:{await server.start('127.0.0.1:0')}"
    finally:
        await server.drain(0)


def tireless() -> Deployment:
    """Models that answer any number of questions."""
    return Deployment(
        ScriptedModel(lambda prompt: block(QUESTION) if len(prompt.messages) == 2 else STOP),
        answerer=ScriptedModel(lambda _prompt: "<answer>Michael Mann</answer>"),
    )


def guarded(*keys: Key, store: Kept | None = None) -> Server:
    """A gateway that requires one of these keys."""
    return whole_server(tireless(), store, access=Access(KeptAccounts(*keys)))


async def test_a_key_is_sent_with_every_call() -> None:
    """This includes streams. Without a valid key, every call is refused with a reason."""
    sent, key = new_key("acme", ["ask", "train"])
    store = Kept()
    async with started(guarded(key, store=store)) as address:
        async with AsyncClient(address, api_key=f" {sent}\n") as client:
            answer = await client.ask(QUESTION)
            assert (await client.run(answer.run_id)).run.tenant == "acme"
            assert [event.run_id async for event in client.runs()] == [answer.run_id]
            assert [item.run.run_id async for item in client.export()] == [answer.run_id]
            assert [event.event_number async for event in client.watch(answer.run_id, after=7)][
                :1
            ] == [8]
        for wrong in ("", "rg_00000000_nonsense"):
            async with AsyncClient(address, api_key=wrong) as client:
                with pytest.raises(GatewayError) as caught:
                    await client.ask(QUESTION)
                assert (caught.value.code, caught.value.reason) == (
                    grpc.StatusCode.UNAUTHENTICATED,
                    "NO_KEY",
                )
    assert [run.tenant for run in store.runs] == ["acme"]


async def test_the_environment_s_key_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty key is none."""
    sent, key = new_key(None, SCOPES)
    monkeypatch.setenv("ROLEGATE_API_KEY", sent)
    async with started(guarded(key)) as address:
        async with AsyncClient(address) as client:
            assert (await client.ask(QUESTION)).answer == "Michael Mann"
        assert await asyncio.to_thread(lambda: _asked(Client(address))) == "Michael Mann"
        async with AsyncClient(address, api_key="") as client:
            with pytest.raises(GatewayError, match="A key is needed"):
                await client.ask(QUESTION)


def _asked(client: Client) -> str:
    with client:
        return client.ask(QUESTION).answer


@pytest.mark.parametrize(
    "address", ["10.0.0.7:50551", "gateway.example:50551", "[2001:db8::1]:50551"]
)
def test_a_key_needs_encryption_beyond_this_machine(address: str) -> None:
    """An option sends it to other machines without encryption; an encrypted channel takes it
    anywhere.
    """
    with pytest.raises(
        ValueError, match=rf"sent to {address.partition(':')[0][:4]}".replace("[", r"\[")
    ):
        Connection.to(address, api_key="rg_1_secret")
    sent = (("authorization", "Bearer rg_1_secret"),)
    assert Connection.to(address, api_key="rg_1_secret", insecure=True).metadata == sent
    assert Connection.to(address, api_key="rg_1_secret", ca=b"roots").metadata == sent
    assert Connection.to(address, api_key="").metadata == ()


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "127.1.2.3:1", "localhost:1", "[::1]:1", "unix:/tmp/socket"]
)
def test_a_key_needs_no_encryption_on_this_machine(address: str) -> None:
    assert Connection.to(address, api_key="rg_1_secret").metadata


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("http://127.0.0.1:1", r"^'http://127.0.0.1:1' is not HOST:PORT; leave out http://\.$"),
        ("a/http://b:1", r"^'a/http://b:1' is not HOST:PORT; leave out a/http://\.$"),
        ("127.0.0.1", r"^'127.0.0.1' is not HOST:PORT, with a port from 0 to 65535\.$"),
    ],
)
async def test_an_address_that_is_not_host_and_port_is_refused_as_by_the_commands(
    address: str, problem: str, client: type[Client | AsyncClient]
) -> None:
    with pytest.raises(ValueError, match=problem):
        client(address)
    for other_form in ("unix:/tmp/socket", "unix:///tmp/socket", "dns:///localhost:1"):
        assert Connection.to(other_form).address == other_form


@pytest.mark.parametrize(
    "key", ["rg_1_secret\nrg_2_secret", "rg_1_secret\udcff", "rg_1_\u200bsecret"]
)
def test_an_impossible_key_is_refused_without_repeating_it(key: str) -> None:
    """It is not sent. A printed connection does not show its key."""
    assert "secret" not in repr(Connection.to("127.0.0.1:1", api_key="rg_1_secret"))
    with pytest.raises(ValueError, match="characters that no key has") as caught:
        Connection.to("127.0.0.1:1", api_key=key)
    assert "secret" not in str(caught.value)


def test_half_a_certificate_is_refused() -> None:
    """A certificate and its key are needed together, and their files must exist."""
    with pytest.raises(ValueError, match="only one of certificate and key"):
        Connection.to("127.0.0.1:1", certificate=b"certificate")
    with pytest.raises(ValueError, match="only one of certificate and key"):
        Connection.to("127.0.0.1:1", ca=b"roots", key=b"key")
    with pytest.raises(FileNotFoundError):
        Connection.to("127.0.0.1:1", ca=Path("/nowhere/roots.pem"))


async def test_an_encrypted_gateway_is_verified(authority: Authority) -> None:
    """The CA certificate is a file or bytes; a wrong CA has a separate error."""
    certificate, key = authority.issue("server")
    server = whole_server(tireless(), tls=TLS(str(certificate), str(key), None))
    other = Authority(authority.certificate.parent, "other")
    async with started(server) as address:
        for ca in (authority.certificate, authority.certificate.read_bytes()):
            async with AsyncClient(address, ca=ca) as client:
                assert (await client.ask(QUESTION)).answer == "Michael Mann"
        async with AsyncClient(address) as client:
            with pytest.raises(GatewayError, match=r"CA certificate \(`--ca`; in Python, `ca`\)"):
                await client.ask(QUESTION, timeout_s=10)
        async with AsyncClient(address, ca=other.certificate) as client:
            with pytest.raises(
                GatewayError, match=f"TLS with {address} failed; check the certificates"
            ) as caught:
                await client.ask(QUESTION, timeout_s=10)
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


async def test_a_client_shows_its_certificate(authority: Authority) -> None:
    """The gateway requires it."""
    certificate, key = authority.issue("server")
    tls = TLS(str(certificate), str(key), str(authority.certificate))
    mine, its_key = authority.issue("client")
    async with started(whole_server(Deployment(), tls=tls)) as address:
        async with AsyncClient(
            address, ca=authority.certificate, certificate=mine, key=its_key
        ) as client:
            assert (await client.ask(QUESTION)).answer == "Michael Mann"
        async with AsyncClient(address, ca=authority.certificate) as client:
            with pytest.raises(GatewayError) as caught:
                await client.ask(QUESTION, timeout_s=10)
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


class Cutting:
    """A proxy that cuts connections as soon as the gateway has stored a run."""

    def __init__(self, address: str, store: Kept, cuts: int) -> None:
        self._port = int(address.rpartition(":")[2])
        self._store = store
        self._cuts = cuts
        self.connections = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Yield the address of the proxy."""
        async with await asyncio.start_server(self._pass_on, "127.0.0.1", 0) as server:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        cuts = self.connections <= self._cuts
        its_reader, its_writer = await asyncio.open_connection("127.0.0.1", self._port)

        async def pump(
            source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, cutting: bool
        ) -> None:
            while data := await source.read(65536):
                if cutting and self._store.runs:
                    return
                sink.write(data)

        pumps = [
            asyncio.create_task(pump(reader, its_writer, cutting=False)),
            asyncio.create_task(pump(its_reader, writer, cutting=cuts)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for task in pumps:
            task.cancel()
        writer.close()
        its_writer.close()


async def test_a_request_is_retried_after_a_broken_connection() -> None:
    """The run is answered once, and nothing is spent twice."""
    store = Kept()
    async with started(whole_server(Deployment(), store)) as address:
        between = Cutting(address, store, cuts=1)
        async with between.listening() as middle, AsyncClient(middle) as client:
            answer = await ended(client.ask(QUESTION))
    assert (answer.answer, between.connections) == ("Michael Mann", 2)
    assert [run.id for run in store.runs] == [answer.run_id]
    assert len(store.settled) == 5


async def test_request_id_and_limits_reach_the_gateway() -> None:
    """A request with a known id is answered from its run."""
    store = Kept()
    async with (
        started(whole_server(Deployment(), store)) as address,
        AsyncClient(address) as client,
    ):
        answer = await client.ask(QUESTION, request_id="mine", max_total_tokens=10_000)
        async with client.stream(QUESTION, request_id="mine", max_total_tokens=10_000) as events:
            streamed = [event async for event in events]
        with pytest.raises(GatewayError, match="max_total_tokens") as tokens:
            await client.ask(QUESTION, max_total_tokens=1)
        with pytest.raises(GatewayError, match="max_cost_nano_usd") as money:
            await client.ask(QUESTION, max_cost_usd=0.001)
        with pytest.raises(GatewayError, match="max_cost_nano_usd is 0"):
            await client.ask(QUESTION, max_cost_usd=0)
    assert streamed[-1].done == answer
    # No price is known
    assert (tokens.value.reason, money.value.reason) == ("BUDGET_EXHAUSTED", "BAD_REQUEST")


class Spent(Kept):
    """A journal whose tenants have used up their quotas."""

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        raise QuotaExhausted("1000 tokens a day are spent", retry_after_s=12.5)


async def test_a_used_up_quota_has_a_retry_delay() -> None:
    """Other errors have none."""
    async with (
        started(whole_server(Deployment(), Spent())) as address,
        AsyncClient(address) as client,
    ):
        with pytest.raises(GatewayError, match="1000 tokens") as spent:
            await client.ask(QUESTION)
        with pytest.raises(GatewayError) as empty:
            await client.ask("")
    assert (spent.value.code, spent.value.reason) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "QUOTA_EXHAUSTED",
    )
    assert (spent.value.retry_after_s, empty.value.retry_after_s) == (12.5, None)


def test_fresh_work_is_requested_explicitly() -> None:
    for call in (calls.ask, calls.stream):
        assert [call(QUESTION, no_cache=fresh).request.no_cache for fresh in (False, True)] == [
            False,
            True,
        ]
