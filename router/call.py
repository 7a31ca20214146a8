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
    """Its prompt has no more tokens than this."""

    @property
    def request_id(self) -> str:
        """The name under which its engine and its logs know it."""
        return f"{self.run_id}-{self.number}"


class Call(OpenedCall, frozen=True, kw_only=True):
    """An attempt that has ended."""

    outcome: Outcome
    """`discarded`: it came to its end, but nobody wanted what it wrote; `unreachable`: its endpoint certainly did not
    begin; `unavailable`: it broke off, or nobody knows; `interrupted`: the gateway was killed while it ran.
    """
    usage: Usage | None
    """None where the engine did not say: unknown, not zero."""
    nano_usd: int | None
    """Billionths of a dollar; None where the usage or the price is unknown."""
    first_token_s: float | None
    """From the request to the first token; None where there was none, or the output came at once."""
    duration_s: float

    @property
    def wasted_tokens(self) -> int:
        """The known tokens of a call that nobody got the output of."""
        return 0 if self.outcome == "completed" or self.usage is None else self.usage.total_tokens

    @property
    def charged(self) -> Amount:
        """What it is counted as against budgets: what is known, or else the worst case."""
        if self.usage is None:
            return NOTHING if self.outcome in ("refused", "unreachable") else self.reserved
        return Amount(self.usage.total_tokens, self.nano_usd)
