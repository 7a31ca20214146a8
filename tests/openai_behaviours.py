"""Events and replies of any content, for the model server of tests."""

import asyncio
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from tests.openai_server import Behaviour, OpenAIServer, chunk_of, event


def replies(
    body: bytes,
    content_type: str = "application/json",
    status: int = 200,
    headers: Mapping[str, str] = {},
) -> Behaviour:
    """Return a behaviour that sends these bytes as the body of the response."""

    async def play(_request: web.Request) -> web.StreamResponse:
        return web.Response(
            body=body,
            content_type=content_type,
            status=status,
            headers=headers,
        )

    return play


def text_event(text: str, usage: dict[str, Any] | None = None) -> bytes:
    """Return the event for a piece of text. `usage`: the usage so far; None to leave it out."""
    chunk = chunk_of({"delta": {"content": text}})
    return event({**chunk, "usage": usage} if usage else chunk)


def end_event(finish_reason: str = "stop", stop_reason: str | int | None = None) -> bytes:
    """Return the event that carries the finish reason."""
    return event(
        chunk_of({"delta": {}, "finish_reason": finish_reason, "stop_reason": stop_reason})
    )


async def disconnects(server: OpenAIServer) -> None:
    """Wait until a client disconnects before its answer is complete. Raises `TimeoutError` after 10
    seconds.
    """
    async with asyncio.timeout(10):
        await server.disconnected.wait()
