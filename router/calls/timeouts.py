"""How long a call may take."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass

from router.errors import UpstreamUnavailable
from router.models.model import Completion, Delta, Model, Prompt, gather
from router.models.streaming import whole_within, within


@dataclass(frozen=True, slots=True)
class Patience:
    """Calls a model, and gives it up where it takes too long, or ends its output where it writes too much. Raises
    `UpstreamUnavailable` in the first case, and what the model raises.
    """

    first_token_s: float = 60.0
    """Until its first token; a reply that is not streamed has to be there by then."""
    call_s: float = 300.0

    async def complete(self, model: Model, prompt: Prompt) -> Completion:
        """As `model.complete`."""
        try:
            async with asyncio.timeout_at(self._first_at()):
                return whole_within(await model.complete(prompt), prompt.sampling.max_tokens)
        except TimeoutError as error:
            raise self._given_up(model, spoke=False) from error

    async def gather(self, model: Model, prompt: Prompt, take: Callable[[Delta], None]) -> Completion:
        """The whole output of a stream; `take` hears of every piece."""
        last_at, spoke = asyncio.get_running_loop().time() + self.call_s, False

        def hear(delta: Delta) -> None:
            nonlocal spoke
            if not spoke and (delta.text or delta.reasoning):
                spoke = True
                clock.reschedule(last_at)
            take(delta)

        try:
            async with asyncio.timeout_at(self._first_at()) as clock, model.stream(prompt) as deltas:
                return await gather(within(deltas, prompt.sampling.max_tokens), hear)
        except TimeoutError as error:
            raise self._given_up(model, spoke=spoke) from error

    @asynccontextmanager
    async def stream(self, model: Model, prompt: Prompt) -> AsyncIterator[AsyncIterator[Delta]]:
        """As `model.stream`."""
        first_at, last_at = self._first_at(), asyncio.get_running_loop().time() + self.call_s
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout_at(first_at):
                    deltas = await stack.enter_async_context(model.stream(prompt))
            except TimeoutError as error:
                raise self._given_up(model, spoke=False) from error
            deltas = within(deltas, prompt.sampling.max_tokens)
            yield await stack.enter_async_context(aclosing(self._timed(model, deltas, first_at, last_at)))

    async def _timed(
        self, model: Model, deltas: AsyncIterator[Delta], first_at: float, last_at: float
    ) -> AsyncGenerator[Delta, None]:
        # A clock for each piece: none may run out in the reader's code.
        until, spoke = first_at, False
        while True:
            try:
                async with asyncio.timeout_at(until):
                    delta = await anext(deltas, None)
            except TimeoutError as error:
                raise self._given_up(model, spoke=spoke) from error
            if delta is None:
                return
            if delta.text or delta.reasoning:
                until, spoke = last_at, True
            yield delta

    def _first_at(self) -> float:
        return asyncio.get_running_loop().time() + min(self.first_token_s, self.call_s)

    def _given_up(self, model: Model, *, spoke: bool) -> UpstreamUnavailable:
        said = f"not at its end within {self.call_s:g} s" if spoke else f"no token within {self.first_token_s:g} s"
        return UpstreamUnavailable(f"model {model.name!r}: {said}", endpoint=model.endpoint, repeatable=False)
