"""A role: a model with its prompt, its sampling and its timeouts."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec
import structlog

from router.amount import NOTHING, Amount
from router.calls.attempts import BYTES_PER_TOKEN, Attempts, OnText, least_tokens, prompt_tokens
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
from router.trace.turns import Agent

_log = structlog.get_logger("roles")


@dataclass(frozen=True, slots=True)
class Role:
    """Calls its model, or a fallback; every attempt is booked."""

    name: RoleName
    model: Model
    system: str
    """The system prompt."""
    sampling: Sampling
    attempts: int = 3
    """How often one call is tried while its endpoint is unavailable."""
    system_role: bool = True
    """False: what the system says is sent at the head of the user's turn. Traces keep the
    conversation as it is here; `prompts.without_system_role` gives what was sent.
    """
    context_tokens: int | None = None
    """What the model reads and writes at most; None where only its endpoint knows."""
    deployment: str = ""
    """Where the model is served, as the ledger names it; empty for its endpoint."""
    executor_version: str | None = None
    price: Price | None = None
    """None where it is not known, which is not zero."""
    streams: bool = True
    """Whether its calls are streamed, so that a cut one tells what it spent; False for models whose
    streams are not what a whole reply would be.
    """
    endpoint: Endpoint = field(default_factory=Endpoint)
    """How the deployment is doing."""
    others: tuple[Replica, ...] = ()
    """Further replicas of the model."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    health: RoleHealth = field(default_factory=RoleHealth)
    fallbacks: "tuple[Role, ...]" = ()
    """Who is asked instead, in this order, where its model is not to be had."""
    structured: bool = False
    """Whether patterns are passed on to the endpoint."""
    tool_calls: bool = False
    """Whether its model calls tools in a way of its own; otherwise in tags."""

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
        pattern: str | None = None,
        tools: tuple[Function, ...] = (),
        raw: bool = False,
        until: float = math.inf,
        on_text: OnText | None = None,
        on_delta: Callable[[Delta], None] | None = None,
    ) -> Completion:
        """The model's next turn or, where its model is not to be had, that of the first fallback
        whose is.

        `pattern`: what it has to match, where the endpoint can see to that. `tools`: for its own
        tool calls. `raw`: as for `Prompt`. `until`: when it is due, in the event loop's time; no
        pause is begun that would take longer. `on_text`, `on_delta`: as for `Attempts`. Raises
        `BudgetExhausted`, and `UpstreamError`, naming this role, once neither another attempt nor a
        fallback is worth it.
        """
        agent = Agent(self.name, sub_query)
        first: UpstreamError | None = None
        if (done := ledger.turn_before(agent, messages)) is not None:
            return done
        try:
            for role in (self, *self.fallbacks):
                if first:
                    _log.warning(
                        "role.fallback", role=self.name, model=role.model.name, error=str(first)
                    )
                    self.health.fallbacks = self.health.fallbacks + 1
                    purpose = "fallback"
                prompt = msgspec.structs.replace(
                    role._prompt(messages, stop, pattern), tools=tools, raw=raw
                )
                attempts = role._attempts(prompt, sub_query, ledger, purpose)
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
        self, prompt: Prompt, sub_query: int | None, ledger: Ledger, purpose: Purpose
    ) -> Attempts:
        bound = self._in_context(prompt_bound(prompt.texts))
        most = self.sampling.max_tokens
        at = self.replicas
        caller = Caller(
            self.name,
            self.model.name,
            at[0].deployment,
            sub_query,
            most,
            self.executor_version,
            self.price,
            bound,
        )
        return Attempts(
            prompt,
            ledger,
            caller,
            purpose,
            at,
            self.timeouts,
            self.health,
            self._worst,
            self.streams,
            self.attempts,
        )

    async def least(self, text: str, turns: int = 1) -> Amount:
        """Return the least that must be free for `turns` turns of a conversation that begins with
        `text`: what each of them reads, and a short output of the last one.
        """
        prompt = self._prompt(self.opening(text), (), None)
        usage = await self.model.count(prompt, "")
        counted = usage is not None and not usage.estimated
        tokens = (
            usage.prompt_tokens
            if usage and counted
            else prompt_bound(prompt.texts) // BYTES_PER_TOKEN
        )
        amount = self._worst(tokens, least_tokens(self.sampling.max_tokens))
        for _ in range(turns - 1):
            amount += self._worst(tokens, 0)
        return amount

    async def reserve_for_answer(
        self,
        messages: tuple[Message, ...],
        coming_tokens: int,
        ledger: Ledger,
        *,
        least: bool = False,
        beside: Amount = NOTHING,
    ) -> None:
        """Keep back what asking with `messages`, and `coming_tokens` more, may cost: by the model's
        own count, as it is kept for long, or else by bytes. `least`: for as little to be written as
        is worth it. `beside`: kept as well. Raises `BudgetExhausted` and `StoreFailed`.
        """
        tokens = await prompt_tokens(
            self.model, self._prompt(messages, (), None), self.health.counts
        )
        max_tokens = self.sampling.max_tokens
        await ledger.reserve_for_answer(
            self._worst(tokens + coming_tokens, least_tokens(max_tokens) if least else max_tokens)
            + beside
        )

    def limited(self, max_tokens: int) -> "Role":
        """The same role, writing at most `max_tokens` tokens, but never more than its own
        limit; 0 keeps that.
        """
        if not max_tokens:
            return self
        fewer = min(max_tokens, self.sampling.max_tokens)
        sampling = msgspec.structs.replace(self.sampling, max_tokens=fewer)
        return replace(
            self,
            sampling=sampling,
            fallbacks=tuple(other.limited(max_tokens) for other in self.fallbacks),
        )

    def malformed(self) -> MalformedOutput:
        """The error for what its model wrote, where nothing came of that."""
        said = (
            f"model {self.model.name!r} does not follow the protocol of its role, nor where "
            "it is corrected"
        )
        do = "see what `rolegate check --live` says of it, or name another model"
        error = MalformedOutput(f"{said}; {do}", endpoint=self.model.endpoint)
        error.role = self.name
        return error

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Everywhere its model is served."""
        return Replica(
            self.model, self.deployment or self.model.endpoint, self.endpoint
        ), *self.others

    def _prompt(
        self, messages: tuple[Message, ...], stop: tuple[str, ...], pattern: str | None
    ) -> Prompt:
        shown = messages if self.system_role else prompts.without_system_role(messages)
        return Prompt(shown, self.sampling, stop, pattern=pattern if self.structured else None)

    def _worst(self, prompt_tokens: int, max_tokens: int) -> Amount:
        prompt_tokens = self._in_context(prompt_tokens)
        nano_usd = self.price.most(prompt_tokens, max_tokens) if self.price else None
        return Amount(self._in_context(prompt_tokens + max_tokens), nano_usd)

    def _in_context(self, tokens: int) -> int:
        return tokens if self.context_tokens is None else min(tokens, self.context_tokens)
