"""The attempts of one call: where each goes, how long it may take, and its row in the ledger."""

import asyncio
import random
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

import msgspec

from router.amount import NOTHING, Amount
from router.calls.limits import MESSAGE_TOKENS, PromptCounts, RetryBudget, RoleTraffic, hedged
from router.calls.replicas import Replica, chosen, eject_outliers
from router.calls.timeouts import Patience
from router.errors import BudgetExhausted, UpstreamError, UpstreamGarbled, UpstreamRefused, UpstreamUnavailable
from router.ledger.ledger import Attempt, Caller, Ledger
from router.models.model import Completion, Delta, Model, Prompt
from router.trace.call import Purpose

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 8.0
_LONGEST_WAIT_S = 30.0
"""The longest pause that an endpoint may ask for; a caller that is told of a longer one in time can go elsewhere."""
T = TypeVar("T")


async def with_retries(
    attempt: Callable[[], Awaitable[T]],
    *,
    attempts: int,
    budget: RetryBudget,
    until: float,
    elsewhere: Callable[[], bool],
) -> T:
    """What `attempt` returns, which is tried up to `attempts` times, with pauses that grow and that end before `until`,
    in the event loop's time. `elsewhere`: whether the next one goes to an endpoint that has not failed, at once, then.

    Raises the error of the last attempt.
    """
    budget.called()
    for number in count(1):
        try:
            return await attempt()
        except UpstreamRefused as error:  # a replica whose key or model's name is wrong adds no load by refusing
            if number == attempts or not error.lasting or not elsewhere():
                raise
            pause_s: float | None = 0.0
        except (UpstreamUnavailable, UpstreamGarbled) as error:
            pause_s = 0.0 if elsewhere() else _pause_s(error, number)
            late = pause_s is None or asyncio.get_running_loop().time() + pause_s > until
            if number == attempts or late or not budget.spend():
                raise
        await asyncio.sleep(pause_s or 0.0)
    raise AssertionError("the last attempt returns or raises")


def _pause_s(error: UpstreamError, number: int) -> float | None:
    """How long to wait before the same endpoint is asked again; None where it is not to be."""
    if not isinstance(error, UpstreamUnavailable) or not error.repeatable:
        return None
    if error.retry_after_s is not None:
        return error.retry_after_s if error.retry_after_s <= _LONGEST_WAIT_S else None
    return random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (number - 1)))


_LEAST_TOKENS, _LEAST_SHARE = 64, 4
"""Where the rest of a budget has room for fewer tokens to write than these, and than the fourth part of what the role
may write, a call is not worth it."""
_BYTES_PER_TOKEN = 4
"""In most text; good enough to compare replicas."""
_PROBE_S = 5.0
"""How long the first token of a probe may take, where there are other replicas."""
Listen = Callable[[], Callable[[str], None]]
"""For each attempt anew, what gets each piece of its text."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A stream that has come to its first token."""

    attempt: Attempt
    head: list[Delta]
    """What has come by now; `attempt` knows of it."""
    rest: AsyncIterator[Delta]
    leaving: AsyncExitStack
    """Ends the attempt."""

    def believed(self, delta: Delta) -> Delta:
        """`delta` with the whole usage where it is the last one, and with none before."""
        return msgspec.structs.replace(delta, usage=self.attempt.believed if delta.finish_reason else None)


@dataclass(slots=True)
class Attempts:
    """Makes them, for one prompt."""

    prompt: Prompt
    ledger: Ledger
    caller: Caller
    """With the deployment of the first replica."""
    purpose: Purpose
    """Of the first attempt."""
    replicas: tuple[Replica, ...]
    patience: Patience
    traffic: RoleTraffic
    worst: Callable[[int, int], Amount]
    """What an attempt may cost at most, by the tokens of its prompt and by those that it may write."""
    until: float
    """When the call is due, in the event loop's time."""
    listen: Listen | None = None
    """Who hears the text of a streamed attempt."""
    streams: bool = True
    most: int = 3
    """Attempts, hedges not counted."""

    _made: int = field(default=0, init=False)
    _failed: set[str] = field(default_factory=set, init=False)
    """Deployments that did not do their part."""
    _trying: set[str] = field(default_factory=set, init=False)
    _first: Completion | None = field(default=None, init=False)
    """The first output that was whole."""

    async def completion(self) -> Completion:
        """The whole output, from whichever attempt comes to it. Raises `UpstreamError` and `BudgetExhausted`."""
        return await self._retried(self._hedged)

    async def begin(self) -> Begun:
        """A stream, from whichever attempt comes to a first token. Raises as `completion`."""
        return await self._retried(self._begun)

    async def _retried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        def elsewhere() -> bool:
            there = (one for one in self.replicas if one.deployment not in self._failed)
            return any(not one.endpoint.breaker.wait_s for one in there)

        retries = self.traffic.retries
        return await with_retries(attempt, attempts=self.most, budget=retries, until=self.until, elsewhere=elsewhere)

    async def _hedged(self) -> Completion:
        begun, after_s = time.monotonic(), None if self.listen else self.traffic.hedge_after_s
        first = self._whole()
        completion = await (first if after_s is None else hedged(first, self._hedge, after_s))
        self.traffic.durations.add(time.monotonic() - begun)
        return completion

    def _hedge(self) -> Coroutine[Any, Any, Completion] | None:
        return self._whole("hedge") if self.traffic.may_hedge() else None

    async def _whole(self, purpose: Purpose | None = None) -> Completion:
        async with self._attempt(purpose) as (attempt, model, prompt, patience):
            if self.streams:
                completion = await patience.gather(model, prompt, _heard(attempt, self.listen))
            else:
                completion = await patience.complete(model, prompt)
                attempt.take_whole(completion)
            completion = msgspec.structs.replace(completion, usage=attempt.believed)
            attempt.unwanted = self._first is not None  # a hedge and what it stands beside may end at once
            self._first = self._first or completion
            return self._first

    async def _begun(self) -> Begun:
        async with AsyncExitStack() as stack:
            attempt, model, prompt, patience = await stack.enter_async_context(self._attempt())
            deltas = await stack.enter_async_context(patience.stream(model, prompt))
            head: list[Delta] = []
            async for delta in deltas:
                attempt.take(delta)
                head.append(delta)
                if attempt.first_token_s is not None:
                    break
            return Begun(attempt, head, deltas, stack.pop_all())

    @asynccontextmanager
    async def _attempt(self, purpose: Purpose | None = None) -> AsyncIterator[tuple[Attempt, Model, Prompt, Patience]]:
        """An attempt with its row, the model that it asks, the prompt under its name, and how long it may take."""
        await self.traffic.enter()
        try:
            replica = await self._chosen()
            patience = self._patience(replica)
            attempt: Attempt | None = None
            tokens = self._tokens + self.prompt.sampling.max_tokens
            self._trying.add(replica.deployment)
            try:
                with replica.endpoint.calling(tokens, lambda: _silent(attempt, patience)) as spoke:
                    async with AsyncExitStack() as stack:
                        attempt = await self._booked(replica, purpose, stack)
                        attempt.spoke = spoke
                        max_tokens = attempt.opened.max_tokens
                        sampling = msgspec.structs.replace(self.prompt.sampling, max_tokens=max_tokens)
                        prompt = msgspec.structs.replace(self.prompt, sampling=sampling, request_id=attempt.request_id)
                        yield attempt, replica.model, prompt, patience
                        if usage := attempt.believed:
                            self.traffic.counts.learn(prompt.messages, usage.prompt_tokens)
                        self.traffic.failures = 0
            except UpstreamError as error:
                if isinstance(error, UpstreamRefused) and not error.lasting:  # it works, but not with this prompt
                    self.traffic.failures = 0
                else:
                    self.traffic.failed()
                self._failed.add(replica.deployment)
                if len(self.replicas) > 1:
                    eject_outliers(self.replicas)
                raise
            finally:
                self._trying.discard(replica.deployment)
        finally:
            self.traffic.leave()

    async def _booked(self, replica: Replica, purpose: Purpose | None, stack: AsyncExitStack) -> Attempt:
        """The attempt's row. Its worst case is that of the prompt's bytes or, where that is too much, of its tokens, or
        of fewer tokens to write.
        """
        why = purpose or ("retry" if self._made else self.purpose)
        self._made += 1
        number = self._made

        async def enter(prompt_tokens: int, max_tokens: int, worst: Amount, *, patient: bool) -> Attempt:
            caller = replace(
                self.caller, deployment=replica.deployment, prompt_bound=prompt_tokens, max_tokens=max_tokens
            )
            booked = self.ledger.attempt(caller, why, number, worst, patient=patient)
            return await stack.enter_async_context(booked)

        bound, most = self.caller.prompt_bound, self.caller.max_tokens
        try:
            worst = self.worst(bound, most) if self.ledger.limited else NOTHING
            attempt = await enter(bound, most, worst, patient=False)
        except BudgetExhausted:
            tokens = await prompt_tokens(replica.model, self.prompt, self.traffic.counts)
            attempt = await affordable(partial(enter, tokens), partial(self.worst, tokens), most)
        attempt.count = partial(replica.model.count, self.prompt)
        return attempt

    async def _chosen(self) -> Replica:
        # All executors of a run share a replica's cache; other conversations are told apart by how they begin.
        stay = self.caller.role == "execution"
        key = self.ledger.run_id if stay else "\0".join(message.content for message in self.prompt.messages[:2])
        avoid = self._failed | self._trying
        return await chosen(self.replicas, key, self._tokens, stay=stay, avoid=avoid, until=self.until)

    def _patience(self, replica: Replica) -> Patience:
        if len(self.replicas) == 1 or replica.endpoint.breaker.state == "closed":
            return self.patience
        return replace(self.patience, first_token_s=min(self.patience.first_token_s, _PROBE_S))

    @property
    def _tokens(self) -> int:
        return self.caller.prompt_bound // _BYTES_PER_TOKEN


async def prompt_tokens(model: Model, prompt: Prompt, counts: PromptCounts) -> int:
    """The most tokens that `prompt` can have: by the model's tokenizer, or else by what its engine has counted."""
    usage, bound = await model.count(prompt, ""), counts.bound(prompt.messages)
    if usage is None:
        return bound
    if usage.estimated:
        return min(bound, usage.prompt_tokens + MESSAGE_TOKENS * len(prompt.messages))
    return usage.prompt_tokens


def least_tokens(max_tokens: int) -> int:
    """The fewest tokens that are worth a call which may write `max_tokens` where there is room for them."""
    return min(max_tokens, max(_LEAST_TOKENS, max_tokens // _LEAST_SHARE))


async def affordable(take: Callable[..., Awaitable[T]], worst: Callable[[int], Amount], max_tokens: int) -> T:
    """What `take(tokens, worst(tokens), patient=…)` returns for `max_tokens` to write or, where the budget has no room
    for as many, for as many as it has room for. Raises `BudgetExhausted`.
    """
    least, patient = least_tokens(max_tokens), True
    while True:
        try:
            return await take(max_tokens, worst(max_tokens), patient=patient)
        except BudgetExhausted as error:
            left = error.left
            if left is None or max_tokens <= least:
                raise
            # What others hold back has been waited for once.
            patient = not error.contended
        fewer = range(least, max_tokens)
        max_tokens = max(least, least - 1 + bisect_left(fewer, True, key=lambda tokens: not left.holds(worst(tokens))))


def _silent(attempt: Attempt | None, patience: Patience) -> bool:
    """Whether nothing has come for half of the time in which something should have."""
    if attempt is None or attempt.first_token_s is not None:
        return False
    return attempt.duration_s >= patience.first_token_s / 2


def _heard(attempt: Attempt, listen: Listen | None) -> Callable[[Delta], None]:
    if listen is None:
        return attempt.take
    hear = listen()

    def take(delta: Delta) -> None:
        attempt.take(delta)
        hear(delta.text)

    return take
