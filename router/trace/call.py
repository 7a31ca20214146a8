"""One attempt of one upstream call: before it is made, and when it has ended."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from router.amount import NOTHING, Amount
from router.models import Usage
from router.models.model import TOKEN_COUNTS

RoleName = Literal["delegation", "execution", "answer", "judge"]
Purpose = Literal["first", "retry", "correction", "shortened", "fallback", "shadow"]
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
WHOLE: tuple[Outcome, ...] = ("completed", "wasted")
"""Outcomes of calls that came to their end."""


class OpenedCall(msgspec.Struct, frozen=True, gc=False):
    """An attempt that is about to be made."""

    run_id: str
    tenant: str
    number: int
    """Its number in its run, from 0."""
    role: RoleName
    model: str
    deployment: str
    """The place where the model is served: an engine of ours, an address, or a provider."""
    executor_version: str | None
    """The version of the executor; None for the other roles."""
    purpose: Purpose
    """The reason for it. A correction asks again after malformed output, a shortened prompt after
    one that was too long; a fallback stands in for a model that is not to be had, a shadow works
    beside the version that serves.
    """
    attempt: int
    """1 for the first attempt of a call."""
    sub_query: int | None
    """The number of the sub-query that it works on; None for those who lead the run and write
    its answer.
    """
    max_tokens: int
    """The most that it may write, in tokens."""
    reserved: Amount
    """The most that it may cost; nothing where nothing is limited."""
    started_at: float
    """Unix time, seconds."""
    prompt_bound: int = 0
    """Its prompt has no more tokens than this; 0 where that is not known."""
    manager: str = ""
    """The manager that the sub-query went to; empty where an executor works on it itself."""
    worker: int | None = None
    """The number of the worker among those of the manager, from 0; None for the manager itself."""

    @property
    def request_id(self) -> str:
        """The name under which its engine and its logs know it."""
        return f"{self.run_id}-{self.number}"

    def allows(self, usage: Usage) -> bool:
        """True where such a call can have this usage: a prompt that has tokens, within its bound,
        no more written than asked for, parts within their totals, and no more in all than what was
        reserved.
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
    """`wasted`: it came to its end, but nobody wanted what it wrote; `connect_error`: its endpoint
    certainly did not begin; `unavailable`: it broke off, or nobody knows; `content_refused`: the
    model, or a content filter, declined; `interrupted`: the gateway was killed while it ran.
    """
    usage: Usage | None
    """None where the engine did not say, or said what cannot be: unknown, not zero."""
    nano_usd: int | None
    """Billionths of a dollar; None where the usage or the price is unknown."""
    first_token_s: float | None
    """From the request to the first token; None where there was none, or the output came at
    once.
    """
    duration_s: float
    impossible_usage: bool = False
    """True where the usage is unknown because what the engine said of it cannot be."""

    def count(self, name: str) -> int | None:
        """One of `SUMMED_COUNTS`; None where it is unknown."""
        count: int | None = getattr(self.usage if name in TOKEN_COUNTS else self, name, None)
        return count

    @property
    def wasted_tokens(self) -> int:
        """The known tokens of a call that nobody got the output of."""
        return 0 if self.outcome == "completed" or self.usage is None else self.usage.total_tokens

    @property
    def counted(self) -> str:
        """The source of its counts: `reported`, `lower_bound` or `estimated`; `impossible` where
        what was reported cannot be, and empty where nothing was.
        """
        if self.usage is None:
            return "impossible" if self.impossible_usage else ""
        return (
            "estimated"
            if self.usage.estimated
            else "lower_bound"
            if self.usage.lower_bound
            else "reported"
        )

    @property
    def charged(self) -> Amount:
        """The amount that counts against budgets: what is known, or else the worst case."""
        if self.usage is None:
            return NOTHING if self.outcome in ("refused", "connect_error") else self.reserved
        return Amount(self.usage.total_tokens, self.nano_usd)


MOST_DOLLARS = 100_000
"""For a million tokens: a hundred times what any model has cost, and little enough for every
database to sum.
"""


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """US dollars for a million tokens."""

    prompt: float
    completion: float
    cached: float | None = None
    """Prompt tokens from the provider's cache; absent, they cost what others cost."""

    @property
    def impossible(self) -> list[str]:
        """The fields that no price can have: less than nothing, more than `MOST_DOLLARS`, or no
        number.
        """
        return [
            name
            for name in self.__struct_fields__
            if not 0 <= (getattr(self, name) or 0.0) <= MOST_DOLLARS
        ]

    def cost(self, usage: Usage) -> int:
        """The cost of a call, in billionths of a dollar: whole numbers, so that sums are exact."""
        cached = usage.cached_tokens or 0
        per_cached = self.prompt if self.cached is None else self.cached
        dollars_for_a_million = (
            (usage.prompt_tokens - cached) * self.prompt
            + cached * per_cached
            + usage.completion_tokens * self.completion
        )
        return round(dollars_for_a_million * 1000)

    def most(self, prompt_tokens: int, completion_tokens: int) -> int:
        """The most that so many tokens can cost, whatever is cached, in billionths of a dollar."""
        per_prompt = max(self.prompt, self.cached or 0.0)
        return round((prompt_tokens * per_prompt + completion_tokens * self.completion) * 1000)


class UsageSums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over attempts; tables, reports and the wire follow from these fields.

    A count that is no number of attempts is named as in `Call` or `Usage`.
    """

    attempts: int = 0
    attempts_without_usage: int = 0
    attempts_without_cost: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    """None where no attempt reported any."""
    reasoning_tokens: int | None = None
    wasted_tokens: int = 0
    nano_usd: int | None = None
    """Billionths of a dollar; None where no attempt's cost is known."""


SUMS = UsageSums.__struct_fields__
SUMMED_COUNTS = tuple(name for name in SUMS if not name.startswith("attempts"))
"""The sums of calls' own counts."""


class RoleTotal(UsageSums, frozen=True, kw_only=True):
    """Sums of one role with one model."""

    role: RoleName
    model: str
    manager: str = ""
    """The manager that spent it, or whose workers did; empty where there was none."""


def layer_of(spent: OpenedCall | RoleTotal) -> Layer:
    """The layer that spent it: the role, but for managers, who delegate under a delegator."""
    return "management" if spent.manager and spent.role == "delegation" else spent.role


def totals(calls: Iterable[Call]) -> list[RoleTotal]:
    """Sums by role, model and manager, in the order in which they first spent."""
    groups: dict[tuple[RoleName, str, str], list[Call]] = {}
    for call in calls:
        groups.setdefault((call.role, call.model, call.manager), []).append(call)
    return [
        RoleTotal(role=role, model=model, manager=manager, **sums_of(members))
        for (role, model, manager), members in groups.items()
    ]


def sums_of(calls: Sequence[Call]) -> dict[str, Any]:
    """The fields of `UsageSums` over calls."""
    counts = {name: sum_known([call.count(name) for call in calls]) for name in SUMMED_COUNTS}
    sums = UsageSums(
        attempts=len(calls),
        attempts_without_usage=sum(call.usage is None for call in calls),
        attempts_without_cost=sum(call.nano_usd is None for call in calls),
        **{name: count for name, count in counts.items() if count is not None},
    )
    return msgspec.structs.asdict(sums)


def added(sums: Sequence[UsageSums]) -> dict[str, Any]:
    """The fields of `UsageSums` over sums, of which there is at least one."""
    return {name: sum_known([getattr(each, name) for each in sums]) for name in SUMS}


def sum_known(counts: Sequence[int | None]) -> int | None:
    """The sum of what is known; None where nothing is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
