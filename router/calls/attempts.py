"""Attempts of a model call: the choice of a replica, the timeouts and the ledger row of each
attempt, and retries after failures.

Before each attempt, its max cost is reserved from the budget. This cost depends on the number of
prompt tokens. First, an upper bound of this number is computed from the prompt's bytes. This takes
almost no time. If the budget is too small for the bound, the tokens are counted. If the budget is
still too small, the output limit of the attempt is lowered.

After a failure, another replica is tried immediately. If there is none, the same replica is tried
after a pause that grows from attempt to attempt. Retries stop at the max number of attempts, at the
deadline, or when the retry budget of the role is used up.
"""

import asyncio
import math
import random
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from router.amount import NOTHING, Amount
from router.background import loop_time
from router.calls.limits import MESSAGE_TOKENS, PromptCounts, RoleHealth
from router.calls.replicas import Replica, choose, chosen
from router.calls.timeouts import Timeouts
from router.errors import (
    BudgetExhausted,
    QuotaExhausted,
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
"""Longest Retry-After, in seconds, that is honoured. If an endpoint demands a longer pause, the
call fails immediately.
"""
_MIN_TOKENS = 64
_MIN_SHARE = 4
"""If the budget is short, a call is made only if there is room for at least `_MIN_TOKENS` output
tokens, and for a quarter (1 / `_MIN_SHARE`) of the role's output limit. See `min_output_tokens`.
"""
BYTES_PER_TOKEN = 4
"""Typical number of bytes of a token; precise enough to compare the load of replicas."""
_PROBE_S = 5.0
"""Max seconds until the first token of a probe. A probe is a call to an endpoint whose circuit
breaker is not closed. Applies only if the model has other replicas.
"""
OnText = Callable[[], Callable[[str], None]]
"""Function that is called at the beginning of each attempt. It returns another function, which is
then called with each piece of the attempt's text.
"""
T = TypeVar("T")


@dataclass(slots=True)
class Attempts:
    """One call of a model: attempts to complete a prompt, one after the other, until one succeeds.
    Each attempt has a row in the ledger.
    """

    prompt: Prompt
    ledger: Ledger
    caller: Caller
    """Role and model of the call, for the ledger. Here, `Caller.deployment` names the first
    replica; in a ledger row, it names the replica that was called.
    """
    purpose: Purpose
    """Purpose in the ledger row of the first attempt. Further attempts have the purpose `retry`;
    but if the first attempt has `condense`, so do all others.
    """
    replicas: tuple[Replica, ...]
    timeouts: Timeouts
    health: RoleHealth
    worst: Callable[[int, int], Amount]
    """Returns the max cost of an attempt, given its prompt tokens and its output limit."""
    streams: bool
    """True if the output is streamed from the endpoint."""
    max_attempts: int
    """Max number of attempts at this model."""
    until: float = math.inf
    """Deadline of the call, in the event loop's time."""
    on_text: OnText | None = None
    """See `OnText`; called only if the output is streamed."""
    on_delta: Callable[[Delta], None] | None = None
    """Called with each piece of the output when it arrives. After the first piece, the call is not
    retried, because the client already has a part of the output.
    """
    _made: int = field(default=0, init=False)
    """Number of attempts that were begun."""
    _unstopped: bool = field(default=False, init=False)
    """True if this prompt is sent without stop strings, because a stop string ended an earlier
    attempt within the reasoning.
    """
    _failed: set[str] = field(default_factory=set, init=False)
    """Names of the replicas (`Replica.deployment`) at which an attempt failed."""

    async def completion(self) -> Completion:
        """Return the output of the first attempt that succeeds.

        Raises `BudgetExhausted` if the budget is too small for an attempt, and the `UpstreamError`
        of the last attempt if none succeeds.
        """
        self.health.retries.called()
        while True:
            try:
                if output := await self._once():
                    return output
                pause_s: float | None = 0.0
            except QuotaExhausted as error:
                pause_s = error.retry_after_s
                late = loop_time() + pause_s > self.until
                # `error.left` is None only for a limit per minute. A run that has made no call yet
                # is then refused. Other runs wait for the next minute, without holding a slot.
                if error.left or late or not self.ledger.calls:
                    raise
                self._made -= 1
            except UpstreamRefused as error:
                # A refusal because of a wrong key or model name causes no load. So trying another
                # replica is not counted against the retry budget.
                if (
                    error.passed_on
                    or self._made >= self.max_attempts
                    or not error.lasting
                    or not self._elsewhere()
                ):
                    raise
                pause_s = 0.0
            except (UpstreamUnavailable, UpstreamProtocolError) as error:
                pause_s = 0.0 if self._elsewhere() else _pause_s(error, self._made)
                late = pause_s is None or loop_time() + pause_s > self.until
                if (
                    error.passed_on
                    or self._made >= self.max_attempts
                    or late
                    or not self.health.retries.spend()
                ):
                    raise
            await asyncio.sleep(pause_s or 0.0)

    def _elsewhere(self) -> bool:
        """Return whether there is a replica that has not failed in this call and whose breaker lets
        calls through.
        """
        return any(
            replica.deployment not in self._failed and not replica.endpoint.breaker.wait_s
            for replica in self.replicas
        )

    async def _once(self) -> Completion | None:
        """Return the output of one attempt. Return None if a stop string matched inside the model's
        reasoning and cut it off; the caller then repeats the call without stop strings.

        If the repeated call returns a text, later calls to this endpoint are sent without stop
        strings.
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
                if works:
                    self.health.succeeded()
                else:
                    self.health.failed()
                    replica.endpoint.last_failure = error.args[0]
                self._failed.add(replica.deployment)
                raise

            self.health.succeeded()
            known = replica.endpoint.unstopped or self._unstopped
            if self.prompt.stop and not known and completion.stopped_thinking:
                self._unstopped = True
                return None

            # The stop strings were the problem only if the model writes a text without them.
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
        """Make one attempt at a replica, and record it in the ledger. `worst`: the amount to
        reserve. `waits`: whether to wait for budget that other calls have reserved.
        """
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
        retried = self._made > 1 and self.purpose != "condense"
        purpose: Purpose = "retry" if retried else self.purpose
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
        """Call the model and return its output. A single timer limits first the time until the
        first token, and after the first token the time of the whole call.
        """
        model = replica.model
        sampling = replace(self.prompt.sampling, max_tokens=attempt.opened.max_tokens)
        prompt = replace(
            self.prompt,
            sampling=sampling,
            request_id=attempt.request_id,
            unstopped=replica.endpoint.unstopped or self._unstopped,
        )
        on_text = self.on_text() if self.on_text and self.streams else None
        on_delta = self.on_delta
        began = loop_time()

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
        return replace(completion, usage=usage)

    async def _chosen(self) -> Replica:
        if len(self.replicas) == 1 and self.replicas[0].endpoint.breaker.state == "closed":
            return self.replicas[0]
        # All executors of a run go to one replica, because their prompts begin alike and share its
        # prefix cache. Other conversations are assigned to replicas by their first two messages.
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
    """Return the pause before a retry at the same endpoint, in seconds; None if the call must not
    be retried there. `number`: the number of attempts so far.
    """
    if not isinstance(error, UpstreamUnavailable) or not error.repeatable:
        return None
    if error.retry_after_s is not None:
        return error.retry_after_s if error.retry_after_s <= _LONGEST_WAIT_S else None
    return random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (number - 1)))


async def prompt_tokens(model: Model, prompt: Prompt, counts: PromptCounts) -> int:
    """Return an upper bound of the tokens of `prompt`: the count by the model's tokenizer if it is
    available, or else a bound computed from earlier prompts and the prompt's bytes.
    """
    usage = await model.count(prompt, "")
    bound = counts.bound(prompt.texts)
    if usage is None:
        return bound
    if usage.estimated:
        return min(bound, usage.prompt_tokens + MESSAGE_TOKENS * len(prompt.texts))
    return usage.prompt_tokens


def min_output_tokens(max_tokens: int) -> int:
    """Return the smallest output limit, in tokens, that a call may get when the budget is short.
    `max_tokens`: the output limit of the role.
    """
    return min(max_tokens, max(_MIN_TOKENS, max_tokens // _MIN_SHARE))


async def affordable(
    take: Callable[..., Awaitable[T]], worst: Callable[[int], Amount], max_tokens: int
) -> T:
    """Return `await take(tokens, worst(tokens), waits=…)`, where `tokens` is the largest output
    limit, up to `max_tokens`, for which the budget has room.

    `take`: makes the call; its argument `waits` says whether to wait for budget that other calls
    have reserved. `worst`: returns the max cost of a call, given its output limit. Raises
    `BudgetExhausted` if there is no room even for `min_output_tokens(max_tokens)`.
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
            # The next try does not wait again for the reservations of other calls.
            waits = not error.contended
        fewer = range(min_tokens, max_tokens)
        max_tokens = max(
            min_tokens,
            min_tokens
            - 1
            + bisect_left(fewer, True, key=lambda tokens: not left.holds(worst(tokens))),
        )


def _silent(attempt: Attempt | None, timeouts: Timeouts) -> bool:
    """Return whether half of the timeout for the first token has passed without that token."""
    if attempt is None or attempt.first_token_s is not None:
        return False
    return attempt.duration_s >= timeouts.first_token_s / 2
