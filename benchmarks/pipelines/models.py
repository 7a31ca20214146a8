"""Models that are played in a process of their own, with next to no work: `python -m benchmarks.pipelines.models PACE
TOKEN_S`, which is the seconds from one token to the next; the first comes after five times as long.

paced    writes the turns of a question (`benchmarks.gateway.canned`), a token at a time
at-once  writes the same in two pieces, as fast as it can
tokens   writes long streams, a token at a time, at an uneven pace

It prints its base URL. For each line of its standard input it prints, by the number of the question that calls tell of,
the seconds in which at least one of them was being worked on since the last line. It goes on until its standard input
ends.
"""

import asyncio
import random
import re
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Literal, cast

import httptools
import msgspec
import uvloop

from benchmarks.gateway import at_once
from router.testing.openai_server import ChatRequest, Reply, events, whole
from serving.signals import collect_seldom

Pace = Literal["paced", "at-once", "tokens"]
_FIRST = 5
_SPREAD = 0.5
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
_END = b"0\r\n\r\n"
_NUMBER = re.compile(rb"film number (\d+)")


@dataclass(slots=True)
class Busy:
    """Time in which at least one of some calls was being worked on."""

    seconds: float = 0.0
    _open: int = 0
    _since: float = 0.0

    def begin(self) -> None:
        """A call begins."""
        if not self._open:
            self._since = time.perf_counter()
        self._open += 1

    def end(self) -> None:
        """A call ends."""
        self._open -= 1
        if not self._open:
            self.seconds += time.perf_counter() - self._since


class _Asked(ChatRequest, frozen=True):
    max_tokens: int = 0


_asked = msgspec.json.Decoder(_Asked).decode


class _Connection(asyncio.Protocol):
    """One connection, one request at a time; a stream is a chain of timers, and no task."""

    _transport: asyncio.Transport

    def __init__(self, pace: str, token_s: float, busy: dict[int, Busy]) -> None:
        self._pace, self._token_s, self._busy = pace, token_s, busy
        self._parser, self._body = httptools.HttpRequestParser(self), list[bytes]()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body = []

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        number = _NUMBER.search(body)
        busy = self._busy.setdefault(int(number[1]) if number else -1, Busy())
        busy.begin()
        asked = _asked(body)
        reply = Reply([" word"] * asked.max_tokens) if self._pace == "tokens" else at_once(asked)
        read = sum(len(text.split()) for text in asked.texts)
        if not asked.stream:
            text = whole(reply, read)
            self._transport.write(_WHOLE % (len(text), text))
            busy.end()
            return
        self._transport.write(_STREAM)
        *tokens, end = (b"%x\r\n%b\r\n" % (len(event), event) for event in events(reply, read))
        if self._pace == "at-once":
            self._transport.write(tokens[0])
            asyncio.get_running_loop().call_soon(self._last, b"".join((*tokens[1:], end)), busy)
        else:
            self._after(_FIRST * self._token_s, asyncio.get_running_loop().time(), deque((*tokens, end)), busy)

    def _after(self, wait_s: float, last: float, pieces: deque[bytes], busy: Busy) -> None:
        due = last + wait_s
        asyncio.get_running_loop().call_at(due, self._next, due, pieces, busy)

    def _next(self, due: float, pieces: deque[bytes], busy: Busy) -> None:
        """Write the token that is due, and the end at once after the last."""
        self._transport.write(pieces.popleft())
        if len(pieces) == 1 or self._transport.is_closing():
            self._last(pieces[0], busy)
            return
        spread = random.uniform(1 - _SPREAD, 1 + _SPREAD) if self._pace == "tokens" else 1.0
        self._after(spread * self._token_s, due, pieces, busy)

    def _last(self, piece: bytes, busy: Busy) -> None:
        self._transport.write(piece + _END)
        busy.end()


async def _play(pace: str, token_s: str) -> None:
    busy: dict[int, Busy] = {}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(pace, float(token_s), busy), "127.0.0.1", 0, backlog=4096)
    collect_seldom()
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(msgspec.json.encode({number: each.seconds for number, each in busy.items()}).decode(), flush=True)
        busy.clear()


if __name__ == "__main__":
    uvloop.run(_play(*sys.argv[1:]))
