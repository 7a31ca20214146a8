"""A scripted double of `Model`."""

import asyncio
import re
from collections.abc import Callable, Iterable

from router.errors import UpstreamError
from router.models import Completion, Delta, OnDelta, Prompt, Usage
from router.models.model import end_at_stop

Answer = Completion | UpstreamError | str


class ScriptedModel:
    """Test double of `Model`. `answers` holds its outputs in order, or is a function that returns
    the output for a prompt. An `UpstreamError` among the outputs is raised instead of returned.
    """

    def __init__(
        self, answers: Iterable[Answer] | Callable[[Prompt], Answer], name: str = "scripted"
    ) -> None:
        self._answer = answers if callable(answers) else None
        self._queue = iter(()) if callable(answers) else iter(answers)
        self.name = name
        self.endpoint = f"scripted://{name}"
        self.prompts: list[Prompt] = []
        """All prompts that were sent, in order."""

    async def complete(self, prompt: Prompt) -> Completion:
        """Return the next scripted output."""
        await asyncio.sleep(0)
        self.prompts.append(prompt)
        answer = self._answer(prompt) if self._answer else next(self._queue)
        if isinstance(answer, UpstreamError):
            raise answer
        if isinstance(answer, Completion):
            return answer
        text, finish_reason = end_at_stop(answer, prompt.stop, "stop", None)
        return Completion(text, finish_reason, usage=await self.count(prompt, text))

    async def count(self, prompt: Prompt, text: str) -> Usage:
        """Count each word as one token."""
        read = sum(len(message.content.split()) for message in prompt.messages)
        return Usage(read, len(text.split()))

    async def stream(
        self,
        prompt: Prompt,
        on_delta: OnDelta,
        *,
        live: bool = True,
    ) -> Completion:
        """Return the next scripted output, and pass it to `on_delta` word by word."""
        completion = await self.complete(prompt)
        if completion.reasoning:
            on_delta(Delta(reasoning=completion.reasoning))
        for word in re.findall(r"\s*\S+|\s+", completion.text):
            on_delta(Delta(word))
        on_delta(Delta(usage=completion.usage))
        return completion
