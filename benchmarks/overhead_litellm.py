"""What model calls cost in CPU and time through the gateway and through LiteLLM, side by side."""

import asyncio
import statistics
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import grpc
import msgspec
from rolegate.v1.completion_service_pb2 import ChatMessage, CompleteRequest
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.usage_pb2 import ROLE_ANSWER

from benchmarks.asking import Ask, in_flight
from benchmarks.canned_gateway import CannedGateway
from benchmarks.canned_upstream import CALLS_A_QUESTION
from benchmarks.litellm_proxy import litellm_proxy
from benchmarks.process_meter import ProcessMeter
from router.errors import RolegateError

_ROUNDS = 5
_ONE_BY_ONE, _TOGETHER, _AT_ONCE = 60, 256, 64
"""Calls of a round: one after the other, for what a call takes; and many at once, for what it costs."""


class Way(msgspec.Struct, frozen=True):
    """One call, by one way."""

    cpu_ms: float
    added_p50_ms: float
    """Beyond the same call without anything in between."""
    calls_a_second: float
    """With 64 in flight."""
    own_mb: float
    """Memory of the process at the end."""


class Figures(msgspec.Struct, frozen=True):
    """One beside the other."""

    question_cpu_ms: float
    """The gateway's, for a question: model calls, retrieval, store and all."""
    sdk_cpu_ms: float
    """LiteLLM's SDK's, for the model calls of a question."""
    complete: Way
    """The gateway's `Complete`."""
    proxy: Way | None
    """LiteLLM's proxy server; None where it was not asked for."""

    @property
    def ratios(self) -> dict[str, float]:
        """How many times more LiteLLM takes."""
        ratios = {"CPU, the SDK's to a whole question's": self.sdk_cpu_ms / self.question_cpu_ms}
        if self.proxy:
            ratios["CPU of a call, the proxy's to Complete's"] = self.proxy.cpu_ms / self.complete.cpu_ms
            ratios["added p50, the proxy's to Complete's"] = self.proxy.added_p50_ms / self.complete.added_p50_ms
        return ratios


@dataclass(frozen=True, slots=True)
class _Measured:
    """One way, round by round."""

    ask: Ask
    meter: ProcessMeter | None = None
    p50_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    async def round(self) -> None:
        self.p50_s.append(statistics.median(await in_flight(self.ask, _ONE_BY_ONE, 1)))
        if self.meter:
            clock = asyncio.get_running_loop().time
            cpu_s, begun = self.meter.cpu_s, clock()
            await in_flight(self.ask, _TOGETHER, _AT_ONCE)
            self.cpu_s.append((self.meter.cpu_s - cpu_s) / _TOGETHER)
            self.rates.append(_TOGETHER / (clock() - begun))

    def way(self, direct: Sequence[float]) -> Way:
        assert self.meter is not None
        median = statistics.median
        added_s = median(own - bare for own, bare in zip(self.p50_s, direct, strict=True))
        return Way(median(self.cpu_s) * 1000, added_s * 1000, median(self.rates), self.meter.own_bytes / 1e6)


async def beside_litellm(gateway: CannedGateway, proxy_python: Path | None, questions: int) -> Figures:
    """Measure. `proxy_python`: of an environment with `litellm[proxy]`. Raises `RolegateError`."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(gateway.address))
        ways = [_Measured(_posts(session, gateway.upstream)), _Measured(_completes(channel), gateway.meter)]
        if proxy_python:
            pid, base_url = await stack.enter_async_context(
                litellm_proxy(proxy_python, gateway.folder, gateway.upstream)
            )
            ways.append(_Measured(_posts(session, base_url), ProcessMeter(pid)))
        for way in ways:
            await in_flight(way.ask, _TOGETHER, _AT_ONCE)  # warm
        for _ in range(_ROUNDS):
            for way in ways:
                await way.round()
        direct, complete, *proxy = ways
        ask = await stack.enter_async_context(gateway.asking(_AT_ONCE))
        await in_flight(ask, _AT_ONCE, _AT_ONCE)
        cpu_s = gateway.meter.cpu_s
        await in_flight(ask, questions, _AT_ONCE)
        question_ms = (gateway.meter.cpu_s - cpu_s) / questions * 1000
        return Figures(
            question_ms,
            await _sdk_ms(gateway.upstream, questions) * CALLS_A_QUESTION,
            complete.way(direct.p50_s),
            proxy[0].way(direct.p50_s) if proxy else None,
        )


def _said(number: int) -> str:
    return f"When was the director of film number {number} born?"


def _posts(session: aiohttp.ClientSession, base_url: str) -> Ask:
    async def ask(number: int) -> None:
        body = {"model": "answerer", "messages": [{"role": "user", "content": _said(number)}], "max_tokens": 64}
        async with session.post(f"{base_url}/chat/completions", json=body) as response:
            if response.status != 200:
                raise RolegateError(f"{base_url}: HTTP {response.status}: {await response.text()}")
            await response.read()

    return ask


def _completes(channel: grpc.aio.Channel) -> Ask:
    stub = CompletionServiceStub(channel)

    async def ask(number: int) -> None:
        messages = [ChatMessage(role="user", content=_said(number))]
        await stub.Complete(CompleteRequest(role=ROLE_ANSWER, messages=messages), timeout=60)

    return ask


async def _sdk_ms(base_url: str, calls: int) -> float:
    """CPU of one call."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.litellm_calls", base_url, str(calls), str(_AT_ONCE)),
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await process.communicate()
    if process.returncode:
        raise RolegateError("The calls through LiteLLM's SDK failed; is rolegate[litellm] installed?")
    return float(told)
