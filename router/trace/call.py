"""Attempts of upstream calls (calls of models and rerankers), before they are made and after they
have ended; prices of models; and sums over attempts.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from router.amount import NOTHING, Amount
from router.frozen import Frozen
from router.models import Usage
from router.models.model import TOKEN_COUNTS

RoleName = Literal["delegation", "execution", "answer", "judge"]
AgentRole = RoleName | Literal["condense", "rerank"]
"""Function of an agent within a run. `condense`: the delegator's model rewrites a follow-up
question so that it can be understood without its conversation; its calls are booked on the role
`delegation`. `rerank`: the reranker orders the passages of an executor's searches; its calls are
booked on the role `execution`.
"""
Purpose = Literal[
    "first", "retry", "correction", "shortened", "fallback", "shadow", "condense", "rerank"
]
Layer = Literal["delegation", "management", "execution", "answer", "judge"]
Outcome = Literal[
    "completed",
    "wasted",
    "connect_error",
    "unavailable",
    "refused",
    "content_refused",
    "protocol_error",
    "cancelled",
    "failed",
    "interrupted",
]
COMPLETE_OUTCOMES: tuple[Outcome, ...] = ("completed", "wasted")
"""Outcomes of calls whose output is complete, whether it was used or discarded."""


class OpenedCall(Frozen, gc=False):
    """An attempt of an upstream call that is about to be made."""

    run_id: str
    tenant: str
    number: int
    """Number of the attempt within the run, from 0."""
    role: RoleName
    model: str
    deployment: str
    """Where the model is served: the name of an engine of the gateway, an address, or a provider.
    """
    executor_version: str | None
    """The version of the executor; None for other roles."""
    purpose: Purpose
    """Reason for the attempt. `first`: the first attempt of a call. `retry`: an earlier attempt of
    the call failed. `correction`: the previous output was malformed. `shortened`: the previous
    prompt was too long. `fallback`: the role's own model is unavailable. `shadow`: an executor
    version is tried alongside the version that serves. `condense`: a question is rewritten so that
    it can be understood without its conversation; retries have this purpose too. `rerank`: the
    passages of a search are reordered, also in a shadow run.
    """
    attempt: int
    """1 for the first attempt of a call, 2 for the second, and so on."""
    sub_query_index: int | None
    """The number of the sub-query; None for the delegator and the answerer."""
    max_tokens: int
    """Max tokens of the output."""
    reserved: Amount
    """The most that the attempt can spend: an amount in tokens, and one in billionths of a dollar.
    Both are 0 if the run has no limits on spending.
    """
    started_at: float
    """Unix time, seconds."""
    prompt_bound: int = 0
    """Upper bound of the prompt's tokens; 0 if unknown."""
    manager: str = ""
    """Name of the manager that the sub-query went to; empty if there is none."""
    worker: int | None = None
    """The number of the worker among its manager's workers, from 0; None for the manager itself."""
    key_id: str = ""
    """Public part of the API key of the run's request; empty if it had none."""

    @property
    def request_id(self) -> str:
        """Identifier of the attempt in requests to the engine, and in logs."""
        return f"{self.run_id}-{self.number}"

    def allows(self, usage: Usage) -> bool:
        """Return True if `usage` is possible for this attempt: the prompt is not empty and within
        its bound, the output is within `max_tokens`, cached tokens are within the prompt, reasoning
        tokens are within the output, and the total is within the reservation.
        """
        read = usage.prompt_tokens
        written = usage.completion_tokens
        return (
            0 < read <= (self.prompt_bound or read)
            and 0 <= written <= (self.max_tokens or written)
            and 0 <= (usage.cached_tokens or 0) <= read
            and 0 <= (usage.reasoning_tokens or 0) <= written
            and read + written <= (self.reserved.tokens or read + written)
        )


class Call(OpenedCall, frozen=True, kw_only=True):
    """An attempt that has ended."""

    outcome: Outcome
    """`completed`: the call returned a complete output. `wasted`: the call completed, but its
    output was discarded. `connect_error`: the endpoint was certainly not reached. `unavailable`:
    the endpoint failed, or the call broke off at an unknown point. `refused`: the endpoint refused
    the request. `content_refused`: the model or a content filter declined to answer.
    `protocol_error`: the reply was invalid. `cancelled`: the gateway stopped the call. `failed`:
    any other error. `interrupted`: the gateway was killed during the call.
    """
    usage: Usage | None
    """None if the usage is unknown, because the engine reported none or an impossible one."""
    nano_usd: int | None
    """Billionths of a dollar; None if the usage or the price is unknown."""
    first_token_s: float | None
    """Seconds from the request to the first token; None if there was no token, or if the output was
    not streamed.
    """
    duration_s: float
    impossible_usage: bool = False
    """True if `usage` is None because the engine reported an impossible usage."""

    def count(self, name: str) -> int | None:
        """Return a count of the call, such as its prompt tokens; None if unknown. `name`: one of
        `SUMMED_COUNTS`.
        """
        count: int | None = getattr(self.usage if name in TOKEN_COUNTS else self, name, None)
        return count

    @property
    def wasted_tokens(self) -> int:
        """Known tokens of a call whose output was not used; 0 for a `completed` call."""
        return 0 if self.outcome == "completed" or self.usage is None else self.usage.total_tokens

    @property
    def counted(self) -> str:
        """Reliability of the token counts: `reported` by the engine, `lower_bound` or `estimated`.
        If the counts are unknown, this is `impossible` if the engine reported numbers that cannot
        be right, else empty.
        """
        if self.usage is None:
            return "impossible" if self.impossible_usage else ""
        if self.usage.estimated:
            return "estimated"
        return "lower_bound" if self.usage.lower_bound else "reported"

    @property
    def charged(self) -> Amount:
        """The amount that counts against budgets: the known cost, or the reserved amount if the
        cost is unknown. Zero if the call certainly cost nothing.
        """
        if self.usage is None:
            return NOTHING if self.outcome in ("refused", "connect_error") else self.reserved
        return Amount(self.usage.total_tokens, self.nano_usd)


MAX_DOLLARS = 100_000
"""Max price per million tokens in US dollars. It is a hundred times the price of the most expensive
model so far, and small enough that sums fit into the integers of every database.
"""


class Price(Frozen, forbid_unknown_fields=True, kw_only=True):
    """Prices of a model, in US dollars per million tokens."""

    prompt: float
    """Price of prompt tokens (input)."""
    completion: float
    """Price of completion tokens (output, including the model's thinking)."""
    cached: float | None = None
    """Price of prompt tokens from the provider's cache. Absent: the price of other prompt tokens.
    """

    @property
    def impossible(self) -> list[str]:
        """Names of the fields whose price is negative, above `MAX_DOLLARS`, or not a number."""
        return [
            name
            for name in self.__struct_fields__
            if not 0 <= (getattr(self, name) or 0.0) <= MAX_DOLLARS
        ]

    def cost(self, usage: Usage) -> int:
        """Return the cost of a call with this usage in billionths of a dollar. It is rounded to a
        whole number, so that sums are exact.
        """
        cached = usage.cached_tokens or 0
        per_cached = self.prompt if self.cached is None else self.cached
        dollars_for_a_million = (
            (usage.prompt_tokens - cached) * self.prompt
            + cached * per_cached
            + usage.completion_tokens * self.completion
        )
        return round(dollars_for_a_million * 1000)

    def max_cost(
        self,
        prompt_tokens: int,
        completion_tokens: int,
    ) -> int:
        """Return the max cost of this many tokens in billionths of a dollar. Prompt tokens count at
        the higher of the two prices `prompt` and `cached`.
        """
        per_prompt = max(self.prompt, self.cached or 0.0)
        return round((prompt_tokens * per_prompt + completion_tokens * self.completion) * 1000)


class UsageSums(Frozen, kw_only=True):
    """Sums over attempts. Database columns, reports and wire messages are derived from these
    fields.

    Fields that do not begin with `attempts` sum the field or property of the same name in `Call` or
    `Usage`.
    """

    attempts: int = 0
    attempts_without_usage: int = 0
    attempts_without_cost: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens from the engines' caches; None if no attempt reported a count. The same applies
    to `reasoning_tokens`.
    """
    reasoning_tokens: int | None = None
    wasted_tokens: int = 0
    nano_usd: int | None = None
    """Billionths of a dollar; None if no attempt's cost is known."""


SUMS = UsageSums.__struct_fields__
SUMMED_COUNTS = tuple(name for name in SUMS if not name.startswith("attempts"))
"""Names of the fields of `UsageSums` that sum a count of each attempt, such as its prompt tokens.
The other fields are numbers of attempts.
"""


class RoleTotal(UsageSums, frozen=True, kw_only=True):
    """Sums over the calls of one role with one model."""

    role: RoleName
    model: str
    manager: str = ""
    """Name of the manager that made the calls, or whose workers made them; empty if there is none.
    """


def layer_of(spent: OpenedCall | RoleTotal) -> Layer:
    """Return the layer that made the call or calls. It equals the role, except that a manager's own
    calls have the role `delegation` and the layer `management`.
    """
    return "management" if spent.manager and spent.role == "delegation" else spent.role


def totals(calls: Iterable[Call]) -> list[RoleTotal]:
    """Return the sums of `calls` for each combination of role, model and manager. Combinations are
    in the order of their first calls.
    """
    groups = dict[tuple[RoleName, str, str], list[Call]]()
    for call in calls:
        groups.setdefault((call.role, call.model, call.manager), []).append(call)
    return [
        RoleTotal(
            role=role,
            model=model,
            manager=manager,
            **sums_of(members),
        )
        for (role, model, manager), members in groups.items()
    ]


def sums_of(calls: Sequence[Call]) -> dict[str, Any]:
    """Return the values of the fields of `UsageSums`, summed over `calls`."""
    counts = {name: sum_known([call.count(name) for call in calls]) for name in SUMMED_COUNTS}
    sums = UsageSums(
        attempts=len(calls),
        attempts_without_usage=sum(call.usage is None for call in calls),
        attempts_without_cost=sum(call.nano_usd is None for call in calls),
        **{name: count for name, count in counts.items() if count is not None},
    )
    return msgspec.structs.asdict(sums)


def added(sums: Sequence[UsageSums]) -> dict[str, Any]:
    """Return the values of the fields of `UsageSums`: for each field, the sum over `sums`, which
    must not be empty.
    """
    return {name: sum_known([getattr(part, name) for part in sums]) for name in SUMS}


def sum_known(counts: Sequence[int | None]) -> int | None:
    """Return the sum of the known counts; None if none is known."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
