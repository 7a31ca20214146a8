"""The interface of the archive of stored runs, and the values of its queries."""

from collections.abc import AsyncIterator, Sequence
from typing import Literal, NamedTuple, Protocol

from router.frozen import Frozen
from router.trace import Call, Event, Run
from router.trace.run import Feedback, RunKind, RunStatus
from router.trace.table import TableOutcome
from router.trace.values import AnswerOutcome, TopologyName

MAX_LISTED_CHARS = 500
"""Max characters of a request's text in a list of runs, so that a page of a thousand runs fits into
one gRPC message.
"""


def shortened(text: str, max_chars: int) -> str:
    """Return `text`, shortened to `max_chars` characters with `…` at the end if it is longer."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


class RunSummary(Frozen):
    """An entry of a list of runs."""

    id: str
    tenant: str
    kind: RunKind
    request_id: str
    request: str
    """The question, sub-query or last message, shortened to `MAX_LISTED_CHARS` characters. If a
    question was rewritten because of its conversation, the rewritten question comes first, then the
    original question.
    """
    status: RunStatus
    outcome: AnswerOutcome | TableOutcome | None
    """Outcome of an answer or a table; None for other kinds of runs, and for a run without a
    result.
    """
    started_at: float
    """Unix time, seconds."""
    duration_s: float
    answer: str = ""
    """The beginning of the run's answer, report or completion."""
    topology: str = ""
    nano_usd: int | None = None
    """Sum of the known costs of the run's calls, in billionths of a dollar. None if no cost is
    known, and while the run is under way.
    """
    unsupported: bool = False
    """True if the answer has names or numbers that no cited evidence contains."""
    key_id: str = ""
    """Public part of the API key of the request; empty for a request without a key."""
    good: bool | None = None
    """Latest verdict in the feedback on the run: True for right, False for wrong; None if there is
    no verdict.
    """


class RunFilter(Frozen):
    """A selection of runs: those that match every field. Fields that are None or empty match all
    runs.
    """

    tenant: str | None = None
    kind: RunKind | None = None
    """None selects all kinds except `shadow`. The gateway makes shadow runs to try executor
    versions.
    """
    status: RunStatus | None = None
    start: float | None = None
    """Select runs that started at this Unix time or later."""
    end: float | None = None
    """Select runs that started before this Unix time."""
    text: str = ""
    """Select runs if their request, or the beginning of their answer, contains this text. The
    search ignores case; in SQLite, it ignores only the case of ASCII letters.
    """
    outcome: AnswerOutcome | TableOutcome | None = None
    topology: TopologyName | None = None
    executor_version: str | None = None
    """Select runs in which this version of the executor worked. A run that only reused reports of
    this version from another run is not selected.
    """
    unsupported: bool = False
    """True selects only answers with names or numbers that no cited evidence contains."""
    feedback: Literal["right", "wrong", "any"] | None = None
    """Select runs with feedback: `right` or `wrong` for feedback with this verdict on the answer,
    `any` for any feedback. See `Feedback.good`.
    """
    key_id: str = ""
    """Select runs of requests with this API key. The value is the public part of the key."""
    training: bool = False
    """True leaves out runs that must not be used for training: shadow runs, and runs of tenants
    that do not permit training.
    """


class RunPage(Frozen):
    """A page of runs, newest first."""

    runs: tuple[RunSummary, ...]
    """The runs. There may be fewer than requested, not only on the last page: the archive stops
    early if it has examined many runs and few of them match.
    """
    next_page: str
    """The token of the next page; empty on the last page."""


class RunFigures(Frozen):
    """Figures of the runs that started in a span of time."""

    runs: int = 0
    right: int = 0
    """Number of runs whose latest verdict in feedback is that the answer is right."""
    wrong: int = 0
    failed: int = 0
    unsupported: int = 0
    nano_usd: int | None = None
    """Sum of the known costs, in billionths of a dollar; None if no cost is known."""
    p50_s: float | None = None
    """Median duration of the finished runs, in seconds; None if no run has finished."""
    p95_s: float | None = None
    """Duration in seconds that 95 % of the finished runs did not exceed; None if none has finished.
    """


class ExportedRun(Frozen):
    """An ended run with its feedback: an entry of an export."""

    run: Run
    feedback: tuple[Feedback, ...]
    """Oldest first."""


class Progress(NamedTuple):
    """Everything that has happened so far in a run that is under way."""

    events: Sequence[Event] = ()
    calls: Sequence[Call] = ()
    """Calls that have ended, in the order of their ends."""


class Archive(Protocol):
    """Access to stored runs. Every method raises `StoreFailed` if the store fails.

    The parameter `tenant` of the methods is the tenant of the caller: runs of other tenants are
    treated as if they did not exist. For the operator, it is None, which gives access to all runs.
    """

    async def load(self, run_id: str, tenant: str | None = None) -> Run:
        """Return the run with this identifier. If the run is under way or was interrupted, it
        contains only the calls that have ended. Raises `NotFound` if there is no such run.
        """

    async def list(
        self,
        wanted: RunFilter,
        size: int,
        page: str = "",
    ) -> RunPage:
        """Return at most `size` runs that match `wanted`, newest first.

        `page`: `next_page` of the previous page; empty for the first page. Raises `BadRequest` if
        the token is invalid.
        """

    async def figures(self, wanted: RunFilter, starts: Sequence[float]) -> Sequence[RunFigures]:
        """Return the figures of the runs that match `wanted`, for each span of time.

        `starts`: Unix times at which the spans begin, in ascending order; the first must not be
        after `wanted.start`. Each span ends where the next span begins, and the last span ends at
        `wanted.end`.
        """

    def export(self, wanted: RunFilter) -> AsyncIterator[ExportedRun]:
        """Yield all ended runs that match `wanted`, with their feedback, oldest first. Runs whose
        texts are not stored are included.
        """

    async def add_feedback(self, feedback: Feedback) -> str:
        """Store feedback on a run. Return the identifier of the feedback.

        Raises `NotFound` if the run does not exist or belongs to another tenant than the feedback.
        Raises `BadRequest` if the run already has `MAX_A_RUN` pieces of feedback.
        """

    async def feedback(self, run_id: str) -> tuple[Feedback, ...]:
        """Return the feedback on a run, oldest first, at most `MAX_A_RUN` pieces. Return an empty
        tuple if there is no such run.
        """

    async def request_cancel(self, run_id: str) -> None:
        """Ask the process that works on a run to cancel it. Does nothing if the run has ended."""

    async def progress(self, run_id: str, after: int = 0) -> Progress | None:
        """Return the events and calls so far of a run that another gateway is running; None if no
        other gateway is running it. The first call asks the other gateway to write the run's
        progress to the store, every half second from then on. `after`: return only events with
        numbers above this number, and no calls; 0 for all events and calls.
        """
