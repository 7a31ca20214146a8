"""Processes that make calls when they are told to: `python -m benchmarks.pipelines.driven KIND BASE_URL TOKENS`.

direct            the calls and searches of a question, made by the client itself, by P2's means
litellm           the same by LiteLLM's SDK
litellm-streamed  the same, streamed
tokens-gateway    a stream of so many tokens, read as a role of the gateway reads it, on the event loop of gateways
tokens-aiohttp    the same, read as P1 reads it, on plain asyncio

Each line of its standard input is a `benchmarks.load.Order` in JSON; its answer is one line, with the run and the
seconds of each.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import aiohttp
import msgspec
import uvloop

from benchmarks import gateway
from benchmarks.harness import Child
from benchmarks.load import Order, ordered, question
from benchmarks.pipelines.question import Pipeline, Said, Usage
from benchmarks.pipelines.readers import AiohttpCalls, PushCalls
from benchmarks.pipelines.server import in_process
from router.calls import Role
from router.ledger import Ledger
from router.models import Message, Sampling
from router.models.litellm_client import close_clients, load_litellm
from router.models.openai_client import OpenAIHTTP
from router.models.openai_wire import REQUEST_ID
from router.models.session import upstream_session
from serving.signals import collect_seldom

Kind = Literal["direct", "litellm", "litellm-streamed", "tokens-gateway", "tokens-aiohttp"]
DRIVEN = "driven"
"""What such a process prints once it is ready."""
Ask = Callable[[int], Awaitable[str]]
_rows = msgspec.json.Decoder(list[tuple[str, float]]).decode


async def told(process: Child, order: Order) -> list[tuple[str, float]]:
    """Let such a process do as ordered; see `load.ordered`. Raises `RolegateError`."""
    return _rows(await process.answer(msgspec.json.encode(order)))


class LiteLLMCalls:
    """Calls by LiteLLM's SDK."""

    def __init__(self, base_url: str, *, streamed: bool) -> None:
        self._litellm = load_litellm()
        self._fixed = {"api_base": base_url, "api_key": "none", "num_retries": 0}
        if streamed:
            self._fixed |= {"stream": True, "stream_options": {"include_usage": True}}

    async def __call__(self, body: dict[str, Any], name: str) -> Said:
        """Make a call. Raises what LiteLLM raises."""
        named = {"model": f"openai/{body['model']}", "extra_headers": {REQUEST_ID: name}}
        reply = await self._litellm.acompletion(**body | named, **self._fixed)
        if "stream" not in self._fixed:
            choice = reply.choices[0]
            return Said([choice.message.content], choice.finish_reason, _usage(reply.usage))
        said = Said()
        async for chunk in reply:
            for choice in chunk.choices:
                said.texts.append(choice.delta.content or "")
                said.finish_reason = choice.finish_reason or said.finish_reason
            if usage := getattr(chunk, "usage", None):
                said.usage = _usage(usage)
        return said


def _usage(usage: Any) -> Usage:
    return Usage(usage.prompt_tokens, usage.completion_tokens)


@asynccontextmanager
async def _asking(kind: str, base_url: str, tokens: int) -> AsyncIterator[Ask]:
    match kind:
        case "direct":
            push = PushCalls(base_url)
            yield _questions(Pipeline(push, in_process))
            push.close()
        case "litellm" | "litellm-streamed":
            yield _questions(Pipeline(LiteLLMCalls(base_url, streamed=kind.endswith("streamed")), in_process))
            await close_clients()
        case "tokens-gateway":
            async with upstream_session() as session:
                yield _role_tokens(
                    Role("answer", OpenAIHTTP(session, base_url, "long"), "", Sampling(tokens), attempts=1)
                )
        case _:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
                yield _aiohttp_tokens(AiohttpCalls(session, base_url), tokens)


def _questions(pipeline: Pipeline) -> Ask:
    async def ask(number: int) -> str:
        return (await pipeline.answer(question(number))).run_id

    return ask


def _role_tokens(role: Role) -> Ask:
    async def ask(number: int) -> str:
        return (await role.ask((Message("user", question(number)),), (), Ledger(f"run-{number}"))).finish_reason

    return ask


def _aiohttp_tokens(calls: AiohttpCalls, tokens: int) -> Ask:
    async def ask(number: int) -> str:
        messages = [{"role": "user", "content": question(number)}]
        said = await calls({"model": "long", "messages": messages, "max_tokens": tokens}, f"run-{number}-1")
        return said.finish_reason or ""

    return ask


async def _obey(kind: str, base_url: str, tokens: str) -> None:
    async with _asking(kind, base_url, int(tokens)) as ask:
        collect_seldom()
        print(DRIVEN, flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            done = await ordered(ask, msgspec.json.decode(line, type=Order))
            print(msgspec.json.encode(done).decode(), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "tokens-gateway":
        gateway.run(_obey(*sys.argv[1:]))
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if sys.argv[1] == "direct" else None) as runner:
            runner.run(_obey(*sys.argv[1:]))
