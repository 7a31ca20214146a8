"""Timeouts of one upstream call."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from router.errors import UpstreamUnavailable
from router.models import Delta, Model


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Times that a call may take until its first token, and in all; seconds."""

    first_token_s: float = 60.0
    """A reply that is not streamed has to be there by then."""
    call_s: float = 300.0

    @asynccontextmanager
    async def of(self, model: Model) -> AsyncIterator[Callable[[Delta], None]]:
        """Give up what happens inside where it takes too long. Yields a function that is to get each piece of the
        output, as the first text gives the call its whole time. Raises `UpstreamUnavailable`.
        """
        began, wrote = asyncio.get_running_loop().time(), False
        first_s = min(self.first_token_s, self.call_s)

        def on_delta(delta: Delta) -> None:
            nonlocal wrote
            if not wrote and (delta.text or delta.reasoning):
                wrote = True
                timeout.reschedule(began + self.call_s)

        try:
            async with asyncio.timeout_at(began + first_s) as timeout:
                yield on_delta
        except TimeoutError as error:
            said = f"not at its end within {self.call_s:g} s" if wrote else f"no token within {first_s:g} s"
            said = f"model {model.name!r}: {said}"
            raise UpstreamUnavailable(said, endpoint=model.endpoint, repeatable=False) from error
