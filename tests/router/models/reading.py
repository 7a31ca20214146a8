"""Readers of streams, to their end or for a single piece."""

import asyncio

from router.models import Completion, Delta, Model, Prompt


async def streamed(model: Model, prompt: Prompt) -> Completion:
    """Return the whole output within ten seconds, and check that its deltas add up to it."""
    deltas = list[Delta]()
    async with asyncio.timeout(10):
        completion = await model.stream(prompt, deltas.append)
    assert completion.text == "".join(delta.text for delta in deltas)
    assert completion.reasoning == "".join(delta.reasoning for delta in deltas)
    assert [delta.usage for delta in deltas if delta.usage] == (
        [completion.usage] if completion.usage else []
    )
    return completion


async def left(model: Model, prompt: Prompt) -> list[Delta]:
    """Return the deltas of a stream that is left after its first delta."""
    deltas = list[Delta]()
    first_delta = asyncio.Event()

    def on_delta(delta: Delta) -> None:
        deltas.append(delta)
        first_delta.set()

    async with asyncio.timeout(10):
        stream = asyncio.create_task(model.stream(prompt, on_delta))
        await first_delta.wait()
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
    return deltas
