"""Timeouts of one upstream call."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass

from router.errors import UpstreamUnavailable
from router.models.model import Delta, Model, Prompt
from router.models.streaming import within


class Clock:
    """The time that one call has left: little for its first token, more once it writes."""

    def __init__(self, timeout: asyncio.Timeout, ends_at: float) -> None:
        """`ends_at`: when the whole call is due, in the event loop's time."""
        self._timeout, self._ends_at = timeout, ends_at
        self.wrote = False

    def heard(self, delta: Delta) -> None:
        """Give the call its whole time once it has written something."""
        if not self.wrote and (delta.text or delta.reasoning):
            self.wrote = True
            self._timeout.reschedule(self._ends_at)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a call may take until its first token, and in all; seconds."""

    first_token_s: float = 60.0
    """A reply that is not streamed has to be there by then."""
    call_s: float = 300.0

    @asynccontextmanager
    async def of(self, model: Model) -> AsyncIterator[Clock]:
        """Give up what happens inside where it takes too long. Raises `UpstreamUnavailable`."""
        now = asyncio.get_running_loop().time()
        clock: Clock | None = None
        try:
            async with asyncio.timeout_at(now + min(self.first_token_s, self.call_s)) as timeout:
                clock = Clock(timeout, now + self.call_s)
                yield clock
        except TimeoutError as error:
            raise self._too_late(model, wrote=clock is not None and clock.wrote) from error

    @asynccontextmanager
    async def stream(self, model: Model, prompt: Prompt) -> AsyncIterator[AsyncIterator[Delta]]:
        """Open a stream whose pieces each have to come in time; the time that their reader takes does not count.

        Raises `UpstreamUnavailable`, and what the model raises.
        """
        now = asyncio.get_running_loop().time()
        first_at = now + min(self.first_token_s, self.call_s)
        async with AsyncExitStack() as stack:
            with self._translated(model, wrote=False):
                async with asyncio.timeout_at(first_at):
                    deltas = await stack.enter_async_context(model.stream(prompt))
            timed = self._timed(model, within(deltas, prompt.sampling.max_tokens), first_at, now + self.call_s)
            yield await stack.enter_async_context(aclosing(timed))

    async def _timed(
        self, model: Model, deltas: AsyncIterator[Delta], first_at: float, ends_at: float
    ) -> AsyncGenerator[Delta, None]:
        until, wrote = first_at, False
        while True:
            with self._translated(model, wrote=wrote):
                async with asyncio.timeout_at(until):
                    delta = await anext(deltas, None)
            if delta is None:
                return
            if delta.text or delta.reasoning:
                until, wrote = ends_at, True
            yield delta

    @contextmanager
    def _translated(self, model: Model, *, wrote: bool) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise self._too_late(model, wrote=wrote) from error

    def _too_late(self, model: Model, *, wrote: bool) -> UpstreamUnavailable:
        said = f"not at its end within {self.call_s:g} s" if wrote else f"no token within {self.first_token_s:g} s"
        return UpstreamUnavailable(f"model {model.name!r}: {said}", endpoint=model.endpoint, repeatable=False)
