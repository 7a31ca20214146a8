"""A role: a model with its prompt, sampling, timeouts, replicas and fallbacks."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec
import structlog

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
from router.trace.turns import AgentId

_log = structlog.get_logger("roles")


@dataclass(frozen=True, slots=True)
class Role:
    """Calls a model or its fallbacks. Every attempt is booked."""

    name: RoleName
    model: Model
    system: str
    """The system prompt."""
    sampling: Sampling
    attempts: int = 3
    """Max attempts of a call while its endpoint is unavailable."""
    system_role: bool = True
    """False sends the system prompt at the head of the user's turn. Traces keep the conversation
    as it is here; `prompts.without_system_role` gives what was sent.
    """
    context_tokens: int | None = None
    """Context length of the model; None if unknown."""
    deployment: str = ""
    """Name in the ledger of the place where the model is served; empty for its endpoint."""
    executor_version: str | None = None
    price: Price | None = None
    """Price of the model; None if unknown, which is not zero."""
    streams: bool = True
    """True streams its calls, so that the usage of a cut call is known. False for models whose
    streams differ from their whole replies.
    """
    endpoint: Endpoint = field(default_factory=Endpoint)
    """Load and breaker of the deployment."""
    others: tuple[Replica, ...] = ()
    """Further replicas of the model."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    health: RoleHealth = field(default_factory=RoleHealth)
    fallbacks: "tuple[Role, ...]" = ()
    """Fallback roles, tried in order."""
    structured: bool = False
    """True if the endpoint supports structured output, so that patterns are sent to it."""
    tool_calls: bool = False
    """True if the model has native tool calls; otherwise it calls tools in tags."""

    def opening(self, text: str) -> tuple[Message, ...]:
        """Return a new conversation whose first user turn is `text`."""
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
        """Return the model's next turn, or the first fallback's if the model is unavailable.

        `pattern`: regular expression for the output, if the endpoint supports it. `tools`: for
        native tool calls. `until`: deadline in the event loop's time; no retry
        pauses beyond it. `on_text`, `on_delta`: see `Attempts`. Raises `BudgetExhausted`, and the
        model's `UpstreamError` with this role's name, once all attempts and fallbacks have failed.
        """
        agent = AgentId(self.name, sub_query_index)
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
                    purpose = "fallback"

                prompt = msgspec.structs.replace(role._prompt(messages, stop, pattern), tools=tools)
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
            raise first or AssertionError("a role is asked")
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
        """Return the min cost of `turns` turns of a conversation that begins with `text`. Each turn
        reads the prompt, and the last one writes a short output.
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
        """Reserve the worst case of a call with `messages` and `coming_tokens` more.

        `shortest`: for the smallest output that is worth a call. `extra`: reserved in addition.
        Raises `BudgetExhausted` and `StoreFailed`.
        """
        tokens = await prompt_tokens(
            self.model, self._prompt(messages, (), None), self.health.counts
        )
        max_tokens = self.sampling.max_tokens
        if shortest:
            max_tokens = min_output_tokens(max_tokens)
        await ledger.reserve_for_answer(self._worst(tokens + coming_tokens, max_tokens) + extra)

    def limited(self, max_tokens: int) -> "Role":
        """Return the role with an output limit of at most `max_tokens`; 0 keeps the limit."""
        if not max_tokens:
            return self
        fewer = min(max_tokens, self.sampling.max_tokens)
        sampling = msgspec.structs.replace(self.sampling, max_tokens=fewer)
        return replace(
            self,
            sampling=sampling,
            fallbacks=tuple(fallback.limited(max_tokens) for fallback in self.fallbacks),
        )

    def malformed(self) -> MalformedOutput:
        """Return the error for output that cannot be parsed, even after a correction."""
        error = MalformedOutput(
            f"model {self.model.name!r} does not follow the protocol of its role, even after a "
            "correction; run `rolegate check --live`, or name another model",
            endpoint=self.model.endpoint,
        )
        error.role = self.name
        return error

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """All replicas of the model."""
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
