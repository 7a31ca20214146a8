"""Models that are played in a process of their own, with next to no work: `python -m
benchmarks.pipelines.models PACE TOKEN_S`, which is the seconds from one token to the next; the
first comes after five times as long.

paced    writes the turns of a question (`benchmarks.gateway.canned`), a token at a time
at-once  writes the same in two pieces, as fast as it can
tokens   writes long streams, a token at a time, at an uneven pace

It prints its base URL. For each line of its standard input it prints, by the number of the question
that calls tell of, the seconds in which at least one of them was being worked on since the last
line. It goes on until its standard input ends.
"""

import asyncio
import random
import re
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Literal, cast

import httptools
import msgspec
import uvloop

from benchmarks.gateway import at_once
from router.testing.openai_server import ChatRequest, Reply, events, whole
from serving.signals import tune_interpreter

Pace = Literal["paced", "at-once", "tokens"]
_FIRST = 5
_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
_NOTHING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
_END = b"0\r\n\r\n"
_NUMBER = re.compile(rb"film number (\d+)")


def together_s(spans: Iterable[tuple[float, float]]) -> float:
    """The time in which at least one of some spans was going on, each from its begin to its end."""
    sum_s = until = 0.0
    for begin, end in sorted(spans):
        sum_s += max(0.0, end - max(begin, until))
        until = max(until, end)
    return sum_s


class _Asked(ChatRequest, frozen=True):
    max_tokens: int = 0


_asked = msgspec.json.Decoder(_Asked).decode


class _Connection(asyncio.Protocol):
    """One connection, one request at a time; a stream is a chain of timers, and no task."""

    _transport: asyncio.Transport

    def __init__(
        self, pace: str, token_s: float, spans: defaultdict[int, list[tuple[float, float]]]
    ) -> None:
        """`spans`: of the calls, by the number of their question."""
        self._pace = pace
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
        self._begun, body = time.perf_counter(), b"".join(self._body)
        if not body:  # LiteLLM looks what there is
            self._transport.write(_NOTHING)
            return
        self._number = int(number[1]) if (number := _NUMBER.search(body)) else -1
        asked = _asked(body)
        reply = Reply([" word"] * asked.max_tokens) if self._pace == "tokens" else at_once(asked)
        read = sum(len(text.split()) for text in asked.texts)
        if not asked.stream:
            text = whole(reply, read)
            self._last(_WHOLE % (len(text), text))
            return
        self._transport.write(_STREAM)
        first, *others, end = (
            b"%x\r\n%b\r\n" % (len(event), event) for _, event in events(reply, read)
        )
        if self._pace == "at-once":
            self._transport.write(first)
            self._loop.call_soon(self._last, b"".join((*others, end, _END)))
            return
        self._pieces = deque((first, *others, end + _END))
        self._after(_FIRST, self._loop.time())

    def _after(self, tokens: float, last: float) -> None:
        due = last + tokens * self._token_s
        self._loop.call_at(due, self._next, due)

    def _next(self, due: float) -> None:
        """Write the token that is due, and the end at once after the last."""
        self._transport.write(self._pieces.popleft())
        if len(self._pieces) == 1 or self._transport.is_closing():
            self._last(self._pieces[-1])
        else:
            self._after(random.uniform(0.5, 1.5) if self._pace == "tokens" else 1.0, due)

    def _last(self, piece: bytes) -> None:
        self._transport.write(piece)
        self._spans[self._number].append((self._begun, time.perf_counter()))


async def _play(pace: str, token_s: str) -> None:
    spans = defaultdict[int, list[tuple[float, float]]](list)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: _Connection(pace, float(token_s), spans), "127.0.0.1", 0, backlog=4096
    )
    tune_interpreter()
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(
            msgspec.json.encode(
                {number: together_s(each) for number, each in spans.items()}
            ).decode(),
            flush=True,
        )
        spans.clear()


if __name__ == "__main__":
    uvloop.run(_play(*sys.argv[1:]))
