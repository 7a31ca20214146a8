"""The context of one run: ledger, event listener, deadlines."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from router.errors import OutOfTime, UpstreamError
from router.ledger import Ledger
from router.trace import Execution
from router.trace.values import AnswerOutcome, OnEvent, Result

ANSWERING_SHARE = 0.2
"""The share of a run's time that is reserved for the answerer."""


@dataclass(slots=True)
class Draft:
    """The run's result so far, which is stored however the run ends."""

    result: Result | None = None


def has_evidence(execution: Execution) -> bool:
    """Return whether an execution's report carries evidence."""
    return bool(execution.report.evidence)


@dataclass(frozen=True, slots=True)
class Reporting:
    """How the executors of a run report, and which reports a result may rest on."""

    form: str = ""
    """The key of the agent in the executor's `forms`; empty for its default agent."""
    is_grounds: Callable[[Execution], bool] = has_evidence
    """Whether a result may rest on this execution."""
    max_joined_chars: int | None = None
    """Max characters of each text when a manager joins reports; None for its `report_tokens`."""
    escalates: bool = True
    """Whether managers pass a sub-query on to the manager that a report names."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """The ledger, the event listener and the deadlines of one run."""

    on_event: OnEvent
    deadline: float
    """When the answer is due, by the event loop's clock."""
    search_deadline: float
    """When searching ends, which leaves time to answer from what was found."""
    ledger: Ledger
    draft: Draft = field(default_factory=Draft)
    sharing: bool = False
    """Whether it uses reports of its tenant's other runs, and gives them its own."""
    reporting: Reporting = Reporting()
    manager: str = ""
    """The manager that a sub-query is for; empty where none is named."""
    wasted: list[Execution] = field(default_factory=list)
    """Executions that finished but were discarded. Other runs may use their reports, this one
    may not.
    """
    failures: dict[int | None, UpstreamError] = field(default_factory=dict)
    """Errors by the number of the failed sub-query; under None, the error of the delegator or the
    answerer.
    """

    @asynccontextmanager
    async def searching(self) -> AsyncIterator[None]:
        """Limit the work inside to the search deadline; raise `TimeoutError` beyond it. No work
        begins after the deadline, so that no call is opened in vain.
        """
        if asyncio.get_running_loop().time() >= self.search_deadline:
            raise TimeoutError
        async with asyncio.timeout_at(self.search_deadline):
            yield

    def raise_without_evidence(self, outcome: AnswerOutcome) -> None:
        """Raise `OutOfTime` or `BudgetExhausted` if that is why the search found nothing."""
        if outcome == "time_exhausted":
            raise OutOfTime(
                "Time ran out before anything was found; allow a longer deadline or a faster model."
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
    ) -> "RunContext":
        """Return the context of a run that begins now and may take `time_s` seconds."""
        now = asyncio.get_running_loop().time()
        return cls(
            on_event,
            now + time_s,
            now + time_s * (1 - answering_share),
            ledger,
            sharing=sharing,
        )
