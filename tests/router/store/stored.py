"""Runs written directly to a database, without a journal."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection

from router.access import Tenant
from router.amount import NOTHING
from router.models import Completion, Message, Usage
from router.protocol import Passage, Report
from router.store import Database
from router.store.schema import (
    CALLS,
    GROUPS,
    KEY_GROUPS,
    RUNS,
    TENANTS,
    USAGE_HOURS,
    USAGE_KEY_HOURS,
    call_row,
    found_by,
    trace_of,
)
from router.store.usage import hourly_usage
from router.trace import Call, Conversation, Event, Execution, Run, Trajectory
from router.trace.citation import Citation
from router.trace.run import RoleSetting
from router.trace.values import (
    AnswerWritten,
    Reported,
    RoundStarted,
    RunStarted,
    SearchDone,
    SearchRecord,
    SubQueryDispatched,
)

HEAT = Passage("p1", "Heat", "Heat is a film by Michael Mann.", 0.9, "films.pdf", 3)
EXECUTIONS = tuple(
    Execution(
        sub_query,
        Report("Michael Mann", ("Heat is a film by Michael Mann.",)),
        "reported",
        (SearchRecord(sub_query, (HEAT,)),),
        Conversation((Message("user", sub_query),), (Completion("…", "stop", usage=Usage(10, 2)),)),
    )
    for sub_query in ("Who directed Heat?", "What is Heat?")
)
CITATION = Citation("p1", "Heat", "films.pdf", 3, "Heat is a film by Michael Mann.")
ANSWER = Trajectory(
    "Michael Mann",
    "answered",
    EXECUTIONS,
    (2,),
    delegation=Conversation((Message("user", "Who?"),)),
)


def events(run_id: str) -> tuple[Event, ...]:
    """Return the events of a run with `ANSWER`, in which the second executor ended first."""
    return (
        RunStarted(run_id),
        RoundStarted(1),
        SubQueryDispatched(0, 1, "Who directed Heat?"),
        SubQueryDispatched(1, 1, "What is Heat?"),
        SearchDone(1, "What is Heat?", ("Heat",)),
        Reported(1, EXECUTIONS[1]),
        Reported(0, EXECUTIONS[0]),
        AnswerWritten("Michael Mann"),
    )


def call(run_id: str, number: int = 0, **fields: object) -> Call:
    """Return a call that ended well, with `fields` replaced."""
    known: dict[str, object] = {
        "run_id": run_id,
        "tenant": "default",
        "number": number,
        "role": "execution",
        "model": "small",
        "deployment": "engine",
        "executor_version": "executor-000001",
        "purpose": "first",
        "attempt": 1,
        "sub_query_index": 0,
        "max_tokens": 64,
        "reserved": NOTHING,
        "started_at": 1000.0,
        "outcome": "completed",
        "usage": Usage(10, 2),
        "nano_usd": 7,
        "first_token_s": 0.25,
        "duration_s": 0.5,
    }
    return Call(**{**known, **fields})  # type: ignore[arg-type]


def run(
    run_id: str, started_at: float = 1000.0, calls: Sequence[Call] = (), **fields: object
) -> Run:
    """Return a run with an answer, with `fields` replaced."""
    known: dict[str, object] = {
        "kind": "answer",
        "request": "Who directed Heat?",
        "status": "finished",
        "error": "",
        "result": ANSWER,
        "settings": {"answer": RoleSetting("big", "0" * 64)},
        "duration_s": 2.5,
        "events": events(run_id),
    }
    return Run(id=run_id, started_at=started_at, calls=tuple(calls), **{**known, **fields})  # type: ignore[arg-type]


async def put(database: Database, *runs: Run, tenants: Sequence[Tenant] = ()) -> None:
    """Write runs with their calls and sums."""

    def write(connection: Connection) -> None:
        for tenant in tenants:
            row = {**msgspec.structs.asdict(tenant), "indexes": ",".join(tenant.indexes)}
            connection.execute(TENANTS.insert().values(row))
        for stored_run in runs:
            connection.execute(RUNS.insert().values(run_row(stored_run)))
        if rows := [call_row(call) for run in runs for call in run.calls]:
            connection.execute(CALLS.insert(), rows)
        for table, groups in ((USAGE_HOURS, GROUPS), (USAGE_KEY_HOURS, KEY_GROUPS)):
            if hours := hourly_usage([call for run in runs for call in run.calls], groups):
                connection.execute(table.insert(), hours)

    await database.write(write)


def run_row(run: Run) -> dict[str, object]:
    """Return the row of a run."""
    return {
        "run_id": run.id,
        "tenant": run.tenant,
        "key_id": run.key_id,
        "kind": run.kind,
        "request_id": run.request_id or None,
        "fingerprint": "",
        "request": run.request,
        **found_by(run),
        "started_at": run.started_at,
        "log": "log",
        "cancel_requested": False,
        "trace": None if run.status == "running" else trace_of(run),
    }
