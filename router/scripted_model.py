"""A model that says what it is told to: the shipped double of `Model` for tests and examples."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from router.errors import UpstreamError
from router.model import Completion, Delta, Prompt, Usage, end_at_stop

Answer = Completion | UpstreamError | str


class ScriptedModel:
    """Gives its answers in order, or by a function of the prompt; an error among them is raised."""

    def __init__(self, answers: Iterable[Answer] | Callable[[Prompt], Answer], name: str = "scripted") -> None:
        self._answer = answers if callable(answers) else None
        self._queue = iter(()) if callable(answers) else iter(answers)
        self.name = name
        self.endpoint = f"scripted://{name}"
        self.prompts: list[Prompt] = []
        """Every prompt that was sent, in order."""

    async def complete(self, prompt: Prompt) -> Completion:
        """The next answer."""
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
        """Its tokens are words."""
        return Usage(sum(len(message.content.split()) for message in prompt.messages), len(text.split()))

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Delta]]:
        """The next answer, word by word."""
        completion = await self.complete(prompt)

        async def pieces() -> AsyncIterator[Delta]:
            if completion.reasoning:
                yield Delta(reasoning=completion.reasoning)
            for word in re.findall(r"\s*\S+|\s+", completion.text):
                yield Delta(text=word)
            yield Delta(finish_reason=completion.finish_reason, usage=completion.usage, overran=completion.overran)

        yield pieces()
