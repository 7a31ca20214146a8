"""A role: a model with its prompt, its sampling and its patience."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import msgspec

from router import prompts
from router.errors import UpstreamError, UpstreamUnavailable
from router.ledger import Attempt, Caller, Ledger, Purpose, RoleName
from router.model import Completion, Delta, Message, Model, Prompt, Sampling

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 8.0
_LONGEST_WAIT_S = 30.0
"""The longest pause that an endpoint may ask for; a caller that is told of a longer one in time can go elsewhere."""


@dataclass(frozen=True, slots=True)
class Role:
    """Calls its model, tries again what is worth it, and books every attempt."""

    name: RoleName
    model: Model
    system: str
    """The system prompt."""
    sampling: Sampling
    attempts: int = 3
    """How often one call is tried while its endpoint is unavailable."""
    system_role: bool = True
    """False: what the system says is sent at the head of the user's turn. Traces keep the conversation as it is here;
    `prompts.without_system_role` gives what was sent."""
    context_tokens: int | None = None
    """What the model reads and writes at most; None where only its endpoint knows."""

    def opening(self, text: str) -> tuple[Message, ...]:
        """A fresh conversation whose first user turn is `text`."""
        return (Message("system", self.system), Message("user", text))

    async def ask(
        self,
        messages: tuple[Message, ...],
        stop: tuple[str, ...],
        ledger: Ledger,
        *,
        purpose: Purpose = "first",
        sub_query: int | None = None,
    ) -> Completion:
        """The model's next turn. Raises `UpstreamError`, naming this role, once it is not worth another attempt."""
        prompt = self._prompt(messages, stop)
        for number in range(1, self.attempts + 1):
            why: Purpose = purpose if number == 1 else "retry"
            try:
                with self._attempt(ledger, why, number, sub_query) as attempt:
                    completion = await self.model.complete(prompt)
                    attempt.usage = completion.usage
                    return completion
            except UpstreamError as error:
                error.role = self.name
                if not isinstance(error, UpstreamUnavailable) or number == self.attempts:
                    raise
                if (error.retry_after_s or 0.0) > _LONGEST_WAIT_S:
                    raise
                pause = random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (number - 1)))
                await asyncio.sleep(pause if error.retry_after_s is None else error.retry_after_s)
        raise AssertionError("the last attempt returns or raises")

    async def stream(
        self, messages: tuple[Message, ...], stop: tuple[str, ...], ledger: Ledger
    ) -> AsyncGenerator[Delta, None]:
        """The model's next turn as it is written; one attempt, booked also when the reader leaves early."""
        prompt = self._prompt(messages, stop)
        try:
            with self._attempt(ledger) as attempt:
                async with self.model.stream(prompt) as deltas:
                    async for delta in deltas:
                        attempt.usage = delta.usage or attempt.usage
                        yield delta
        except UpstreamError as error:
            error.role = self.name
            raise

    def limited(self, max_tokens: int) -> "Role":
        """The same role, writing at most `max_tokens` tokens, but never more than its own limit; 0 keeps that."""
        if not max_tokens:
            return self
        fewer = min(max_tokens, self.sampling.max_tokens)
        return replace(self, sampling=msgspec.structs.replace(self.sampling, max_tokens=fewer))

    def _prompt(self, messages: tuple[Message, ...], stop: tuple[str, ...]) -> Prompt:
        return Prompt(messages if self.system_role else prompts.without_system_role(messages), self.sampling, stop)

    def _attempt(
        self, ledger: Ledger, purpose: Purpose = "first", number: int = 1, sub_query: int | None = None
    ) -> AbstractContextManager[Attempt]:
        caller = Caller(self.name, self.model.name, self.model.endpoint, sub_query)
        return ledger.attempt(caller, purpose, number)
