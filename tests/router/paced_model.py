"""A model whose stream comes piece by piece, at the pace of a test."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from router.errors import UpstreamError
from router.models import Completion, Delta, OnDelta, Prompt, Usage
from router.models.streaming import StopCut

Piece = str | UpstreamError | Callable[[], Awaitable[object]]


class PacedModel:
    """A model that writes its outputs in order.

    Of their pieces, texts are written, errors are raised, and all others are awaited.
    """

    def __init__(self, *outputs: Sequence[Piece], name: str = "paced") -> None:
        self.name = name
        self.endpoint = f"paced://{name}"
        self._outputs = iter(outputs)
        self.prompts: list[Prompt] = []
        """Every prompt that was sent, in order."""

    async def complete(self, prompt: Prompt) -> Completion:
        """Fail, as this model only streams."""
        raise AssertionError("this model is to be streamed")

    async def count(self, prompt: Prompt, text: str) -> Usage:
        """Count words as tokens."""
        return Usage(
            sum(len(message.content.split()) for message in prompt.messages), len(text.split())
        )

    async def stream(self, prompt: Prompt, on_delta: OnDelta, *, live: bool = True) -> Completion:
        """Stream the next output up to a stop string."""
        self.prompts.append(prompt)
        cut = StopCut(prompt.stop)
        written = ""
        for piece in next(self._outputs):
            if isinstance(piece, UpstreamError):
                raise piece
            if callable(piece):
                await piece()
                continue
            await asyncio.sleep(0)
            text = cut.feed(piece)
            written += text
            on_delta(Delta(text))
            if cut.met:
                break
        text, reason = cut.end("stop", None)
        usage = await self.count(prompt, written)
        on_delta(Delta(text, usage=usage))
        return Completion(written + text, reason, usage=usage)
