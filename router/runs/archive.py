"""What is read of stored runs."""

from collections.abc import AsyncIterator
from typing import Literal, Protocol

import msgspec

from router.trace import Run
from router.trace.run import Feedback, RunKind, RunStatus
from router.trace.table import TableOutcome, TableTopologyName
from router.trace.values import AnswerOutcome, TopologyName

MAX_LISTED_CHARS = 500
"""Of a request in a list, so that a page of a thousand fits into a message."""


def shortened(text: str, most: int) -> str:
    """The same, or where it has more than `most` characters its beginning with `…`."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


class RunSummary(msgspec.Struct, frozen=True):
    """A run in a list."""

    id: str
    tenant: str
    kind: RunKind
    request_id: str
    request: str
    """At most `MAX_LISTED_CHARS` of it."""
    status: RunStatus
    outcome: AnswerOutcome | TableOutcome | None
    """None for other kinds than answers and tables, and where there is none yet."""
    started_at: float
    """Unix time, seconds."""
    duration_s: float
    answer: str = ""
    """The beginning of its answer, report or text."""
    topology: str = ""
    nano_usd: int | None = None
    """Billionths of a dollar of its calls, as far as they are known; None where none is, and
    while it runs.
    """
    unsupported: bool = False
    """True for an answer whose names or numbers stand in no evidence that a passage holds."""
    good: bool | None = None
    """The last verdict of feedback on it; None where there is none."""


class RunFilter(msgspec.Struct, frozen=True):
    """A choice of runs; what is None or empty leaves nothing out."""

    tenant: str | None = None
    kind: RunKind | None = None
    """None leaves out shadows: nobody asked for them."""
    status: RunStatus | None = None
    start: float | None = None
    """Started at this Unix time or later."""
    end: float | None = None
    """Started before this Unix time."""
    text: str = ""
    """Stands in its request or in the beginning of its answer, in large or small letters; SQLite
    knows those of English alone.
    """
    outcome: AnswerOutcome | TableOutcome | None = None
    topology: TopologyName | TableTopologyName | None = None
    executor_version: str | None = None
    """Worked in it; not where others' reports were shared."""
    unsupported: bool = False
    """Leave out all but answers that are unsupported."""
    feedback: Literal["good", "bad", "any"] | None = None
    least_nano_usd: int | None = None
    most_nano_usd: int | None = None
    training: bool = False
    """Leave out what must not train: runs of tenants who do not want it, and shadows of
    whomever's.
    """


class RunPage(msgspec.Struct, frozen=True):
    """Some of the runs, newest first."""

    runs: tuple[RunSummary, ...]
    """Fewer than were wanted at the end, and where many were looked through in vain."""
    next_page: str
    """What to ask the next page with; empty at the end."""


class ExportedRun(msgspec.Struct, frozen=True):
    """A run that has ended, and what was said of it."""

    run: Run
    feedback: tuple[Feedback, ...]
    """Oldest first."""


class Archive(Protocol):
    """Stored runs, by whoever may see them; what may not be seen is as if it were not there.

    `tenant`: None sees all. Every method raises `StoreFailed`.
    """

    async def load(self, run_id: str, tenant: str | None = None) -> Run:
        """A run; one that runs or was interrupted has the calls that have ended by then. Raises
        `NotFound`.
        """

    async def list(self, wanted: RunFilter, size: int, page: str = "") -> RunPage:
        """At most `size` runs, newest first. Raises `BadRequest` for a `page` that no list gave."""

    def export(self, wanted: RunFilter) -> AsyncIterator[ExportedRun]:
        """All runs that have ended, with their feedback, oldest first, read in pieces; redacted
        ones too.
        """

    async def add_feedback(self, feedback: Feedback) -> str:
        """Keep feedback; its identifier. Raises `NotFound`, where its tenant does not see the run,
        and `BadRequest` where the run has `MAX_A_RUN` already.
        """

    async def feedback(self, run_id: str) -> tuple[Feedback, ...]:
        """The first `MAX_A_RUN` that were said of a run, oldest first; nothing of one that is
        not there.
        """

    async def request_cancel(self, run_id: str) -> None:
        """Ask the process that works on it to cancel a run; of no effect on one that has ended."""
