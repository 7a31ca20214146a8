"""A role: a model with its system prompt, sampling, timeouts, replicas and fallbacks."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog
from msgspec import structs

from router.amount import NOTHING, Amount
from router.calls.attempts import (
    BYTES_PER_TOKEN,
    Attempts,
    OnText,
    min_output_tokens,
    prompt_tokens,
)
from router.calls.limits import RoleHealth, prompt_bound
from router.calls.replicas import Endpoint, Replica
from router.calls.timeouts import Timeouts
from router.errors import MalformedOutput, UpstreamError, UpstreamProtocolError, UpstreamUnavailable
from router.ledger import Ledger
from router.ledger.ledger import Caller
from router.models import Completion, Delta, Message, Model, Prompt, Sampling
from router.models.model import Function
from router.protocol import prompts
from router.trace import Price, RoleName
from router.trace.call import Purpose
from router.trace.turns import CONDENSER, AgentId

_log = structlog.get_logger("roles")


@dataclass(frozen=True, slots=True)
class Role:
    """A model in one of its functions, such as delegator or executor, with all settings of its
    calls. If the model is unavailable, the fallback roles are called. Every attempt of a call has a
    row in the ledger.
    """

    name: RoleName
    model: Model
    system: str
    """The system prompt."""
    sampling: Sampling
    attempts: int = 3
    """Max attempts of a call at this model. Only a call that fails is attempted again."""
    system_role: bool = True
    """False if the model accepts no message of role `system`. Then the system prompt is sent at the
    beginning of the first user message, by `prompts.without_system_role`. Traces contain the
    conversation with its system message in either case.
    """
    context_tokens: int | None = None
    """Context length of the model; None if unknown."""
    deployment: str = ""
    """Name of the model's endpoint in the ledger; empty to use the endpoint's address as its name.
    """
    executor_version: str | None = None
    """Name of the executor version that the model serves; None for other roles."""
    price: Price | None = None
    """Price of the model; None if unknown. An unknown price is not a price of zero."""
    streams: bool = True
    """True if outputs are streamed from the endpoint, so that the usage of an interrupted call is
    known. False for models whose output differs when it is streamed.
    """
    endpoint: Endpoint = field(default_factory=Endpoint)
    """Load and circuit breaker of the endpoint."""
    others: tuple[Replica, ...] = ()
    """Further endpoints that serve the same model."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    health: RoleHealth = field(default_factory=RoleHealth)
    fallbacks: "tuple[Role, ...]" = ()
    """Roles that are called instead if the model is unavailable, tried in order."""
    structured: bool = False
    """True if the endpoint supports structured output. Then calls may send it a regular expression
    that the output must match.
    """
    tool_calls: bool = False
    """True if the model calls tools by the native tool calls of OpenAI's API; False if it writes
    tool calls as text in tags.
    """

    def opening(self, text: str) -> tuple[Message, ...]:
        """Return the messages of a new conversation: the system prompt, and `text` as the first
        user message.
        """
        return (Message("system", self.system), Message("user", text))

    async def ask(
        self,
        messages: tuple[Message, ...],
        stop: tuple[str, ...],
        ledger: Ledger,
        *,
        purpose: Purpose = "first",
        sub_query_index: int | None = None,
        pattern: str | None = None,
        tools: tuple[Function, ...] = (),
        until: float = math.inf,
        on_text: OnText | None = None,
        on_delta: Callable[[Delta], None] | None = None,
    ) -> Completion:
        """Return the completion of `messages` by the model, or by the first fallback that works if
        the model is unavailable.

        If `ledger` belongs to a resumed run that has recorded this turn, the recorded completion is
        returned and no model is called.

        `stop`: strings at which the output ends. `purpose`: purpose of the call in the ledger.
        `sub_query_index`: number of the sub-query that the call works on; None for the question
        itself. `pattern`: regular expression that the output must match; sent only if the endpoint
        supports structured output. `tools`: functions that the model may call, for native tool
        calls. `until`: deadline in the event loop's time; no retry is made after it. `on_text`,
        `on_delta`: see `Attempts`.

        Raises `BudgetExhausted` if the budget is too small. If all attempts and fallbacks have
        failed, raises the `UpstreamError` of the model itself, with the name of this role.
        """
        condensing = purpose == "condense"
        agent = CONDENSER if condensing else AgentId(self.name, sub_query_index)
        if (recorded := ledger.turn_before(agent, messages)) is not None:
            return recorded

        first: UpstreamError | None = None
        try:
            for role in (self, *self.fallbacks):
                if first:
                    _log.warning(
                        "role.fallback", role=self.name, model=role.model.name, error=str(first)
                    )
                    self.health.fallbacks += 1
                    purpose = purpose if condensing else "fallback"

                prompt = structs.replace(role._prompt(messages, stop, pattern), tools=tools)
                attempts = role._attempts(prompt, sub_query_index, ledger, purpose)
                attempts.until = until
                attempts.on_text = on_text
                attempts.on_delta = on_delta
                try:
                    output = await attempts.completion()
                    ledger.turn(agent, messages, output)
                    return output
                except (UpstreamUnavailable, UpstreamProtocolError) as error:
                    first = first or error
                    if error.passed_on:
                        raise
            raise first or AssertionError("at least one role is called")
        except UpstreamError as error:
            error.role = self.name
            raise

    def _attempts(
        self,
        prompt: Prompt,
        sub_query_index: int | None,
        ledger: Ledger,
        purpose: Purpose,
    ) -> Attempts:
        replicas = self.replicas
        caller = Caller(
            self.name,
            self.model.name,
            replicas[0].deployment,
            sub_query_index,
            self.sampling.max_tokens,
            self.executor_version,
            self.price,
            self._in_context(prompt_bound(prompt.texts)),
        )
        return Attempts(
            prompt,
            ledger,
            caller,
            purpose,
            replicas,
            self.timeouts,
            self.health,
            self._worst,
            self.streams,
            self.attempts,
        )

    async def min_cost(self, text: str, turns: int = 1) -> Amount:
        """Return an estimate of the min cost of a conversation that begins with `text` and has
        `turns` turns. The estimate assumes that each turn reads the prompt, and that only the last
        turn writes an output, of `min_output_tokens` tokens.
        """
        prompt = self._prompt(self.opening(text), (), None)
        usage = await self.model.count(prompt, "")
        tokens = prompt_bound(prompt.texts) // BYTES_PER_TOKEN
        if usage and not usage.estimated:
            tokens = usage.prompt_tokens
        amount = self._worst(tokens, min_output_tokens(self.sampling.max_tokens))
        for _ in range(turns - 1):
            amount += self._worst(tokens, 0)
        return amount

    async def reserve_for_answer(
        self,
        messages: tuple[Message, ...],
        coming_tokens: int,
        ledger: Ledger,
        *,
        shortest: bool = False,
        extra: Amount = NOTHING,
    ) -> None:
        """Reserve a part of the run's budget for the answer: the max cost of a call of this role
        with a prompt that consists of `messages` and `coming_tokens` further tokens.

        `shortest`: True to reserve for an output of `min_output_tokens`, not for the role's whole
        output limit. `extra`: an amount to reserve in addition. Raises `BudgetExhausted` if the
        budget is too small, and `StoreFailed` if the reservation cannot be stored.
        """
        tokens = await prompt_tokens(
            self.model, self._prompt(messages, (), None), self.health.counts
        )
        max_tokens = self.sampling.max_tokens
        if shortest:
            max_tokens = min_output_tokens(max_tokens)
        await ledger.reserve_for_answer(self._worst(tokens + coming_tokens, max_tokens) + extra)

    def limited(self, max_tokens: int) -> "Role":
        """Return a copy of the role, in which the output limits of the role and of its fallbacks
        are at most `max_tokens`. If `max_tokens` is 0, return the role itself.
        """
        if not max_tokens:
            return self
        fewer = min(max_tokens, self.sampling.max_tokens)
        sampling = structs.replace(self.sampling, max_tokens=fewer)
        return replace(
            self,
            sampling=sampling,
            fallbacks=tuple(fallback.limited(max_tokens) for fallback in self.fallbacks),
        )

    def with_system(self, change: Callable[[str], str]) -> "Role":
        """Return a copy of the role, and of its fallbacks, with another system prompt. `change`:
        called with the current system prompt; returns the new one.
        """
        return replace(
            self,
            system=change(self.system),
            fallbacks=tuple(fallback.with_system(change) for fallback in self.fallbacks),
        )

    def malformed(self) -> MalformedOutput:
        """Return the error to raise if the model's output cannot be parsed, even after the model
        was asked to correct it.
        """
        error = MalformedOutput(
            f"the output of model {self.model.name!r} does not have the format that its role "
            "requires, even after a request to correct it; use another model or prompt "
            "(`rolegate check --live` tests the prompts for questions, but not those for tables)",
            endpoint=self.model.endpoint,
        )
        error.role = self.name
        return error

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """All endpoints that serve the model."""
        first = Replica(self.model, self.deployment or self.model.endpoint, self.endpoint)
        return (first, *self.others)

    def _prompt(
        self, messages: tuple[Message, ...], stop: tuple[str, ...], pattern: str | None
    ) -> Prompt:
        shown = messages if self.system_role else prompts.without_system_role(messages)
        return Prompt(shown, self.sampling, stop, pattern=pattern if self.structured else None)

    def _worst(self, prompt_tokens: int, max_tokens: int) -> Amount:
        prompt_tokens = self._in_context(prompt_tokens)
        nano_usd = self.price.max_cost(prompt_tokens, max_tokens) if self.price else None
        return Amount(self._in_context(prompt_tokens + max_tokens), nano_usd)

    def _in_context(self, tokens: int) -> int:
        return tokens if self.context_tokens is None else min(tokens, self.context_tokens)
