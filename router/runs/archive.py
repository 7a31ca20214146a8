"""Queries of stored runs."""

from collections.abc import AsyncIterator
from typing import Literal, Protocol

import msgspec

from router.trace import Run
from router.trace.run import Feedback, RunKind, RunStatus
from router.trace.table import TableOutcome
from router.trace.values import AnswerOutcome, TopologyName

MAX_LISTED_CHARS = 500
"""Max characters of a request in a list, so that a page of a thousand runs fits into a message."""


def shortened(text: str, max_chars: int) -> str:
    """Return a text, or its beginning with `…` if it has more than `max_chars` characters."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


class RunSummary(msgspec.Struct, frozen=True):
    """A run in a list."""

    id: str
    tenant: str
    kind: RunKind
    request_id: str
    request: str
    """At most `MAX_LISTED_CHARS` characters of it."""
    status: RunStatus
    outcome: AnswerOutcome | TableOutcome | None
    """None for kinds other than answers and tables, and while there is none."""
    started_at: float
    """Unix time, seconds."""
    duration_s: float
    answer: str = ""
    """The beginning of its answer, report or text."""
    topology: str = ""
    nano_usd: int | None = None
    """Known cost of its calls, in billionths of a dollar; None if no cost is known, and while it
    runs.
    """
    unsupported: bool = False
    """True for an answer with names or numbers that no evidence in a passage supports."""
    good: bool | None = None
    """The latest verdict of feedback on it; None if there is none."""


class RunFilter(msgspec.Struct, frozen=True):
    """A selection of runs; None and empty fields select everything."""

    tenant: str | None = None
    kind: RunKind | None = None
    """None for all kinds but shadows, which no client asked for."""
    status: RunStatus | None = None
    start: float | None = None
    """Select runs that started at this Unix time or later."""
    end: float | None = None
    """Select runs that started before this Unix time."""
    text: str = ""
    """Occurs in the request or in the beginning of the answer, ignoring case; SQLite ignores case
    only for ASCII letters.
    """
    outcome: AnswerOutcome | TableOutcome | None = None
    topology: TopologyName | None = None
    executor_version: str | None = None
    """Worked in the run; versions behind shared reports do not count."""
    unsupported: bool = False
    """Whether to select only unsupported answers."""
    feedback: Literal["good", "bad", "any"] | None = None
    min_nano_usd: int | None = None
    max_nano_usd: int | None = None
    training: bool = False
    """Whether to leave out runs that must not be used for training: shadows, and runs of tenants
    who opted out.
    """


class RunPage(msgspec.Struct, frozen=True):
    """A page of runs, newest first."""

    runs: tuple[RunSummary, ...]
    """Fewer than requested on the last page, and if a search over many runs matched few."""
    next_page: str
    """The token of the next page; empty at the end."""


class ExportedRun(msgspec.Struct, frozen=True):
    """An ended run with its feedback."""

    run: Run
    feedback: tuple[Feedback, ...]
    """Oldest first."""


class Archive(Protocol):
    """Stored runs. A run that `tenant` must not see is treated as missing.

    `tenant`: None sees all. Every method raises `StoreFailed`.
    """

    async def load(self, run_id: str, tenant: str | None = None) -> Run:
        """Return a run. A running or interrupted one has the calls that have ended so far. Raises
        `NotFound`.
        """

    async def list(
        self,
        wanted: RunFilter,
        size: int,
        page: str = "",
    ) -> RunPage:
        """Return at most `size` runs, newest first. Raises `BadRequest` for an unknown `page`
        token.
        """

    def export(self, wanted: RunFilter) -> AsyncIterator[ExportedRun]:
        """Yield all ended runs with their feedback, oldest first, redacted runs included."""

    async def add_feedback(self, feedback: Feedback) -> str:
        """Store feedback and return its identifier. Raises `NotFound` if its tenant does not see
        the run, and `BadRequest` if the run has `MAX_A_RUN` already.
        """

    async def feedback(self, run_id: str) -> tuple[Feedback, ...]:
        """Return the first `MAX_A_RUN` pieces of feedback on a run, oldest first; none for an
        unknown run.
        """

    async def request_cancel(self, run_id: str) -> None:
        """Ask the process that works on a run to cancel it; do nothing if the run has ended."""
