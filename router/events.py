"""What happens in a run, as it happens."""

from collections.abc import Callable, Iterable

import msgspec

from router.execution import Execution


class RunStarted(msgspec.Struct, frozen=True, tag=True):
    """The run is on record."""

    run_id: str


class RoundStarted(msgspec.Struct, frozen=True, tag=True):
    """The delegator begins a decision."""

    round: int
    """From 1."""


class SubQueryDispatched(msgspec.Struct, frozen=True, tag=True):
    """A sub-query went to an executor."""

    index: int
    """The number of the sub-query in its run, from 0."""
    round: int
    sub_query: str


class SearchDone(msgspec.Struct, frozen=True, tag=True):
    """A search returned."""

    index: int
    """That of the sub-query; -1 where the main agent itself searched."""
    query: str
    titles: tuple[str, ...]
    """Best first."""


class Reported(msgspec.Struct, frozen=True, tag=True):
    """An executor ended."""

    index: int
    execution: Execution | None
    """None in a stored run, whose result holds it."""


class AnswerWritten(msgspec.Struct, frozen=True, tag=True):
    """The answer is there, not yet stored."""

    answer: str


Event = RunStarted | RoundStarted | SubQueryDispatched | SearchDone | Reported | AnswerWritten
Emit = Callable[[Event], None]


def brief(events: Iterable[Event]) -> tuple[Event, ...]:
    """The same without executions, for where the run's result is beside them."""
    return tuple(Reported(event.index, None) if isinstance(event, Reported) else event for event in events)
