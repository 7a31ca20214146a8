"""A role: a model with its prompt, its sampling and its patience."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from router import prompts
from router.amount import NOTHING, Amount
from router.call import Purpose, RoleName
from router.errors import BudgetExhausted, UpstreamError, UpstreamUnavailable
from router.ledger import Attempt, Caller, Ledger
from router.model import Completion, Delta, Message, Model, Prompt, Sampling, gather
from router.price import Price
from router.prompt_bound import prompt_bound

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
    deployment: str = ""
    """Where the model is served, as the ledger names it; empty for its endpoint."""
    executor_version: str | None = None
    price: Price | None = None
    """None where it is not known, which is not zero."""
    streams: bool = True
    """Whether its calls are streamed, so that a cut one tells what it spent; False for models whose streams are not
    what a whole reply would be."""

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
        """The model's next turn. Raises `BudgetExhausted`, and `UpstreamError`, naming this role, once it is not worth
        another attempt.
        """
        prompt = self._prompt(messages, stop)
        for number in range(1, self.attempts + 1):
            why: Purpose = purpose if number == 1 else "retry"
            try:
                async with self._attempt(prompt, ledger, why, number, sub_query) as (attempt, named):
                    return await self._output(named, attempt)
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
        try:
            async with (
                self._attempt(self._prompt(messages, stop), ledger) as (attempt, prompt),
                self.model.stream(prompt) as deltas,
            ):
                async for delta in deltas:
                    attempt.take(delta)
                    yield delta
        except UpstreamError as error:
            error.role = self.name
            raise

    async def hold(self, messages: tuple[Message, ...], coming_tokens: int, ledger: Ledger) -> None:
        """Keep back what asking with `messages`, and `coming_tokens` more, may cost: by the model's own count, as it is
        kept for long, or else by bytes. Raises `BudgetExhausted` and `StoreFailed`.
        """
        prompt = self._prompt(messages, ())
        usage = await self.model.count(prompt, "")
        prompt_tokens = prompt_bound(prompt.messages) if usage is None else usage.prompt_tokens
        await ledger.hold(self._worst(prompt_tokens + coming_tokens))

    def limited(self, max_tokens: int) -> "Role":
        """The same role, writing at most `max_tokens` tokens, but never more than its own limit; 0 keeps that."""
        if not max_tokens:
            return self
        fewer = min(max_tokens, self.sampling.max_tokens)
        return replace(self, sampling=msgspec.structs.replace(self.sampling, max_tokens=fewer))

    def _prompt(self, messages: tuple[Message, ...], stop: tuple[str, ...]) -> Prompt:
        return Prompt(messages if self.system_role else prompts.without_system_role(messages), self.sampling, stop)

    async def _output(self, prompt: Prompt, attempt: Attempt) -> Completion:
        if self.streams:
            async with self.model.stream(prompt) as deltas:
                return await gather(deltas, attempt.take)
        completion = await self.model.complete(prompt)
        attempt.usage = completion.usage
        return completion

    @asynccontextmanager
    async def _attempt(
        self,
        prompt: Prompt,
        ledger: Ledger,
        purpose: Purpose = "first",
        number: int = 1,
        sub_query: int | None = None,
    ) -> AsyncIterator[tuple[Attempt, Prompt]]:
        """An attempt, and the prompt under its name. Its worst case is that of the prompt's bytes or, where that does
        not fit, of its tokens.
        """
        bound = prompt_bound(prompt.messages)
        caller = Caller(
            self.name,
            self.model.name,
            self.deployment or self.model.endpoint,
            sub_query,
            self.sampling.max_tokens,
            self.executor_version,
            self.price,
            self._in_context(bound),
        )
        async with AsyncExitStack() as stack:

            async def enter(worst: Amount, *, patient: bool) -> Attempt:
                booked = ledger.attempt(caller, purpose, number, worst, patient=patient)
                return await stack.enter_async_context(booked)

            try:
                attempt = await enter(self._worst(bound) if ledger.limited else NOTHING, patient=False)
            except BudgetExhausted:
                usage = await self.model.count(prompt, "")
                exact = bound if usage is None else usage.prompt_tokens
                attempt = await enter(self._worst(exact), patient=True)
            attempt.count = partial(self.model.count, prompt)
            yield attempt, msgspec.structs.replace(prompt, request_id=attempt.request_id)

    def _worst(self, prompt_tokens: int) -> Amount:
        prompt_tokens, max_tokens = self._in_context(prompt_tokens), self.sampling.max_tokens
        nano_usd = self.price.most(prompt_tokens, max_tokens) if self.price else None
        return Amount(self._in_context(prompt_tokens + max_tokens), nano_usd)

    def _in_context(self, tokens: int) -> int:
        return tokens if self.context_tokens is None else min(tokens, self.context_tokens)
