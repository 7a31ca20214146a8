"""Secrets in a real gateway with a real store; its upstreams repeat requests in their errors."""

import asyncio
import io
import logging
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import grpc
import pytest
import structlog
from aiohttp import web
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1 import completion_service_pb2 as pb
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.usage_pb2 import Role

from router.access import new_key
from router.errors import BadConfig, UpstreamError
from router.store import Database, SQLAccounts
from router.trace.identity import SCOPES
from serving.cli.main import main
from serving.composition import running_gateway
from serving.config.file import load_config
from serving.logs import plain_tracebacks
from serving.retrieval.embedder import EndpointEmbedder
from tests.openai_server import MODEL, OpenAIServer, serving

SECRETS = {
    "api_key": "sk-upstream-9f8e7d6c5b4a",
    "userinfo": "hunter2-in-the-address",
    "extra_body": "field-token-1a2b3c4d5e6f",
    "store": "password-of-the-database",
    "sent": b64encode(b"me:hunter2-in-the-address").decode(),
}
PRICE = "[prices.tiny]\nprompt = 1.0\ncompletion = 1.0\n"
"""Price of the model, so that LiteLLM is not loaded; its import leaves warnings."""
ROLE = '[roles.{name}]\nmodel = "tiny"\nprompt = "prompt.txt"\nattempts = 1\n{more}\n'
NUMBERS = (Role.ROLE_DELEGATION, Role.ROLE_EXECUTION, Role.ROLE_ANSWER)


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Record the log of structlog, gRPC, aiohttp and asyncio at every level."""
    log = io.StringIO()
    plain_tracebacks()
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(log), cache_logger_on_first_use=False
    )
    handler = logging.StreamHandler(log)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield log
    root.removeHandler(handler)
    root.setLevel(level)


async def repeats(request: web.Request) -> web.Response:
    """Refuse the request, with all its headers and its whole body in the text."""
    text = f"no: {dict(request.headers)} {await request.text()}"
    status = {"tell 401": 401, "tell 500": 500, "tell 302": 302}.get(
        _asked(await request.json()), 0
    )
    if not status:
        return web.Response(text=text, content_type="application/json")  # which is not JSON
    return web.json_response({"error": {"message": text}}, status=status)


def _asked(body: dict[str, list[dict[str, str]]]) -> str:
    return body["messages"][-1]["content"]


def written(folder: Path, server: OpenAIServer, store: str = "sqlite:///runs.db") -> Path:
    """Write a config with a secret in every place that can have one."""
    address = urlsplit(server.base_url)
    with_password = f"http://me:{SECRETS['userinfo']}@{address.netloc}/v1"
    (folder / "prompt.txt").write_text("Do it.\n")
    keyed = f'base_url = "{server.base_url}"\napi_key_env = "THE_UPSTREAM_KEY"\n'
    roles = (
        ROLE.format(
            name="delegation", more=f'{keyed}extra_body = {{token = "{SECRETS["extra_body"]}"}}'
        ),
        ROLE.format(name="execution", more=f'base_url = "{with_password}"'),
        ROLE.format(
            name="answer", more='base_url = "http://me:hunter2-in-the-address@127.0.0.1:9/v1"'
        ),
    )
    path = folder / "my.toml"
    path.write_text(
        f'[server]\nstore = "{store}"\n[retrieval]\naddress = "127.0.0.1:9"\n'
        f"{PRICE}{''.join(roles)}"
    )
    return path


async def failures(address: str, door: str, keys: list[str]) -> list[str]:
    """Return all errors that callers get over gRPC and HTTP, with good keys, bad keys and none."""
    errors: list[str] = []
    async with grpc.aio.insecure_channel(address) as channel, aiohttp.ClientSession() as session:
        stub = CompletionServiceStub(channel)
        for key in keys:
            for text in ("tell 401", "tell 500", "tell 302", "tell nothing"):
                for role in NUMBERS:
                    messages = [pb.ChatMessage(role="user", content=text)]
                    request = pb.CompleteRequest(role=role, messages=messages)
                    try:
                        await stub.Complete(
                            request, metadata=(("authorization", f"Bearer {key}"),), timeout=30
                        )
                    except grpc.aio.AioRpcError as error:
                        errors.append(f"{error.details()} {error.trailing_metadata()}")
                body = {"model": "rolegate", "messages": [{"role": "user", "content": text}]}
                headers = {"Authorization": f"Bearer {key}"}
                async with session.post(
                    f"http://{door}/v1/chat/completions", json=body, headers=headers
                ) as response:
                    errors.append(f"{response.headers} {await response.text()}")
    return errors


async def test_secrets_are_in_no_error_log_or_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    """All kinds of upstream failures occur."""
    monkeypatch.setenv("THE_UPSTREAM_KEY", SECRETS["api_key"])
    lines: list[str] = []
    keys = [new_key(None, SCOPES), new_key("acme", SCOPES)]
    unknown = "rg_0badf00d_never-made-here"

    def tell(step: str) -> None:
        lines.append(step)

    async with serving() as server:
        server.plays(repeats)
        config = load_config(written(tmp_path, server))
        database = await Database.open(config.server.store)
        for _, key in keys:
            await SQLAccounts(database).add_key(key)
        async with running_gateway(config, "127.0.0.1:0", tell, "127.0.0.1:0") as address:
            door = (
                next(step for step in lines if "OpenAI" in step)
                .split("http://")[1]
                .removesuffix("/v1")
            )
            errors = await failures(address, door, [keys[0][0], keys[1][0], unknown])
            async with AsyncClient(address, api_key=keys[0][0]) as client:
                runs = [run async for run in client.runs()]
                traces = [str(await client.run(run.run_id, trace=True)) for run in runs]
            with pytest.raises(GatewayError):
                async with AsyncClient(address, api_key=unknown) as stranger:
                    await stranger.usage()
        await database.close()
        sent = str(server.headers) + str(server.bodies)
    assert all(
        secret in sent for secret in (SECRETS["api_key"], SECRETS["extra_body"], SECRETS["sent"])
    )
    assert len(errors) == 48
    # The gateway also calls failing models by itself
    assert sum(run.tenant != "shadow" for run in runs) == 32
    assert "aiohttp" in logged.getvalue() or "POST /v1/chat/completions" in logged.getvalue()
    files = [
        file
        for place in tmp_path.glob("runs.db*")
        for file in (place, *place.glob("*"))
        if file.is_file()
    ]
    stored = b"".join(file.read_bytes() for file in files).decode(errors="replace")
    everything = "\n".join([*lines, *errors, *traces, logged.getvalue(), stored])
    for secret in (*SECRETS.values(), unknown, *(text.split("_", 2)[2] for text, _ in keys)):
        assert secret not in everything
    assert "***" in everything


def test_tracebacks_have_no_values_of_variables(logged: io.StringIO) -> None:
    """This holds for bugs: the log has the lines alone."""

    def fail(key: str) -> None:
        raise KeyError(len(key))

    try:
        fail(SECRETS["api_key"])
    except KeyError:
        structlog.get_logger().exception("failed")
    assert "raise KeyError(len(key))" in logged.getvalue()
    assert SECRETS["api_key"] not in logged.getvalue()


async def test_check_shows_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check runs offline and live, with text and JSON; the endpoints repeat all requests."""
    monkeypatch.setenv("THE_UPSTREAM_KEY", SECRETS["api_key"])
    store = f"postgresql://me:{SECRETS['store']}@127.0.0.1:9/runs"
    async with serving() as server:
        server.plays(repeats)
        file = str(written(tmp_path, server, store))
        for options in ([], ["--json"], ["--live"], ["--live", "--json"]):
            await asyncio.to_thread(main, ["check", "--config", file, *options])
    shown = "".join(capsys.readouterr())
    assert "127.0.0.1" in shown
    assert not any(secret in shown for secret in SECRETS.values())


@pytest.mark.parametrize("command", ["keys list", "tenants list", "serve --address 127.0.0.1:0"])
def test_a_store_that_cannot_be_opened_is_reported_without_its_password(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for store in (
        f"postgresql://me:{SECRETS['store']}@127.0.0.1:9/runs",
        f"postgresql://me:{SECRETS['store']}@[::/x",
    ):
        file = written(tmp_path, OpenAIServer("http://127.0.0.1:9/v1"), store)
        file.write_text(file.read_text().replace('api_key_env = "THE_UPSTREAM_KEY"\n', ""))
        assert main([*command.split(), "--config", str(file)]) == 1
        shown = "".join(capsys.readouterr())
        assert "server.store" in shown
        assert SECRETS["store"] not in shown


async def test_the_key_in_an_embedder_s_error_is_masked() -> None:
    """The password in its address is masked, too."""
    app = web.Application()

    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=401, text=f"wrong key: {dict(request.headers)}")

    app.router.add_post("/v1/embeddings", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    place = f"127.0.0.1:{runner.addresses[0][1]}/v1"
    for base_url, key in (
        (f"http://{place}", SECRETS["api_key"]),
        (f"http://me:{SECRETS['userinfo']}@{place}", None),
    ):
        embedder = EndpointEmbedder(base_url, MODEL, 8, api_key=key)
        with pytest.raises(UpstreamError, match="wrong key") as caught:
            await asyncio.to_thread(embedder.embed, ["text"], queries=True)
        await asyncio.to_thread(embedder.close)
        assert not any(secret in str(caught.value) for secret in SECRETS.values())
    await runner.cleanup()


def test_a_config_is_refused_without_its_secrets(tmp_path: Path) -> None:
    """Any value with a secret may be wrong."""
    file = written(tmp_path, OpenAIServer("http://127.0.0.1:9/v1"))
    good = file.read_text()
    for bad in (
        good.replace("http://me:", "gopher://me:"),
        good.replace("sqlite:///runs.db", f"mysql://me:{SECRETS['store']}@db/runs"),
        good.replace('token = "', 'token = ["x", "'),
        good.replace("extra_body = {", "extra_body = 5 # "),
    ):
        file.write_text(bad)
        with pytest.raises(BadConfig) as caught:
            load_config(file)
        assert not any(secret in str(caught.value) for secret in SECRETS.values())
