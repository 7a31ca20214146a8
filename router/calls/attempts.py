"""Attempts of one call: where each goes, when another is made, how long it may take, and its
row in the ledger.
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
from router.calls.replicas import Replica, chosen
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
"""The longest pause that an endpoint may ask for; a caller that is told of a longer one in time
can go elsewhere.
"""
_LEAST_TOKENS = 64
_LEAST_SHARE = 4
"""Where the rest of a budget has room for fewer tokens to write than these, and than the fourth
part of what the role may write, a call is not worth it.
"""
BYTES_PER_TOKEN = 4
"""In most text; good enough to compare replicas."""
_PROBE_S = 5.0
"""How long the first token of a probe may take, where there are other replicas."""
OnText = Callable[[], Callable[[str], None]]
"""For each attempt anew, what gets each piece of its text."""
T = TypeVar("T")


@dataclass(slots=True)
class Attempts:
    """Attempts to answer one prompt, one after the other; each of them is booked."""

    prompt: Prompt
    ledger: Ledger
    caller: Caller
    """With the deployment of the first replica."""
    purpose: Purpose
    """Of the first attempt."""
    replicas: tuple[Replica, ...]
    timeouts: Timeouts
    health: RoleHealth
    worst: Callable[[int, int], Amount]
    """The most that an attempt may cost, by the tokens of its prompt and by those that it may
    write.
    """
    streams: bool
    most: int
    until: float = math.inf
    """When the call is due, in the event loop's time."""
    on_text: OnText | None = None
    """Gets the text of a streamed attempt as it is written."""
    on_delta: Callable[[Delta], None] | None = None
    """Gets what is written, and keeps it: once there is a first token, there is no other
    attempt.
    """
    _made: int = field(default=0, init=False)
    _unstopped: bool = field(default=False, init=False)
    """Whether this prompt is asked without stop strings."""
    _failed: set[str] = field(default_factory=set, init=False)
    """Deployments that did not do their part."""

    async def completion(self) -> Completion:
        """Return the whole output of the first attempt that comes to it, at another replica at
        once, or at the same one after pauses that grow. Raises `UpstreamError` and
        `BudgetExhausted`; of several errors, the last one.
        """
        self.health.retries.called()
        for number in count(1):
            try:
                if output := await self._once():
                    return output
                pause_s: float | None = 0.0
            except UpstreamRefused as error:
                # A replica whose key or model's name is wrong adds no load by refusing.
                if (
                    error.passed_on
                    or number >= self.most
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
                    or number >= self.most
                    or late
                    or not self.health.retries.spend()
                ):
                    raise
            await asyncio.sleep(pause_s or 0.0)
        raise AssertionError("the last attempt returns or raises")

    def _elsewhere(self) -> bool:
        """Tell whether a replica is left that has not failed."""
        there = (replica for replica in self.replicas if replica.deployment not in self._failed)
        return any(not replica.endpoint.breaker.wait_s for replica in there)

    async def _once(self) -> Completion | None:
        """The output of one attempt; None where its endpoint met a stop string within its
        reasoning, and is to be asked once more without them; where that brings text, it is asked so
        from then on. Its worst case is that of the prompt's bytes or, where that is too much, of
        its tokens, or of fewer tokens to write.
        """
        async with self.health:
            replica = await self._chosen()
            bound = self.caller.prompt_bound
            most = self.caller.max_tokens
            self._made += 1
            try:
                try:
                    worst = self.worst(bound, most) if self.ledger.limited else NOTHING
                    completion = await self._booked(replica, bound, most, worst, waits=False)
                except BudgetExhausted:
                    tokens = await prompt_tokens(replica.model, self.prompt, self.health.counts)
                    call = partial(self._booked, replica, tokens)
                    worst_of = partial(self.worst, tokens)
                    completion = await affordable(call, worst_of, most)
            except UpstreamError as error:
                # But not with this prompt
                works = isinstance(error, UpstreamRefused) and not error.lasting
                (self.health.succeeded if works else self.health.failed)()
                self._failed.add(replica.deployment)
                raise
            self.health.succeeded()
            known = replica.endpoint.unstopped or self._unstopped
            if self.prompt.stop and not known and completion.stopped_thinking:
                self._unstopped = True
                return None

            # Only text that came without stop strings proves that they were in the way.
            if self._unstopped and completion.text.strip():
                replica.endpoint.unstopped = True
            return completion

    async def _booked(
        self, replica: Replica, prompt_tokens: int, max_tokens: int, worst: Amount, *, waits: bool
    ) -> Completion:
        """Make a call that has its row in the ledger."""
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
                caller, purpose, self._made, worst, waits=waits
            ) as attempt:
                attempt.spoke, attempt.count = spoke, partial(replica.model.count, self.prompt)
                try:
                    return await self._call(replica, attempt, timeouts)
                except UpstreamError as error:
                    error.passed_on = (
                        self.on_delta is not None and attempt.first_token_s is not None
                    )
                    raise

    async def _call(self, replica: Replica, attempt: Attempt, timeouts: Timeouts) -> Completion:
        """Ask the model. One timer is set: for the first token, and from then on for the end."""
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
                    attempt.take_whole(completion)
        except TimeoutError as error:
            raise timeouts.passed(model, wrote=attempt.first_token_s is not None) from error
        if usage := attempt.believed:
            self.health.counts.learn(prompt.texts, usage.prompt_tokens)
        return msgspec.structs.replace(completion, usage=usage)

    async def _chosen(self) -> Replica:
        if len(self.replicas) == 1 and self.replicas[0].endpoint.breaker.state == "closed":
            return self.replicas[0]
        # All executors of a run share a replica's cache; other conversations are told apart by how
        # they begin.
        stay = self.caller.role == "execution"
        key = (
            self.ledger.run_id
            if stay
            else "\0".join(message.content for message in self.prompt.messages[:2])
        )
        tokens = self.caller.prompt_bound // BYTES_PER_TOKEN
        return await chosen(
            self.replicas, key, tokens, stay=stay, avoid=self._failed, until=self.until
        )


def _pause_s(error: UpstreamError, number: int) -> float | None:
    """Seconds to wait before the same endpoint is asked again; None where it is not to be."""
    if not isinstance(error, UpstreamUnavailable) or not error.repeatable:
        return None
    if error.retry_after_s is not None:
        return error.retry_after_s if error.retry_after_s <= _LONGEST_WAIT_S else None
    return random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (number - 1)))


async def prompt_tokens(model: Model, prompt: Prompt, counts: PromptCounts) -> int:
    """Return the most tokens that `prompt` can have, by its tokenizer, or by earlier counts and
    its bytes.
    """
    usage = await model.count(prompt, "")
    bound = counts.bound(prompt.texts)
    if usage is None:
        return bound
    if usage.estimated:
        return min(bound, usage.prompt_tokens + MESSAGE_TOKENS * len(prompt.texts))
    return usage.prompt_tokens


def least_tokens(max_tokens: int) -> int:
    """The fewest tokens that are worth a call which may write `max_tokens` where there is room
    for them.
    """
    return min(max_tokens, max(_LEAST_TOKENS, max_tokens // _LEAST_SHARE))


async def affordable(
    take: Callable[..., Awaitable[T]], worst: Callable[[int], Amount], max_tokens: int
) -> T:
    """Return `take(tokens, worst(tokens), waits=…)` for `max_tokens` to write or, where the budget
    has no room for as many, for as many as it has room for. Raises `BudgetExhausted`.
    """
    least = least_tokens(max_tokens)
    waits = True
    while True:
        try:
            return await take(max_tokens, worst(max_tokens), waits=waits)
        except BudgetExhausted as error:
            left = error.left
            if left is None or max_tokens <= least:
                raise
            # What others hold back has been waited for once.
            waits = not error.contended
        fewer = range(least, max_tokens)
        max_tokens = max(
            least,
            least - 1 + bisect_left(fewer, True, key=lambda tokens: not left.holds(worst(tokens))),
        )


def _silent(attempt: Attempt | None, timeouts: Timeouts) -> bool:
    """Tell whether nothing has come for half of the time in which something should have."""
    if attempt is None or attempt.first_token_s is not None:
        return False
    return attempt.duration_s >= timeouts.first_token_s / 2
