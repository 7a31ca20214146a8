"""The context of one run, which is passed to all code that works for the run."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from router.background import loop_time
from router.errors import OutOfTime, UpstreamError
from router.frozen import Frozen
from router.ledger import Ledger
from router.protocol.style import DEFAULT_STYLE, AnswerStyle
from router.trace import Execution, Trajectory
from router.trace.scope import DEFAULT_SCOPE, Scope
from router.trace.values import AnswerOutcome, Condensing, OnEvent, Result

ANSWERING_SHARE = 0.2
"""The share of a run's time that is reserved for the answerer."""


@dataclass(slots=True)
class Draft:
    """Holds the run's result so far, which is stored even if the run fails or is cancelled."""

    result: Result | None = None
    condensing: Condensing | None = None
    """Record of how the question was rewritten, so that it can be understood without the
    conversation before it. None if the question was not rewritten.
    """

    @property
    def whole(self) -> Result | None:
        """The result so far, including `condensing`."""
        if self.condensing is None:
            return self.result
        result = self.result
        if not isinstance(result, Trajectory):  # the search has not begun
            result = Trajectory("", "clarify")
        return replace(result, condensing=self.condensing)


def has_evidence(execution: Execution) -> bool:
    """Return whether the execution's report has any evidence."""
    return bool(execution.report.evidence)


class Reporting(Frozen):
    """How the executors of a run write reports, and which reports the run's result may use."""

    form: str = ""
    """Name of the form in which executors write reports: a key of the argument `forms` of
    `Executor`. Empty for the default form.
    """
    is_grounds: Callable[[Execution], bool] = has_evidence
    """Returns whether the report of an execution may be used for the run's result."""
    max_joined_chars: int | None = None
    """Limit on the reports that a manager makes by joining the reports of its workers: max
    characters of the answer, and of each item of evidence. If None, the limit is as many characters
    as the manager's report may have tokens (`Manager.report_tokens`).
    """
    escalates: bool = True
    """Whether a sub-query is passed on to a second manager if the first manager's report names one.
    """


class RunContext(Frozen):
    """The ledger, the event listener, the deadlines and the settings of one run."""

    on_event: OnEvent
    deadline: float
    """Time at which the answer must be complete, in seconds of the event loop's clock."""
    search_deadline: float
    """Time at which searching ends, in seconds of the event loop's clock. It is before `deadline`,
    to leave time for the answer.
    """
    ledger: Ledger
    draft: Draft = msgspec.field(default_factory=Draft)
    sharing: bool = False
    """Whether this run and other runs of the same tenant reuse each other's reports."""
    scope: Scope = DEFAULT_SCOPE
    """The indexes and documents that the run may search."""
    reporting: Reporting = Reporting()
    manager: str = ""
    """Name of the manager that works on the sub-query. Empty for the default manager, or if the
    gateway has no managers.
    """
    style: AnswerStyle = DEFAULT_STYLE
    """Style of the answer."""
    streamed: bool = False
    """Whether the run emits the answer while it is written."""
    wasted: list[Execution] = []
    """Executions that finished but were discarded. Their reports may be shared with other runs, but
    not be used in this run.
    """
    failures: dict[int | None, UpstreamError] = {}
    """Errors by the number of the sub-query that failed. The key None has the error of the
    delegator or the answerer.
    """

    @asynccontextmanager
    async def searching(self) -> AsyncIterator[None]:
        """Limit the work inside the context to the search deadline. Raises `TimeoutError` when the
        deadline passes, and also on entry if it has already passed, so that no further call is
        made.
        """
        if loop_time() >= self.search_deadline:
            raise TimeoutError
        async with asyncio.timeout_at(self.search_deadline):
            yield

    def raise_without_evidence(self, outcome: AnswerOutcome) -> None:
        """Raise `OutOfTime` or `BudgetExhausted` if the search found nothing because time or budget
        ran out, according to `outcome`. Otherwise do nothing.
        """
        if outcome == "time_exhausted":
            raise OutOfTime(
                "The deadline passed before anything was found; pass a longer timeout (--timeout, "
                "timeout_s), raise server.timeout_s or, for tables, table.timeout_s, or use a "
                "faster model."
            )
        if outcome == "budget_exhausted" and self.ledger.refusal is not None:
            raise self.ledger.refusal

    @classmethod
    def lasting(
        cls,
        time_s: float,
        on_event: OnEvent,
        ledger: Ledger,
        *,
        answering_share: float = ANSWERING_SHARE,
        sharing: bool = False,
        scope: Scope = DEFAULT_SCOPE,
    ) -> "RunContext":
        """Return the context of a run that begins now and may take `time_s` seconds.

        `answering_share`: the share of that time that is reserved for the answerer. `sharing`:
        whether reports are shared with other runs of the tenant. `scope`: what the run may search.
        """
        now = loop_time()
        return cls(
            on_event,
            now + time_s,
            now + time_s * (1 - answering_share),
            ledger,
            sharing=sharing,
            scope=scope,
        )
