"""Streams of models, read to their end or left early."""

import asyncio

from router.models import Completion, Delta, Model, Prompt


async def streamed(model: Model, prompt: Prompt) -> Completion:
    """The whole output, within ten seconds; its pieces amount to it."""
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
    """The pieces of a stream that is left as soon as there is one."""
    deltas = list[Delta]()
    begun = asyncio.Event()

    def on_delta(delta: Delta) -> None:
        deltas.append(delta)
        begun.set()

    async with asyncio.timeout(10):
        reading = asyncio.create_task(model.stream(prompt, on_delta))
        await begun.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    return deltas
