"""What happens in a run, as it happens."""

from collections.abc import Callable
from dataclasses import dataclass

from router.execution import Execution


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """The delegator begins a decision."""

    round: int
    """From 1."""


@dataclass(frozen=True, slots=True)
class SubQueryDispatched:
    """A sub-query went to an executor."""

    index: int
    """The number of the sub-query in its run, from 0."""
    round: int
    sub_query: str


@dataclass(frozen=True, slots=True)
class SearchDone:
    """An executor's search returned."""

    index: int
    query: str
    titles: tuple[str, ...]
    """Best first."""


@dataclass(frozen=True, slots=True)
class Reported:
    """An executor ended."""

    index: int
    execution: Execution


@dataclass(frozen=True, slots=True)
class AnswerWritten:
    """The answer is there, not yet stored."""

    answer: str


Event = RoundStarted | SubQueryDispatched | SearchDone | Reported | AnswerWritten
Emit = Callable[[Event], None]
