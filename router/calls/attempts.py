"""Attempts of a call: choice of the replica, retries, timeouts, and a ledger row for each.

Every attempt reserves its worst case first. The bound by the prompt's bytes is free; if the budget
is too small for it, the tokens are counted, and if that is still too much, the output limit is
lowered. After a failure, another replica is tried immediately, or the same one after growing
pauses, within the number of attempts, the deadline and the role's retry budget.
"""

import asyncio
import math
import random
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TypeVar

import msgspec

from router.amount import NOTHING, Amount
from router.calls.limits import MESSAGE_TOKENS, PromptCounts, RoleHealth
from router.calls.replicas import Replica, choose, chosen
from router.calls.timeouts import Timeouts
from router.errors import (
    BudgetExhausted,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.ledger import Ledger
from router.ledger.ledger import Attempt, Caller
from router.models import Completion, Delta, Model, Prompt
from router.trace.call import Purpose

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 8.0
_LONGEST_WAIT_S = 30.0
"""Longest Retry-After that is honoured; beyond it the call fails immediately."""
_MIN_TOKENS = 64
_MIN_SHARE = 4
"""A call is not made if the budget leaves fewer output tokens than 64, or than a quarter of the
role's limit if that is more.
"""
BYTES_PER_TOKEN = 4
"""Typical size of a token; good enough to compare replicas."""
_PROBE_S = 5.0
"""Timeout of a probe's first token, if there are other replicas."""
OnText = Callable[[], Callable[[str], None]]
"""Called for each attempt; returns the callback for the pieces of its text."""
T = TypeVar("T")


@dataclass(slots=True)
class Attempts:
    """Attempts to complete one prompt, one after the other. Each is booked."""

    prompt: Prompt
    ledger: Ledger
    caller: Caller
    """Caller with the deployment of the first replica."""
    purpose: Purpose
    """Purpose of the first attempt."""
    replicas: tuple[Replica, ...]
    timeouts: Timeouts
    health: RoleHealth
    worst: Callable[[int, int], Amount]
    """Returns the worst case of an attempt, given the tokens of its prompt and its output limit."""
    streams: bool
    max_attempts: int
    """Max number of attempts."""
    until: float = math.inf
    """Deadline of the call, in the event loop's time."""
    on_text: OnText | None = None
    """See `OnText`; only for streamed attempts."""
    on_delta: Callable[[Delta], None] | None = None
    """Called with the output as it arrives. After the first token, no other attempt is made."""
    _made: int = field(default=0, init=False)
    _unstopped: bool = field(default=False, init=False)
    """True if this prompt is sent without stop strings."""
    _failed: set[str] = field(default_factory=set, init=False)
    """Deployments that failed."""

    async def completion(self) -> Completion:
        """Return the output of the first attempt that succeeds. Raises `BudgetExhausted`, and the
        `UpstreamError` of the last attempt.
        """
        self.health.retries.called()
        for number in count(1):
            try:
                if output := await self._once():
                    return output
                pause_s: float | None = 0.0
            except UpstreamRefused as error:
                # A refusal for a wrong key or model name adds no load, so no retry is spent.
                if (
                    error.passed_on
                    or number >= self.max_attempts
                    or not error.lasting
                    or not self._elsewhere()
                ):
                    raise
                pause_s = 0.0
            except (UpstreamUnavailable, UpstreamProtocolError) as error:
                pause_s = 0.0 if self._elsewhere() else _pause_s(error, number)
                late = pause_s is None or asyncio.get_running_loop().time() + pause_s > self.until
                if (
                    error.passed_on
                    or number >= self.max_attempts
                    or late
                    or not self.health.retries.spend()
                ):
                    raise
            await asyncio.sleep(pause_s or 0.0)
        raise AssertionError("the last attempt returns or raises")

    def _elsewhere(self) -> bool:
        """Return whether a replica is left that works and has not failed yet."""
        return any(
            replica.deployment not in self._failed and not replica.endpoint.breaker.wait_s
            for replica in self.replicas
        )

    async def _once(self) -> Completion | None:
        """Return the output of one attempt; None if a stop string ended its reasoning, so that it
        has to be repeated without them. If that gives text, the endpoint gets no more of them.
        """
        async with self.health:
            replica = await self._chosen()
            bound = self.caller.prompt_bound
            max_tokens = self.caller.max_tokens
            self._made += 1
            try:
                try:
                    worst = self.worst(bound, max_tokens) if self.ledger.limited else NOTHING
                    completion = await self._booked(
                        replica,
                        bound,
                        max_tokens,
                        worst,
                        waits=False,
                    )
                except BudgetExhausted:
                    tokens = await prompt_tokens(replica.model, self.prompt, self.health.counts)
                    call = partial(self._booked, replica, tokens)
                    worst_of = partial(self.worst, tokens)
                    completion = await affordable(call, worst_of, max_tokens)
            except UpstreamError as error:
                works = isinstance(error, UpstreamRefused) and not error.lasting
                (self.health.succeeded if works else self.health.failed)()
                self._failed.add(replica.deployment)
                raise

            self.health.succeeded()
            known = replica.endpoint.unstopped or self._unstopped
            if self.prompt.stop and not known and completion.stopped_thinking:
                self._unstopped = True
                return None

            # Only text without stop strings proves that they were the problem.
            if self._unstopped and completion.text.strip():
                replica.endpoint.unstopped = True
            return completion

    async def _booked(
        self,
        replica: Replica,
        prompt_tokens: int,
        max_tokens: int,
        worst: Amount,
        *,
        waits: bool,
    ) -> Completion:
        """Make a call that is booked in the ledger."""
        timeouts = self.timeouts
        attempt: Attempt | None = None
        if len(self.replicas) > 1 and replica.endpoint.breaker.state != "closed":
            timeouts = replace(timeouts, first_token_s=min(timeouts.first_token_s, _PROBE_S))
        caller = replace(
            self.caller,
            deployment=replica.deployment,
            prompt_bound=prompt_tokens,
            max_tokens=max_tokens,
        )
        purpose: Purpose = "retry" if self._made > 1 else self.purpose
        outstanding = self.caller.prompt_bound // BYTES_PER_TOKEN + self.prompt.sampling.max_tokens
        with replica.endpoint.calling(outstanding, lambda: _silent(attempt, timeouts)) as spoke:
            async with self.ledger.attempt(
                caller,
                purpose,
                self._made,
                worst,
                waits=waits,
            ) as attempt:
                attempt.spoke = spoke
                attempt.count = partial(replica.model.count, self.prompt)
                try:
                    return await self._call(replica, attempt, timeouts)
                except UpstreamError as error:
                    error.passed_on = (
                        self.on_delta is not None and attempt.first_token_s is not None
                    )
                    raise

    async def _call(self, replica: Replica, attempt: Attempt, timeouts: Timeouts) -> Completion:
        """Call the model. One timer runs: until the first token, and then until the end."""
        model = replica.model
        sampling = msgspec.structs.replace(
            self.prompt.sampling, max_tokens=attempt.opened.max_tokens
        )
        prompt = msgspec.structs.replace(
            self.prompt,
            sampling=sampling,
            request_id=attempt.request_id,
            unstopped=replica.endpoint.unstopped or self._unstopped,
        )
        on_text = self.on_text() if self.on_text and self.streams else None
        on_delta = self.on_delta
        began = asyncio.get_running_loop().time()

        def take(delta: Delta) -> None:
            wrote = bool(delta.text or delta.reasoning)
            if wrote and attempt.first_token_s is None:
                timer.reschedule(began + timeouts.call_s)
            attempt.take(delta)
            if on_text:
                on_text(delta.text)
            if on_delta and wrote:
                on_delta(delta)

        try:
            async with asyncio.timeout_at(began + timeouts.silent_s) as timer:
                if self.streams:
                    completion = await model.stream(prompt, take, live=bool(on_text or on_delta))
                else:
                    completion = await model.complete(prompt)
                    attempt.take_completion(completion)
        except TimeoutError as error:
            raise timeouts.passed(model, wrote=attempt.first_token_s is not None) from error
        if usage := attempt.believed:
            self.health.counts.learn(prompt.texts, usage.prompt_tokens)
        return msgspec.structs.replace(completion, usage=usage)

    async def _chosen(self) -> Replica:
        if len(self.replicas) == 1 and self.replicas[0].endpoint.breaker.state == "closed":
            return self.replicas[0]
        # Executors of a run share a prefix cache. Other conversations are identified by their
        # beginning.
        stay = self.caller.role == "execution"
        key = self.ledger.run_id
        if not stay:
            key = "\0".join(message.content for message in self.prompt.messages[:2])
        tokens = self.caller.prompt_bound // BYTES_PER_TOKEN
        choice = partial(
            choose,
            self.replicas,
            key,
            tokens,
            stay=stay,
            avoid=self._failed,
        )
        return await chosen(choice, self.until)


def _pause_s(error: UpstreamError, number: int) -> float | None:
    """Return the seconds until the same endpoint may be asked again; None if it may not."""
    if not isinstance(error, UpstreamUnavailable) or not error.repeatable:
        return None
    if error.retry_after_s is not None:
        return error.retry_after_s if error.retry_after_s <= _LONGEST_WAIT_S else None
    return random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (number - 1)))


async def prompt_tokens(model: Model, prompt: Prompt, counts: PromptCounts) -> int:
    """Return a bound of the tokens of `prompt`: by its tokenizer, or else by earlier counts and its
    bytes.
    """
    usage = await model.count(prompt, "")
    bound = counts.bound(prompt.texts)
    if usage is None:
        return bound
    if usage.estimated:
        return min(bound, usage.prompt_tokens + MESSAGE_TOKENS * len(prompt.texts))
    return usage.prompt_tokens


def min_output_tokens(max_tokens: int) -> int:
    """Return the smallest output limit that is worth a call whose own limit is `max_tokens`."""
    return min(max_tokens, max(_MIN_TOKENS, max_tokens // _MIN_SHARE))


async def affordable(
    take: Callable[..., Awaitable[T]], worst: Callable[[int], Amount], max_tokens: int
) -> T:
    """Return `take(tokens, worst(tokens), waits=…)` for the largest output limit up to `max_tokens`
    that the budget has room for. Raises `BudgetExhausted`.
    """
    min_tokens = min_output_tokens(max_tokens)
    waits = True
    while True:
        try:
            return await take(max_tokens, worst(max_tokens), waits=waits)
        except BudgetExhausted as error:
            left = error.left
            if left is None or max_tokens <= min_tokens:
                raise
            # Reservations of others have been waited for once.
            waits = not error.contended
        fewer = range(min_tokens, max_tokens)
        max_tokens = max(
            min_tokens,
            min_tokens
            - 1
            + bisect_left(fewer, True, key=lambda tokens: not left.holds(worst(tokens))),
        )


def _silent(attempt: Attempt | None, timeouts: Timeouts) -> bool:
    """Return whether there is no output after half of the first token's timeout."""
    if attempt is None or attempt.first_token_s is not None:
        return False
    return attempt.duration_s >= timeouts.first_token_s / 2
