"""One attempt of one upstream call: before it is made, and when it has ended."""

from typing import Literal

import msgspec

from router.amount import NOTHING, Amount
from router.model import Usage

RoleName = Literal["delegation", "execution", "answer", "judge"]
Purpose = Literal["first", "retry", "correction", "shortened", "hedge", "fallback", "shadow"]
Outcome = Literal[
    "completed", "discarded", "unreachable", "unavailable", "refused", "garbled", "cancelled", "failed", "interrupted"
]
WHOLE: tuple[Outcome, ...] = ("completed", "discarded")
"""Outcomes of calls that came to their end."""


class OpenedCall(msgspec.Struct, frozen=True):
    """An attempt that is about to be made."""

    run_id: str
    tenant: str
    number: int
    """Its number in its run, from 0."""
    role: RoleName
    model: str
    deployment: str
    """Where the model is served: an engine of ours, an address, or a provider."""
    executor_version: str | None
    """The version of the executor; None for the other roles."""
    purpose: Purpose
    """Why it runs. A correction asks again after malformed output, a shortened prompt after one that was too long; a
    hedge runs beside a slow call, a fallback instead of a model that is not to be had, a shadow beside the version that
    serves.
    """
    attempt: int
    """1 for the first attempt of a call."""
    sub_query: int | None
    """The number of the sub-query that it works on; None outside of execution."""
    max_tokens: int
    """What it may write at most."""
    reserved: Amount
    """What it may cost at most; nothing where nothing is limited."""
    started_at: float
    """Unix time, seconds."""
    prompt_bound: int = 0
    """Its prompt has no more tokens than this; 0 where that is not known, as of calls of older releases."""

    @property
    def request_id(self) -> str:
        """The name under which its engine and its logs know it."""
        return f"{self.run_id}-{self.number}"

    def allows(self, usage: Usage) -> bool:
        """Whether such a call can have this usage: a prompt that has tokens, within its bound, no more written than was
        asked for, parts within their totals, and no more in all than what was reserved.
        """
        read, written = usage.prompt_tokens, usage.completion_tokens
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
    """`discarded`: it came to its end, but nobody wanted what it wrote; `unreachable`: its endpoint certainly did not
    begin; `unavailable`: it broke off, or nobody knows; `interrupted`: the gateway was killed while it ran.
    """
    usage: Usage | None
    """None where the engine did not say, or said what cannot be: unknown, not zero."""
    nano_usd: int | None
    """Billionths of a dollar; None where the usage or the price is unknown."""
    first_token_s: float | None
    """From the request to the first token; None where there was none, or the output came at once."""
    duration_s: float
    impossible_usage: bool = False
    """True where the usage is unknown because what the engine said of it cannot be."""

    @property
    def wasted_tokens(self) -> int:
        """The known tokens of a call that nobody got the output of."""
        return 0 if self.outcome == "completed" or self.usage is None else self.usage.total_tokens

    @property
    def counted(self) -> str:
        """How its tokens are known: `reported`, `lower_bound` or `estimated`; `impossible` where what was reported
        cannot be, and empty where nothing was.
        """
        if self.usage is None:
            return "impossible" if self.impossible_usage else ""
        return "estimated" if self.usage.estimated else "lower_bound" if self.usage.lower_bound else "reported"

    @property
    def charged(self) -> Amount:
        """What it is counted as against budgets: what is known, or else the worst case."""
        if self.usage is None:
            return NOTHING if self.outcome in ("refused", "unreachable") else self.reserved
        return Amount(self.usage.total_tokens, self.nano_usd)
