"""Warnings of a gateway that most of a tenant's quota is spent."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from router.access import Tenant
from router.store import Database, SQLAccounts
from router.store.quotas import names
from serving.config.config import TelemetryConfig
from tests.router.store.entries import change, rows
from tests.serving.telemetry.test_metrics import Samples, of, scraped
from tests.serving.telemetry.watched_gateway import watched_gateway

KEY = b"0123456789abcdefghijklmn"
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


@dataclass
class Receiver:
    """A server that receives webhooks, as receivers of Standard Webhooks verify them."""

    statuses: list[int]
    """Statuses of the next replies; then 204."""
    url: str = ""
    received: list[tuple[Mapping[str, str], bytes]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        """Keep a request, and reply."""
        self.received.append((request.headers, await request.read()))
        status = self.statuses.pop(0) if self.statuses else 204
        return web.Response(status=status, headers={"Location": "/elsewhere"})


@asynccontextmanager
async def receiving(*statuses: int) -> AsyncIterator[Receiver]:
    """Serve a receiver while the context is open."""
    receiver = Receiver([*statuses])
    app = web.Application()
    app.router.add_post("/hook", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield receiver
    await runner.cleanup()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """A store in which `acme` has spent 80 % of a quota and `other` 79 %."""
    database = await Database.open(f"sqlite:///{tmp_path}/runs.db")
    accounts = SQLAccounts(database)
    for tenant in ("acme", "other"):
        limits = Tenant(tenant, tokens_per_month=1000, nano_usd_per_month=10**10)
        await accounts.set_tenant(limits)
    month = names(time.time())[2]
    for tenant, tokens in (("acme", 800), ("other", 799)):
        await change(
            database, f"INSERT INTO spending VALUES ('{tenant}', '{month}', 9, {tokens}, 0)"
        )
    yield database
    await database.close()


async def undelivered(database: Database) -> list[bool]:
    """Return for each stored warning whether it is not delivered yet."""
    stored = await rows(database, "SELECT tried_at IS NOT NULL FROM quota_warnings")
    return [bool(pending) for (pending,) in stored]


def telemetry(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> TelemetryConfig:
    """Return the config for a receiver, with its secret in the environment."""
    monkeypatch.setenv("A_SECRET", SECRET)
    return TelemetryConfig(
        metrics="127.0.0.1:0", webhook=receiver.url, webhook_secret_env="A_SECRET"
    )


async def test_a_tenant_s_quota_is_warned_of_once(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 80 %, in the log, in the metrics, and by a signed webhook; not again after a restart."""
    async with receiving() as receiver:
        config = telemetry(receiver, monkeypatch)
        with capture_logs() as logged:
            async with watched_gateway(tmp_path, config) as gateway:
                while await undelivered(database) != [False]:
                    pass
                samples = await scraped(gateway.listens("metrics"))
            async with watched_gateway(tmp_path, config) as gateway:
                again: Samples = {}
                while "rolegate_quota_left_ratio" not in again:
                    again = await scraped(gateway.listens("metrics"))
    warnings = [entry for entry in logged if entry["event"] == "quota.warning"]
    month = names(time.time())[2]
    data = {
        "tenant": "acme",
        "quota": "tokens_per_month",
        "period": month,
        "limit": 1000,
        "used": 800,
    }
    assert warnings == [{"event": "quota.warning", "log_level": "warning", **data}]
    labels = {"tenant": "acme", "quota": "tokens_per_month"}
    assert of(samples, "rolegate_quota_warnings_total", **labels) == 1
    assert not again.get("rolegate_quota_warnings_total")

    ((headers, body),) = receiver.received
    message = json.loads(body)
    assert (message["type"], message["data"]) == ("quota.warning", data)
    sent_at = int(headers["webhook-timestamp"])
    assert sent_at == pytest.approx(time.time(), abs=60)
    signed = f"{headers['webhook-id']}.{sent_at}.".encode() + body
    digest = hmac.new(KEY, signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("status", [500, 404, 302])
async def test_a_webhook_that_fails_is_sent_again(
    status: int, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a pause, with the same identifier, by any gateway; the warning is logged only once."""
    async with receiving(status) as receiver:
        config = telemetry(receiver, monkeypatch)
        with capture_logs() as logged:
            async with watched_gateway(tmp_path, config):
                while not receiver.received:
                    await rows(database, "SELECT 1")
            assert await undelivered(database) == [True]
            await change(database, "UPDATE quota_warnings SET tried_at = tried_at - 61")
            async with watched_gateway(tmp_path, config):
                while await undelivered(database) != [False]:
                    pass
    events = [entry["event"] for entry in logged if entry["event"].startswith("quota.")]
    assert events == ["quota.warning", "quota.webhook_failed"]
    first, second = receiver.received
    assert first[0]["webhook-id"] == second[0]["webhook-id"]
    assert "/hook" not in repr(logged)


async def test_warnings_need_neither_metrics_nor_a_webhook(
    database: Database, tmp_path: Path
) -> None:
    with capture_logs() as logged:
        async with watched_gateway(tmp_path, TelemetryConfig()):
            while await undelivered(database) != [False]:
                pass
    assert [entry["quota"] for entry in logged if entry["event"] == "quota.warning"] == [
        "tokens_per_month"
    ]
