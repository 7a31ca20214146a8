"""The ledger of one run: exactly one row for every attempt of every upstream call."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import msgspec

from router.errors import UpstreamError, UpstreamGarbled, UpstreamRefused, UpstreamUnavailable
from router.model import Usage

RoleName = Literal["delegation", "execution", "answer"]
Purpose = Literal["first", "retry", "correction", "shortened"]
Outcome = Literal["completed", "unavailable", "refused", "garbled", "cancelled", "failed"]

_OUTCOMES: dict[type[UpstreamError], Outcome] = {
    UpstreamUnavailable: "unavailable",
    UpstreamRefused: "refused",
    UpstreamGarbled: "garbled",
}


class Call(msgspec.Struct, frozen=True):
    """One attempt of one upstream call."""

    role: RoleName
    model: str
    endpoint: str
    purpose: Purpose
    """Why it ran; a correction asks again after malformed output, a shortened prompt after one that was too long."""
    attempt: int
    """1 for the first attempt of a call."""
    sub_query: int | None
    """The number of the sub-query that it worked on; None outside of execution."""
    outcome: Outcome
    usage: Usage | None
    """None where the engine did not say: unknown, not zero."""
    lower_bound: bool
    """True where the call was cut, so that `usage` is only what had been reported by then."""
    started_at: float
    """Unix time, seconds."""
    duration_s: float


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls whom, and for what."""

    role: RoleName
    model: str
    endpoint: str
    sub_query: int | None


class Attempt:
    """An attempt under way; whoever makes the call notes the usage here."""

    def __init__(self) -> None:
        self.usage: Usage | None = None


class RoleTotal(msgspec.Struct, frozen=True):
    """Tokens of one role with one model."""

    role: RoleName
    model: str
    attempts: int
    attempts_without_usage: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    reasoning_tokens: int | None


class Ledger:
    """Collects the rows of one run in the order in which the attempts ended."""

    def __init__(self) -> None:
        self._calls: list[Call] = []

    @property
    def calls(self) -> tuple[Call, ...]:
        """The rows so far."""
        return tuple(self._calls)

    @contextmanager
    def attempt(self, caller: Caller, purpose: Purpose, number: int) -> Iterator[Attempt]:
        """Book what happens inside as one row, however it ends."""
        attempt = Attempt()
        started_at, begun = time.time(), time.monotonic()
        outcome: Outcome = "cancelled"
        try:
            yield attempt
            outcome = "completed"
        except Exception as error:
            outcome = next((name for kind, name in _OUTCOMES.items() if isinstance(error, kind)), "failed")
            raise
        finally:
            self._calls.append(
                Call(
                    role=caller.role,
                    model=caller.model,
                    endpoint=caller.endpoint,
                    purpose=purpose,
                    attempt=number,
                    sub_query=caller.sub_query,
                    outcome=outcome,
                    usage=attempt.usage,
                    lower_bound=attempt.usage is not None and (attempt.usage.lower_bound or outcome != "completed"),
                    started_at=started_at,
                    duration_s=time.monotonic() - begun,
                )
            )


def totals(calls: tuple[Call, ...]) -> list[RoleTotal]:
    """Sums by role and model, in the order in which roles first spent."""
    groups: dict[tuple[RoleName, str], list[Call]] = {}
    for call in calls:
        groups.setdefault((call.role, call.model), []).append(call)
    return [_total(role, model, members) for (role, model), members in groups.items()]


def _total(role: RoleName, model: str, calls: list[Call]) -> RoleTotal:
    known = [call.usage for call in calls if call.usage is not None]
    return RoleTotal(
        role=role,
        model=model,
        attempts=len(calls),
        attempts_without_usage=len(calls) - len(known),
        prompt_tokens=sum(usage.prompt_tokens for usage in known),
        completion_tokens=sum(usage.completion_tokens for usage in known),
        cached_tokens=sum_known([usage.cached_tokens for usage in known]),
        reasoning_tokens=sum_known([usage.reasoning_tokens for usage in known]),
    )


def sum_known(counts: list[int | None]) -> int | None:
    """The sum of what is known; None where nothing is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
