"""Run simulated models, which need little CPU, in a separate process: `python -m
benchmarks.pipelines.models TOKEN_S`.

The models write the turns of `benchmarks.gateway.canned`, one token at a time. TOKEN_S is the
number of seconds between tokens; the first token takes five times as long. If TOKEN_S is 0, the
models write without delay, in two pieces.

The process first prints its base URL. Then, for each line on standard input, it prints a JSON
object with the busy time of each question number: the seconds, since the previous line, during
which at least one call for that question was in progress. It runs until standard input is closed.
"""

import asyncio
import re
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import cast

import httptools
import msgspec
import uvloop

from benchmarks.gateway import at_once
from router.testing.openai_server import ChatRequest, complete_reply, events
from serving.signals import tune_interpreter

_FIRST = 5
"""Factor by which the first token takes longer than any other token."""
_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
_NOTHING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
_END = b"0\r\n\r\n"
_NUMBER = re.compile(rb"film number (\d+)")


def together_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return the seconds that are covered by at least one span. A span is a pair (start, end) of
    times in seconds.
    """
    sum_s = 0.0
    until = 0.0
    for begin, end in sorted(spans):
        sum_s += max(0.0, end - max(begin, until))
        until = max(until, end)
    return sum_s


_asked = msgspec.json.Decoder(ChatRequest).decode


class _Connection(asyncio.Protocol):
    """An HTTP connection to the simulated models, with one request at a time. Tokens are streamed
    by a chain of timers, which needs less CPU than a task.
    """

    _transport: asyncio.Transport

    def __init__(self, token_s: float, spans: defaultdict[int, list[tuple[float, float]]]) -> None:
        """`token_s`: seconds per token. `spans`: mapping from question numbers to the times (start,
        end) of calls; the times of each call are added to it.
        """
        self._token_s = token_s
        self._spans = spans
        self._parser = httptools.HttpRequestParser(self)
        self._body = list[bytes]()
        self._loop = asyncio.get_running_loop()
        self._pieces = deque[bytes]()
        self._number = -1
        self._begun = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body = []

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._begun = time.perf_counter()
        body = b"".join(self._body)
        if not body:  # LiteLLM requests the list of models
            self._transport.write(_NOTHING)
            return
        number = _NUMBER.search(body)
        self._number = int(number[1]) if number else -1
        asked = _asked(body)
        reply = at_once(asked)
        prompt_tokens = sum(len(text.split()) for text in asked.texts)
        if not asked.stream:
            text = complete_reply(reply, prompt_tokens)
            self._last(_WHOLE % (len(text), text))
            return
        self._transport.write(_STREAM)
        first, *others, end = (
            b"%x\r\n%b\r\n" % (len(event), event) for event in events(reply, prompt_tokens)
        )
        if not self._token_s:
            self._transport.write(first)
            self._loop.call_soon(self._last, b"".join((*others, end, _END)))
            return
        self._pieces = deque((first, *others, end + _END))
        self._after(_FIRST, self._loop.time())

    def _after(self, tokens: int, last: float) -> None:
        """Schedule the writing of the next token: at the time `last`, plus the time that `tokens`
        tokens take.
        """
        due = last + tokens * self._token_s
        self._loop.call_at(due, self._next, due)

    def _next(self, due: float) -> None:
        """Write the next token. After the last token, immediately write the end of the stream."""
        self._transport.write(self._pieces.popleft())
        if len(self._pieces) == 1 or self._transport.is_closing():
            self._last(self._pieces[-1])
        else:
            self._after(1, due)

    def _last(self, piece: bytes) -> None:
        self._transport.write(piece)
        self._spans[self._number].append((self._begun, time.perf_counter()))


async def _serve(token_s: float) -> None:
    spans = defaultdict[int, list[tuple[float, float]]](list)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: _Connection(token_s, spans), "127.0.0.1", 0, backlog=4096
    )
    tune_interpreter()
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        busy_s = {number: together_s(calls) for number, calls in spans.items()}
        print(msgspec.json.encode(busy_s).decode(), flush=True)
        spans.clear()


if __name__ == "__main__":
    uvloop.run(_serve(float(sys.argv[1])))
