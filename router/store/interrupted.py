"""Closing a run whose gateway is dead."""

from dataclasses import dataclass

import msgspec
import structlog
from sqlalchemy import select

from router.call import Call
from router.redaction import redacted
from router.store.books import Books, Scope
from router.store.call_row import call_of
from router.store.schema import CALLS, RUNS
from router.store.trace import run_of, trace_of

_log = structlog.get_logger("store")


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A run has lost its process."""

    tenant: str
    run_id: str
    otherwise = None

    @property
    def scope(self) -> Scope:
        """The run with its open calls."""
        return Scope(self.tenant, self.run_id, open_calls=True)

    def apply(self, books: Books) -> None:
        """End its open calls, charged with what they may have cost, and then the run."""
        known = books.run(self.run_id)
        if known is None or known.status != "running":
            return
        row = books.connection.execute(select(RUNS).where(RUNS.c.run_id == self.run_id)).one()
        wanted = select(CALLS).where(CALLS.c.run_id == self.run_id).order_by(CALLS.c.number)
        cut = set(books.open_calls(self.run_id))
        calls = tuple(_ended(call_of(call)) for call in books.connection.execute(wanted).mappings())
        for call in calls:
            books.settle(call)
        ended_at = max((call.started_at + call.duration_s for call in calls), default=known.started_at)
        run = msgspec.structs.replace(
            run_of(row, calls), status="interrupted", duration_s=max(0.0, ended_at - known.started_at)
        )
        if books.tenant(self.tenant).redact:
            run = redacted(run)
        books.end(known, "interrupted", "", run.duration_s, trace_of(run))
        in_flight = [call.request_id for call in calls if call.number in cut]
        _log.warning("store.run_interrupted", run_id=self.run_id, tenant=self.tenant, calls_in_flight=in_flight)


def _ended(call: Call) -> Call:
    return msgspec.structs.replace(call, outcome="interrupted") if call.outcome == "open" else call  # type: ignore[comparison-overlap]
