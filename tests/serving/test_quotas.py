"""Usage and refusals of a tenant through a whole gateway with a real store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from rolegate.v1 import completion_service_pb2 as pb
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1 import usage_pb2
from rolegate.v1 import usage_service_pb2 as usage_service_pb
from rolegate.v1.answer_service_pb2 import AnswerRequest
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from rolegate.v1.usage_service_pb2_grpc import UsageServiceStub

from router.access import Spent, Tenant
from router.calls.limits import prompt_bound
from router.edge.grpc.server import Server
from router.models import Message
from router.protocol import Passage
from router.store import SQLAccounts, opened
from router.trace import Price
from serving.composition import running_gateway
from serving.config.config import Config, RetrievalConfig, RoleConfig, RolesConfig, ServerConfig
from serving.config.file import preset, read_config
from serving.retrieval.services import RetrievalServicer
from tests import reading_model
from tests.openai_behaviours import disconnects, end_event, text_event
from tests.openai_server import DONE, MODEL, event, hang, says, serving, streams
from tests.router.retriever import one_index

BOUND = prompt_bound([Message("user", "hi")])
HI = pb.CompleteRequest(
    role=usage_pb2.ROLE_ANSWER, messages=[pb.ChatMessage(role="user", content="hi")]
)


class BookedGateway:
    """A running gateway and its ledger."""

    def __init__(self, channel: grpc.aio.Channel, store: str) -> None:
        self.channel = channel
        self._store = store

    async def complete(self) -> tuple[pb.CompleteResponse, run_pb.UpstreamCall]:
        """Complete, and return the response with the recorded call."""
        reply = await CompletionServiceStub(self.channel).Complete(HI, timeout=30)
        run = await RunServiceStub(self.channel).GetRun(
            run_pb.GetRunRequest(run_id=reply.run_id), timeout=30
        )
        (call,) = run.calls
        return reply, call

    async def spent(self) -> Spent:
        """Return the tenant's usage of this day."""
        async with opened(self._store) as database:
            return (await SQLAccounts(database).spending("default"))[0]


@asynccontextmanager
async def asked(folder: Path, config: Config, **limits: int) -> AsyncIterator[BookedGateway]:
    """Run a gateway with one tenant that has these limits."""
    async with opened(config.server.store) as database:
        await SQLAccounts(database).set_tenant(Tenant("default", **limits))  # type: ignore[arg-type]
    async with (
        running_gateway(config, "127.0.0.1:0", lambda _step: None) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield BookedGateway(channel, config.server.store)


def one_model(folder: Path, base_url: str, max_tokens: int) -> Config:
    """Return a config of one model with a price."""
    (folder / "prompt.txt").write_text("Answer.\n", "utf-8")
    role = RoleConfig(
        model=MODEL, prompt=f"{folder}/prompt.txt", base_url=base_url, max_tokens=max_tokens
    )
    return Config(
        roles=RolesConfig(delegation=role, execution=role, answer=role),
        retrieval=RetrievalConfig(address="127.0.0.1:9"),
        server=ServerConfig(store=f"sqlite:///{folder}/runs.db"),
        prices={MODEL: Price(prompt=2.0, completion=8.0, cached=0.2)},
    )


def told(prompt: object, completion: object, **parts: object) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": parts.get("cached")},
        "completion_tokens_details": {"reasoning_tokens": parts.get("reasoning")},
    }


@pytest.mark.parametrize(
    "usage",
    [
        told(11, 7, cached=10**12),
        told(11, 7, cached=-1),
        told(11, 7, reasoning=8),
        told(10**12, 7),
        told(11, 10**12),
        told(BOUND + 1, 7),
        told(11, 0),
        told(0, 7),
        told(-11, 7),
        told(11, -7),
        told(True, 7),
        told(11.5, 7),
        told(10**30, 10**30),
    ],
)
async def test_an_impossible_usage_is_recorded_as_unknown(
    tmp_path: Path, usage: dict[str, Any]
) -> None:
    """It is charged as the worst case and marked; the tenant's sums can still be read."""
    async with (
        serving() as server,
        asked(tmp_path, one_model(tmp_path, server.base_url, 64), tokens_per_day=10**6) as gateway,
    ):
        server.plays(says("hello", usage=usage))
        _, call = await gateway.complete()
        (row,) = (
            await UsageServiceStub(gateway.channel).GetUsage(
                usage_service_pb.GetUsageRequest(), timeout=30
            )
        ).rows
        spent = await gateway.spent()
    assert (call.outcome, call.counted) == ("completed", "impossible")
    assert not any(
        call.HasField(field) for field in ("prompt_tokens", "completion_tokens", "cost_nano_usd")
    )
    assert (
        row.usage.attempts_without_usage,
        row.usage.prompt_tokens,
        row.usage.HasField("cost_nano_usd"),
    ) == (
        1,
        0,
        False,
    )
    assert (spent.tokens, spent.nano_usd) == (BOUND + 64, BOUND * 2000 + 64 * 8000)


async def test_a_usage_that_shrinks_counts_at_its_largest(tmp_path: Path) -> None:
    chunks = [
        text_event("a", told(11, 9)),
        text_event("b", told(11, 2)),
        end_event(),
        event({"usage": told(7, 3)}),
        DONE,
    ]
    async with (
        serving() as server,
        asked(tmp_path, one_model(tmp_path, server.base_url, 64)) as gateway,
    ):
        server.plays(streams(*chunks))
        _, call = await gateway.complete()
    assert (call.counted, call.prompt_tokens, call.completion_tokens) == ("reported", 11, 9)


@pytest.mark.parametrize("counts", [True, False])
async def test_an_engine_that_ignores_max_tokens_is_stopped(tmp_path: Path, counts: bool) -> None:
    """The stream ends once the engine has counted more tokens, or written more text than that
    number can hold.
    """
    pieces = [
        text_event("a " if counts else "a word ", told(11, position + 1) if counts else None)
        for position in range(1000)
    ]
    async with (
        serving() as server,
        asked(tmp_path, one_model(tmp_path, server.base_url, 64), tokens_per_day=10**6) as gateway,
    ):
        server.plays(streams(*pieces, then=hang))
        reply, call = await gateway.complete()
        await disconnects(server)
        spent = await gateway.spent()
    assert reply.finish_reason == "length"
    assert len(reply.text) < 2000 if counts else len(reply.text) == 64 * 32 + 256
    assert (call.counted, call.completion_tokens) == (("lower_bound", 64) if counts else ("", 0))
    assert spent.tokens == (11 if counts else BOUND) + 64


@pytest.mark.parametrize("counted", [200, 10**12])
async def test_a_whole_reply_longer_than_max_tokens_is_cut(tmp_path: Path, counted: int) -> None:
    """The engine's count becomes a lower bound, or is marked as impossible."""
    async with serving() as server:
        config = one_model(tmp_path, server.base_url, 64)
        async with asked(tmp_path, config, tokens_per_day=10**6) as gateway:
            server.plays(says("word " * 1000, usage=told(11, counted)))
            reply, call = await gateway.complete()
            spent = await gateway.spent()
    assert (reply.finish_reason, len(reply.text)) == ("length", 64 * 32 + 256)
    assert spent.tokens <= BOUND + 64
    assert call.counted == ("lower_bound" if counted == 200 else "impossible")


async def test_a_call_is_shortened_to_the_rest_of_a_quota(tmp_path: Path) -> None:
    """If less than a quarter is left, the call is refused and the error names the quota."""
    async with serving() as server:
        config = one_model(tmp_path, server.base_url, 1024)
        async with asked(tmp_path, config, tokens_per_day=BOUND + 300) as gateway:
            server.plays(says("hello", usage=told(20, 30)))
            await gateway.complete()
            assert server.bodies[-1]["max_tokens"] == 300
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                for _ in range(20):
                    await gateway.complete()
            spent = await gateway.spent()
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    remaining = BOUND + 300 - spent.tokens
    assert f"{remaining} tokens are left, and " in (caught.value.details() or "")
    assert remaining < BOUND + 256


async def test_a_quota_is_used_to_its_end(tmp_path: Path) -> None:
    """Questions are answered until the remaining quota is below the maximum of another question."""
    every = {
        f"Who directed Heat, and why, number {n}?": [
            Passage("p", "Heat", "Heat was directed.", 0.9)
        ]
        for n in range(60)
    }
    retrieval = Server(None, RetrievalServicer(one_index(every)))
    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", reading_model.complete)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    roles: dict[str, Any] = {
        name: RoleConfig(
            model=reading_model.MODEL,
            prompt=role.prompt,
            base_url=base_url,
            max_tokens=role.max_tokens,
        )
        for name, role in read_config(preset("hosted")).roles.by_name.items()
    }
    config = Config(
        roles=RolesConfig(**roles),
        retrieval=RetrievalConfig(address=f"127.0.0.1:{await retrieval.start('127.0.0.1:0')}"),
        server=ServerConfig(store=f"sqlite:///{tmp_path}/runs.db"),
    )
    async with asked(tmp_path, config, tokens_per_day=20_000) as gateway:
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"\d+ tokens are left, and \d+ tokens are needed"
        ) as caught:
            for question in every:
                await AnswerServiceStub(gateway.channel).Answer(
                    AnswerRequest(question=question), timeout=30
                )
        spent = await gateway.spent()
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert 15_000 < spent.tokens <= 20_000
    await runner.cleanup()
    await retrieval.drain(0)
