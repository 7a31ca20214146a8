"""Streams of models, read to their end."""

import asyncio
from collections.abc import Sequence

from router.models import Completion, Delta, Model, Prompt


async def streamed(model: Model, prompt: Prompt) -> list[Delta]:
    """Every piece, within ten seconds."""
    async with asyncio.timeout(10), model.stream(prompt) as deltas:
        return [delta async for delta in deltas]


def joined(deltas: Sequence[Delta]) -> Completion:
    """The output that pieces amount to."""
    last = deltas[-1]
    text, reasoning = ("".join(texts) for texts in zip(*((d.text, d.reasoning) for d in deltas), strict=True))
    return Completion(text, last.finish_reason or "", reasoning, last.usage, last.overran)
