"""What a gateway of several processes and its workers tell each other: a line of JSON each."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec

from router.calls.health import Need
from serving.config import Config

_LONGEST_LINE = 16 << 20


class Order(msgspec.Struct, frozen=True, tag=True):
    """The first line to a worker: what it is to serve."""

    config: Config
    address: str
    http: str | None
    engines: dict[str, str]
    """Base URLs by name."""


class Down(msgspec.Struct, frozen=True, tag=True):
    """To a worker: all that is down by now; by source, what depends on it and why."""

    sources: dict[str, tuple[list[Need], str]]


class Step(msgspec.Struct, frozen=True, tag=True):
    """From a worker: something that people may want to know."""

    said: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it serves."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it cannot serve."""

    why: str


Line = Order | Down | Step | Ready | Failed
_decoder = msgspec.json.Decoder(Line)


class Wire:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, connected: socket.socket) -> "Wire":
        """Over one end of a pair of sockets, which is its own from now on."""
        return cls(*await asyncio.open_connection(sock=connected, limit=_LONGEST_LINE))

    def tell(self, line: Line) -> None:
        """Send a line, if anybody is there."""
        self._writer.write(msgspec.json.encode(line) + b"\n")

    async def __aiter__(self) -> AsyncIterator[Line]:
        """What is told, until the other side is gone."""
        with suppress(ConnectionError):
            async for line in self._reader:
                yield _decoder.decode(line)

    async def close(self) -> None:
        """Hang up, once everything is sent."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()
