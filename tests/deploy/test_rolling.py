"""Gateways behind HAProxy are restarted without a failed request."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from grpc import StatusCode
from rolegate.client import AsyncClient, GatewayError

from benchmarks.gateway import OnePassage, canned_config, played, retrieval
from router.testing.postgres import postgres_binaries, running_postgres
from tests.deploy.rolling import HAPROXY, Options, Served, haproxy, rolling


@pytest.mark.skipif(not HAPROXY, reason="HAProxy is not installed (Debian: apt install haproxy)")
async def test_a_proxy_without_a_gateway_says_so_in_grpc(tmp_path: Path) -> None:
    """With gRPC's status, instead of a page that reads as a broken stream."""
    absent = [Served(tmp_path, number, tmp_path) for number in range(2)]
    async with haproxy(tmp_path, absent) as (grpc, _), AsyncClient(grpc) as client:
        for call in (client.ask("why?"), anext(aiter(client.stream("why?")))):
            with pytest.raises(GatewayError, match="no gateway that is ready") as refused:
                await call
            assert refused.value.code is StatusCode.UNAVAILABLE


@pytest.mark.slow
@pytest.mark.skipif(not HAPROXY, reason="HAProxy is not installed (Debian: apt install haproxy)")
async def test_gateways_without_search_still_answer_what_they_can(tmp_path: Path) -> None:
    """None of them is ready, as their retrieval server is away."""
    async with played() as (models, _), AsyncExitStack() as stack:
        async with retrieval(OnePassage()) as address:
            config = canned_config(tmp_path, [models.base_url], address)
            gateway = Served(config, 1, tmp_path)
            stack.push_async_callback(gateway.stop)
            await gateway.start()
        grpc, http = await stack.enter_async_context(haproxy(tmp_path, [gateway]))
        client = await stack.enter_async_context(AsyncClient(grpc))
        session = await stack.enter_async_context(aiohttp.ClientSession(f"http://{http}"))
        with pytest.raises(GatewayError) as failed:
            await client.ask("why?")
        assert failed.value.reason == "UPSTREAM_UNAVAILABLE"
        for _ in range(300):
            if (await session.get("/readyz")).status == 503:
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)  # HAProxy looks every second
        assert len([run async for run in client.runs()]) == 1
        assert "retrieval" in await (await session.get("/readyz")).text()


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.skipif(not HAPROXY, reason="HAProxy is not installed (Debian: apt install haproxy)")
@pytest.mark.skipif(not postgres_binaries(), reason="PostgreSQL is not installed")
async def test_a_rolling_restart_fails_no_request_and_books_each_call(tmp_path: Path) -> None:
    """By gRPC, streamed and over HTTP, and short calls that no client repeats."""
    options = Options(questions=240, gateways=2, every=2.0, in_flight=8, quota=20_000)
    with running_postgres(durable=False) as server:
        figures = await rolling(options, tmp_path, server.url)
    assert figures.restarts >= 2
    assert (dict(figures.failed), figures.looks_failed) == ({}, 0)
    assert figures.statuses == {"finished": options.questions}
    assert figures.looks > 100
    assert (figures.overshoot, figures.booked, figures.left) == (0, figures.seen, 0)
    assert figures.capped > options.quota / 2
    assert {condition: names for condition, names in figures.wrong.items() if names} == {}
