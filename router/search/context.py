"""The context of one run: ledger, listener, clock."""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from router.errors import OutOfTime, UpstreamError
from router.ledger import Ledger
from router.trace import Execution
from router.trace.values import AnswerOutcome, OnEvent, Result

Sharing = Literal["nobody", "tenant", "everybody"]
ANSWERING_SHARE = 0.2
"""The share of a run's time that is kept for the answerer."""


@dataclass(slots=True)
class Draft:
    """The result of a run as far as it has come: what is stored however it ends."""

    result: Result | None = None


@dataclass(frozen=True, slots=True)
class RunContext:
    """The ledger, the listener and the clock of one run."""

    on_event: OnEvent
    deadline: float
    """The time at which the answer is due, by the event loop's clock."""
    search_deadline: float
    """The time at which searching ends, so that there is time to answer from what was found."""
    ledger: Ledger
    draft: Draft = field(default_factory=Draft)
    sharing: Sharing = "nobody"
    """Those whose reports it may use, and who may use its own: other runs of its tenant, or
    also other tenants'.
    """
    tabular: bool = False
    """Whether executors report rows and cells, by their prompt for tables."""
    manager: str = ""
    """The manager that a sub-query is for; empty where none is named."""
    executor: str = ""
    """The version of the executor that is to work in it; empty for the one whose turn it is."""
    wasted: list[Execution] = field(default_factory=list)
    """Finished for nothing: other runs may use these, but this one goes on as if they had never
    been begun.
    """
    failures: dict[int | None, UpstreamError] = field(default_factory=dict)
    """Errors by the numbers of sub-queries that could not be looked up; under None, the error of
    the models that lead the run and write the answer.
    """

    def raise_without_evidence(self, outcome: AnswerOutcome) -> None:
        """Raise what kept a search from finding anything, be it time or a budget; otherwise
        there was nothing.
        """
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
        sharing: Sharing = "nobody",
        executor: str = "",
    ) -> "RunContext":
        """A run that begins now and may take `time_s` seconds."""
        now = asyncio.get_running_loop().time()
        return cls(
            on_event,
            now + time_s,
            now + time_s * (1 - answering_share),
            ledger,
            sharing=sharing,
            executor=executor,
        )
