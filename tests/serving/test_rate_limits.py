"""Limits per minute of tenants and keys, under 200 callers of two gateways that share a PostgreSQL:
`python -m tests.serving.test_rate_limits [SECONDS]` prints the figures.

The upstream counts itself: each request, and the tokens that it has read and written. Its counts
are compared with the limits in two ways: by the minute in which the gateways count, which decides,
and by the minute on the upstream's own clock. The gateways count a request in the minute in which
its run began, and its tokens in the minute in which its call began. Under load, a call may begin in
the minute after its run.
"""

import asyncio
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from msgspec.structs import replace
from rich.console import Console
from rolegate.v1.completion_service_pb2 import ChatMessage, CompleteRequest
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.usage_pb2 import ROLE_ANSWER

from router.access import Tenant, new_key
from router.store import Database, SQLAccounts
from router.store.quotas import names
from router.testing.postgres import running_postgres
from serving.cli.grid import new_table
from serving.config.config import TelemetryConfig
from tests.openai_server import ChatRequest, Reply, serving, writes
from tests.router.store.conftest import home, postgres
from tests.router.store.entries import rows
from tests.serving.cli.test_cli import config_file, service
from tests.serving.telemetry.watched_gateway import QUESTION, watched_gateway

__all__ = ["home", "postgres"]

CALLERS = 200
PAUSE_S = 0.3
"""Longest pause of a caller after a refusal, which advises more: callers press on."""
LIMITS: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "counted": ({"requests_per_minute": 300}, {"requests_per_minute": 90}),
    "weighed": ({"tokens_per_minute": 12_000}, {"tokens_per_minute": 3_000}),
    "both": ({"requests_per_minute": 400, "tokens_per_minute": 16_000}, {}),
    "keys": ({}, {"requests_per_minute": 200, "tokens_per_minute": 5_000}),
}
"""Limits of each tenant, and of the second of its two keys; the first has none."""


class Served(NamedTuple):
    """A request that the upstream has served."""

    run_id: str
    at: float
    tokens: int


@dataclass
class Seen:
    """What the upstream and the callers have seen."""

    served: list[Served] = field(default_factory=list)
    answered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Refusals by their reasons."""
    undelayed: int = 0
    """Refusals because of a limit, without the time to retry."""

    def script(self, asked: ChatRequest) -> Reply:
        """Note a request to the upstream, and reply."""
        reply = ["word "] * random.randint(1, 60)
        read = sum(len(text.split()) for text in asked.texts)
        self.served.append(Served(asked.run_id, time.time(), read + len(reply)))
        return Reply(reply)


class Row(NamedTuple):
    """The most of an account in one minute, against its limit."""

    account: str
    of: str
    limit: int
    total: int
    by_gateways: int
    by_upstream: int


async def call(stub: Any, key: str, until: float, seen: Seen) -> None:
    """Send requests with a key until the end."""
    request = CompleteRequest(
        role=ROLE_ANSWER, messages=[ChatMessage(role="user", content="say a few words")]
    )
    while time.monotonic() < until:
        try:
            await stub.Complete(request, metadata=[("authorization", f"Bearer {key}")], timeout=60)
            seen.answered += 1
        except grpc.aio.AioRpcError as error:
            status: Any = rpc_status.from_call(error)  # type: ignore[arg-type]
            info = error_details_pb2.ErrorInfo()
            status.details[0].Unpack(info)
            seen.refused[f"{error.code().name} {info.reason}"] += 1
            delay = error_details_pb2.RetryInfo()
            limited = info.reason == "QUOTA_EXHAUSTED"
            if limited and (len(status.details) < 2 or not status.details[1].Unpack(delay)):
                seen.undelayed += 1
            await asyncio.sleep(random.uniform(0, PAUSE_S))


async def measured(url: str, folder: Path, seconds: float) -> tuple[list[Row], Seen]:
    """Let all callers press on for this long. Return what the upstream has counted."""
    database = await Database.open(url)
    accounts = SQLAccounts(database)
    limits: dict[str, dict[str, int]] = {}
    keys: list[str] = []
    for tenant, (of_tenant, of_second) in LIMITS.items():
        await accounts.set_tenant(Tenant(tenant, **of_tenant))  # type: ignore[arg-type]
        limits[tenant] = of_tenant
        for of_key in ({}, of_second):
            text, key = new_key(tenant, ["ask"])
            await accounts.add_key(replace(key, **of_key))
            limits[f"key {key.key_id}"] = of_key
            keys.append(text)

    seen = Seen()
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(serving(recording=False))
        upstream.plays(writes(seen.script))
        stubs: list[Any] = []
        for name in ("one", "two"):
            place = folder / name
            place.mkdir()
            config = config_file(place, upstream.base_url, 'address = "127.0.0.1:9"')
            store = f'store = "{url}"\nlog = "{place}/log"'
            text = config.read_text().replace('store = "sqlite:///runs.db"', store)
            config.write_text(text.replace("attempts = 1", "attempts = 1\nmax_tokens = 64"))
            arguments = ("--config", str(config), "--address", "127.0.0.1:0")
            gateway = stack.enter_context(service("serve", *arguments, cwd=place))
            address = await asyncio.to_thread(gateway.ready)
            # Its log must be read, or it waits for the pipe.
            threading.Thread(target=gateway.rest, daemon=True).start()
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
            stubs.append(CompletionServiceStub(channel))

        until = time.monotonic() + seconds
        callers = (
            call(stubs[number % 2], keys[number // 2 % len(keys)], until, seen)
            for number in range(CALLERS)
        )
        await asyncio.gather(*callers)
        begun = await rows(
            database,
            "SELECT run_id, calls.tenant, calls.key_id, runs.started_at, calls.started_at "
            "FROM calls JOIN runs USING (run_id) ORDER BY run_id",
        )
    await database.close()
    return figures(seen, limits, {run_id: rest for run_id, *rest in begun}), seen


def figures(
    seen: Seen, limits: dict[str, dict[str, int]], begun: dict[str, list[Any]]
) -> list[Row]:
    """Return the upstream's counts of each account with limits."""
    sums: dict[tuple[str, str], dict[str, Counter[str]]] = {}
    for run_id, at, tokens in seen.served:
        tenant, key_id, run_began, call_began = begun[run_id]
        for account in (tenant, f"key {key_id}"):
            for of, count, began in (("requests", 1, run_began), ("tokens", tokens, call_began)):
                known = sums.setdefault((account, of), {"gateways": Counter(), "own": Counter()})
                known["gateways"][names(began)[0]] += count
                known["own"][names(at)[0]] += count
    return [
        Row(
            account,
            of,
            limit,
            (known := sums[account, of])["own"].total(),
            max(known["gateways"].values()),
            max(known["own"].values()),
        )
        for account, limited in limits.items()
        for of, limit in ((name.removesuffix("_per_minute"), limited[name]) for name in limited)
    ]


def show(rows: list[Row], seen: Seen, seconds: float) -> None:
    columns = (
        "account",
        "of",
        "limit a minute",
        "served in all",
        "most in a minute of the gateways",
        "most in a minute of the upstream",
        "overshoot",
    )
    lines = [(*row, max(0, row.by_gateways - row.limit)) for row in rows]
    table = new_table(columns, lines, texts=2)
    Console(width=140).print(table)
    print(
        f"{CALLERS} callers, 2 gateways, {seconds:g} s: the upstream served {len(seen.served)} "
        f"requests, {seen.answered} were answered, refused: {dict(seen.refused)}; "
        f"{seen.undelayed} without a time to retry"
    )


@pytest.mark.slow
@pytest.mark.postgres
async def test_no_account_is_above_its_limit_by_the_upstream_s_own_count(
    postgres: Callable[[], str], tmp_path: Path
) -> None:
    """200 callers press on for two turns of a minute. Every limit is used to its end."""
    seconds = 90.0
    counted, seen = await measured(postgres(), tmp_path, seconds)
    show(counted, seen, seconds)
    assert all(row.by_gateways <= row.limit for row in counted)
    used = {(row.account, row.of): row.by_gateways / row.limit for row in counted}
    assert used["counted", "requests"] == 1.0
    assert used["weighed", "tokens"] > 0.9
    assert seen.refused["RESOURCE_EXHAUSTED QUOTA_EXHAUSTED"] > 1000
    assert seen.undelayed == 0
    assert len(seen.served) >= seen.answered


async def test_a_limit_per_minute_holds_over_http(tmp_path: Path) -> None:
    """Of three requests, one a minute passes. The others get 429 with the time to retry."""
    database = await Database.open(f"sqlite:///{tmp_path}/runs.db")
    await SQLAccounts(database).set_tenant(Tenant("default", requests_per_minute=1))
    await database.close()
    request = {"model": "rolegate", "messages": [{"role": "user", "content": QUESTION}]}
    refusals = []
    async with (
        watched_gateway(tmp_path, TelemetryConfig(), "127.0.0.1:0") as gateway,
        aiohttp.ClientSession() as session,
    ):
        url = f"{gateway.listens('OpenAI')}/chat/completions"
        for _ in range(3):
            async with session.post(url, json=request) as response:
                if response.status != 200:
                    refusals.append((response.status, response.headers["Retry-After"]))
                    assert "requests_per_minute is 1" in await response.text()
    assert 1 <= len(refusals) <= 2
    for status, retry_after in refusals:
        assert status == 429
        assert 1 <= int(retry_after) <= 60


async def _main(seconds: float) -> None:
    with running_postgres() as server, tempfile.TemporaryDirectory() as folder:
        counted, seen = await measured(server.url, Path(folder), seconds)
    show(counted, seen, seconds)


if __name__ == "__main__":
    asyncio.run(_main(float(sys.argv[1]) if len(sys.argv) > 1 else 150.0))
