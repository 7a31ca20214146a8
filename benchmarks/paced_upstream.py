"""Models that write at the pace which a question asks for, in a process of their own:
`python -m benchmarks.paced_upstream`.

A question such as `number=7 block=4 delegator=50 thinks=0 executor=75 engine=2` is delegated in one block, at 50
tokens a second, after so many seconds of thinking. Executors write 75 tokens a second, as long as no more than `engine`
of them do so at once; more than that share the speed. Two in five search twice, as in the paper's Table 4.
"""

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
from aiohttp import web

from benchmarks.canned_upstream import CannedModels, serve
from router.models.openai_wire import REQUEST_ID

_FIRST_TOKEN_S = 0.05
_SEARCHES_TWICE = 0.4
_ANSWERS_PER_S = 100.0
_EVENTS = {"Content-Type": "text/event-stream"}
_TOLD = re.compile(r"(\w+)=([\d.]+)")
_REPORT = (
    "<answer>what the passage says of it</answer>\n<evidence>Heat is a film by Michael Mann, who was born in Chicago "
    "in 1943, and this is the point that the answer rests on.</evidence>"
)


class _Message(msgspec.Struct):
    content: str


class _Request(msgspec.Struct):
    model: str
    messages: list[_Message]


@dataclass(frozen=True, slots=True)
class Turn:
    """What a model writes, in pieces."""

    tokens: Sequence[str]
    per_s: float
    thinks: Sequence[str] = ()
    """Tokens of reasoning before."""
    engine: float = 0.0
    """How many turns of this kind a run may have under way before they share the speed; 0 for any number."""


class PacedModels:
    """Writes by the role that its model's name says."""

    def __init__(self) -> None:
        self._under_way = Counter[str]()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """A streamed completion."""
        asked = msgspec.json.decode(await request.read(), type=_Request)
        turn = _turn(asked.model, [message.content for message in asked.messages])
        run_id = request.headers.get(REQUEST_ID, "").rpartition("-")[0]
        response = web.StreamResponse(headers=_EVENTS)
        await response.prepare(request)
        self._under_way[run_id] += bool(turn.engine)
        try:
            await self._write(response, turn, run_id)
        finally:
            self._under_way[run_id] -= bool(turn.engine)
        return response

    async def _write(self, response: web.StreamResponse, turn: Turn, run_id: str) -> None:
        due = asyncio.get_running_loop().time() + _FIRST_TOKEN_S
        for delta in _deltas(turn):
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            await response.write(_event({"choices": [{"index": 0, "delta": delta}]}))
            due += max(1.0, self._under_way[run_id] / turn.engine if turn.engine else 1.0) / turn.per_s
        usage = {"prompt_tokens": 100, "completion_tokens": len(turn.tokens) + len(turn.thinks)}
        ended = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}
        await response.write(_event(ended) + b"data: [DONE]\n\n")


def _deltas(turn: Turn) -> Iterator[dict[str, str]]:
    yield from ({"reasoning": word} for word in turn.thinks)
    yield from ({"content": word} for word in turn.tokens)


def _event(chunk: object) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(chunk)


def _turn(model: str, messages: Sequence[str]) -> Turn:
    told = dict(_TOLD.findall(messages[1]))
    if model == "answerer":
        return Turn(_tokens("<answer>in 1943</answer>"), _ANSWERS_PER_S)
    if model == "delegator":
        speed = float(told["delegator"])
        if len(messages) > 2:
            return Turn(_tokens("<stop/>Enough evidence<stop>"), speed)
        return Turn(_tokens(_block(told)), speed, ["hm "] * int(float(told["thinks"]) * speed))
    chance = random.Random(f"{told['number']}-{told['item']}").random()
    searches = 2 if chance < _SEARCHES_TWICE else 1
    said = "<search>what is to be known of this in the passages that there are</search>"
    text = said if len(messages) <= 2 * searches else _REPORT
    return Turn(_tokens(text), float(told["executor"]), engine=float(told["engine"]))


def _block(told: dict[str, str]) -> str:
    """Sub-queries of some 25 tokens each, which carry on what their executors need to know."""
    carried = " ".join(f"{name}={told[name]}" for name in ("number", "executor", "engine"))
    questions = [
        f"Of item={item} {carried}: what is said, and when did it begin?" for item in range(int(told["block"]))
    ]
    return f"<search>{json.dumps(questions)}</search>"


def _tokens(text: str) -> list[str]:
    """Words and signs, much as a tokenizer tells them apart."""
    return re.findall(r"\s*(?:\w+|[^\w\s]+)", text)


if __name__ == "__main__":
    asyncio.run(serve(CannedModels(), PacedModels().complete))
