"""What stands behind the gateway: models that say what a scenario lets them say, and retrieval that
finds it.

Every question, sub-query and query names its scenario, as in `@two-rounds a: who?`; the letter is
that of a sub-query. Each role asks at a place of its own, `/delegation/v1`, so that a script is
found by place and letter; `/delegation2/v1` is a replica, and has the same script.
"""

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import grpc
from aiohttp import web

from tests.contract.wire import message_class, method_of, new_message

Turn = str | dict[str, Any]
"""What is said, or a table of `say`, with `thinks`, `finish`, `usage`, and where it is `cut`; of
`status`, with `error` and `retry_after`; of `body`, with its `kind`; `reset`; `hang`. `refuses`
names fields; `pause_s` and `after` so many requests for a place come before all that.
"""
Script = Mapping[str, Sequence[Turn]]
_TAG = re.compile(r"@([a-z0-9-]+)(?: ([a-z]):)?")
_LONGEST_S = 10.0
_LETTERS = "abcdefgh"
MODELS = {
    "delegation": "backbone",
    "execution": "small",
    "answer": "fixed",
}


def report(letter: str) -> str:
    """An executor's report, in the words of what is found."""
    return f"<answer>{_LETTERS.index(letter) + 1}</answer><evidence>Fact {letter} is so.</evidence>"


class Upstream:
    """A server of OpenAI's API and one of `RetrievalService`, in one event loop."""

    def __init__(self) -> None:
        self.url = self.retrieval = ""
        self.scripts: dict[str, Script] = {}
        """By scenario."""
        self.asked: dict[str, list[dict[str, Any]]] = defaultdict(list)
        """What models were asked, by scenario."""
        self.adapters: dict[str, str] = {}
        self._seen: Counter[str] = Counter()
        self._news = asyncio.Condition()
        self._closing = AsyncExitStack()

    async def start(self) -> None:
        """Listen on free ports."""
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/{place}/v1/chat/completions", self._complete)
        app.router.add_get("/{place}/v1/models", self._models)
        app.router.add_post("/{place}/v1/{action:(?:un)?load}_lora_adapter", self._load)
        app.router.add_post("/{place}/tokenize", self._tokenize)
        app.router.add_post("/{place}/v1/embeddings", self._embed)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        self._closing.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._retrieval_handler(),))
        self.retrieval = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        self._closing.push_async_callback(server.stop, 0)

    async def close(self) -> None:
        """Listen no more."""
        await self._closing.aclose()

    async def seen(self, scenario: str, place: str, count: int) -> None:
        """Wait until so many requests for a place, `execution` or `execution a`, have come in a
        scenario.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_S), self._news:
                await self._news.wait_for(lambda: self._seen[f"{scenario} {place}"] >= count)

    async def _count(self, scenario: str, place: str, letter: str | None) -> int:
        """Note a request; how many of the same script came before."""
        names = [f"{scenario} {place}", *([f"{scenario} {place} {letter}"] if letter else [])]
        before = self._seen[names[-1]]
        async with self._news:
            self._seen.update(names)
            self._news.notify_all()
        return before

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        place = request.match_info["place"].rstrip("2")
        body = await request.json()
        scenario, letter = tag_of(" ".join(message["content"] for message in body["messages"]))
        number = await self._count(scenario, place, letter)
        self.asked[scenario].append(
            {"place": place, "letter": letter or "", "number": number, **body}
        )
        script = self.scripts.get(scenario, {})
        turns = script.get(f"{place} {letter}") or script.get(place)
        if turns is None:
            turns = defaults(place, scenario, letter)
            number = sum(message["role"] == "assistant" for message in body["messages"])
        said = turns[min(number, len(turns) - 1)]
        turn: dict[str, Any] = {"say": said} if isinstance(said, str) else said
        await asyncio.sleep(turn.get("pause_s", 0))
        if "after" in turn:
            await self.seen(scenario, *turn["after"])
        if turn.get("hang"):
            await asyncio.Event().wait()
        if turn.get("reset") and request.transport:
            request.transport.abort()
            return web.Response()
        if "status" in turn:
            headers = {"Retry-After": turn["retry_after"]} if "retry_after" in turn else {}
            error = {"error": {"message": turn.get("error", "no"), "code": turn["status"]}}
            return web.json_response(error, status=turn["status"], headers=headers)
        if "body" in turn:
            return web.Response(
                body=turn["body"].encode(), content_type=turn.get("kind", "text/html")
            )
        if refused := next((field for field in turn.get("refuses", ()) if field in body), None):
            said = {"error": {"message": f"{refused}: extra fields not permitted", "code": 400}}
            return web.json_response(said, status=400)
        if not body.get("stream"):
            return _whole(body, turn)
        return await _streamed(
            request, body, turn, lambda: self.seen(scenario, *turn.get("wait", ("", 0)))
        )

    async def _models(self, request: web.Request) -> web.Response:
        place = request.match_info["place"]
        models = [{"id": MODELS.get(place, place), "max_model_len": 32768, "parent": None}]
        models += [
            {"id": name, "parent": MODELS[place], "root": path}
            for name, path in self.adapters.items()
        ]
        return web.json_response({"object": "list", "data": models})

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.adapters.pop(body["lora_name"], None)
        if request.match_info["action"] == "load":
            self.adapters[body["lora_name"]] = body["lora_path"]
        return web.Response(text="Success")

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        texts = (
            [message["content"] for message in body["messages"]]
            if "messages" in body
            else [body["prompt"]]
        )
        return web.json_response({"count": sum(len(text.split()) for text in texts), "tokens": []})

    async def _embed(self, request: web.Request) -> web.Response:
        texts = (await request.json())["input"]
        data = [
            {"index": at, "embedding": [len(text) % 7 + 1.0, 1.0, 0.5, 0.25]}
            for at, text in enumerate(texts)
        ]
        return web.json_response({"object": "list", "data": data})

    def _retrieval_handler(self) -> grpc.GenericRpcHandler:
        method = method_of("RetrievalService/Search")
        handler: Any = grpc.unary_unary_rpc_method_handler(
            self._search,
            message_class(method.input_type).FromString,
            lambda response: response.SerializeToString(),
        )
        return grpc.method_handlers_generic_handler(
            method.containing_service.full_name, {method.name: handler}
        )

    async def _search(self, request: Any, context: Any) -> Any:
        queries = request.queries
        scenario, letter = tag_of(queries[0])
        number = await self._count(scenario, "retrieval", letter)
        turns = self.scripts.get(scenario, {}).get("retrieval", [{}])
        turn = turns[min(number, len(turns) - 1)]
        assert isinstance(turn, dict)
        if "code" in turn:
            await context.abort(grpc.StatusCode[turn["code"]], "scripted")
        if turn.get("hang"):
            await asyncio.Event().wait()
        found = [{"passages": turn.get("passages", _passages(query))} for query in queries]
        if turn.get("too_many"):
            found *= 2
        response = method_of("RetrievalService/Search").output_type
        return new_message(response, {"results": found, "index_id": "index-1"})


def tag_of(text: str) -> tuple[str, str | None]:
    """The scenario that a text belongs to, and the letter of its sub-query."""
    found = _TAG.search(text)
    return (found[1], found[2]) if found else ("", None)


def _passages(query: str) -> list[dict[str, Any]]:
    """Two, about the letter of the query."""
    letter = tag_of(query)[1] or "a"
    texts = {f"Fact {letter}": f"Fact {letter} is {_LETTERS.index(letter) + 1}. It is so."}
    texts[f"More of {letter}"] = f"Nobody doubts <it>, or {letter}."
    return [
        {
            "passage_id": f"{letter}{at}",
            "title": title,
            "text": text,
            "score": 1 - at / 10,
            "document": "facts.md",
        }
        for at, (title, text) in enumerate(texts.items(), 1)
    ]


def defaults(place: str, scenario: str, letter: str | None) -> list[Turn]:
    """What is said where a scenario has no script: one round of one sub-query, one search, and
    the answer.
    """
    if letter is None:
        if place == "answer":
            return ["<answer>42</answer>"]
        return [f"<search>@{scenario} a: which one?</search>", "<stop/>Enough evidence<stop>"]
    return [f"<search>@{scenario} {letter}: it</search>", report(letter)]


def _usage(body: dict[str, Any], turn: dict[str, Any], text: str) -> dict[str, Any] | None:
    """Tokens are words; half of the prompt is cached."""
    if "usage" in turn:
        return turn["usage"] or None
    read = sum(len(message["content"].split()) for message in body["messages"])
    reasoned = len(turn.get("thinks", "").split())
    written = max(1, len(text.split())) + reasoned
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": read // 2},
        "completion_tokens_details": {"reasoning_tokens": reasoned},
    }


def _whole(body: dict[str, Any], turn: dict[str, Any]) -> web.Response:
    message = {"role": "assistant", "content": turn["say"]}
    choice = {"index": 0, "message": message, "finish_reason": turn.get("finish", "stop")}
    reply = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [choice],
    }
    return web.json_response({**reply, "usage": _usage(body, turn, turn["say"])})


async def _streamed(
    request: web.Request,
    body: dict[str, Any],
    turn: dict[str, Any],
    wait: Callable[[], Awaitable[None]],
) -> web.StreamResponse:
    """The text by words, as vLLM streams it: where that is asked for, with the count so far in
    every event. It is cut before the word of number `cut`, after `wait`; a `held` one stays open.
    """
    options = body.get("stream_options") or {}
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)

    async def send(choices: list[dict[str, Any]], text: str, told: str) -> None:
        chunk = {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": body["model"],
            "choices": choices,
        }
        usage = _usage(body, turn, text) if options.get(told) else None
        content = {**chunk, **({"usage": usage} if usage else {})}
        await response.write(b"data: " + json.dumps(content).encode() + b"\n\n")

    async def say(delta: dict[str, Any], text: str, **end: Any) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": None, **end}
        await send([choice], text, "continuous_usage_stats")

    if "thinks" in turn:
        await say({"role": "assistant", "reasoning_content": turn["thinks"]}, "")
    pieces = re.findall(r"\S*\s*", turn["say"])[:-1]
    said = ""
    for number, piece in enumerate(pieces):
        if number == turn.get("cut") and request.transport:
            await wait()
            if "held" in turn:
                await asyncio.Event().wait()
            request.transport.abort()
            return response
        said += piece
        await say({"content": piece}, said)
    await say({}, said, finish_reason=turn.get("finish", "stop"), stop_reason=None)
    if options.get("include_usage"):
        await send([], said, "include_usage")
    await response.write(b"data: [DONE]\n\n")
    return response
