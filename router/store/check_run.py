"""Whether a run and its calls are what its trace says."""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Row, RowMapping

from router.call import Call
from router.errors import StoreFailed
from router.run import Run
from router.store.call_row import call_of
from router.store.problem import Problem
from router.store.trace import run_of

_OF_RUN = "id", "tenant", "kind", "status", "started_at", "duration_s"


def check_run(row: Row[Any], calls: Sequence[RowMapping]) -> Iterator[Problem]:
    """What is wrong with a row of `runs` and the rows of all its calls."""
    where = f"run {row.run_id}"
    if row.status == "running":
        return
    for call in calls:
        if call["outcome"] == "open":
            yield Problem(where, f"has ended, but its call {call['number']} is still open")
        elif call["wasted_tokens"] != (wasted := call_of(call).wasted_tokens):
            told = f"call {call['number']} has wasted {wasted} tokens, but {call['wasted_tokens']} are booked"
            yield Problem(where, told)
    if row.trace is None:
        yield Problem(where, f"is {row.status}, but has no trace")
        return
    try:
        run = run_of(row)
    except StoreFailed:
        yield Problem(where, "its trace cannot be decoded")
        return
    if wrong := [name for name in _OF_RUN if getattr(run, name) != _recorded(row, name)]:
        yield Problem(where, f"its trace and its row differ in {', '.join(wrong)}")
    yield from _check_calls(where, run, [call_of(call) for call in calls if call["outcome"] != "open"])


def _recorded(row: Row[Any], name: str) -> object:
    return row.run_id if name == "id" else getattr(row, name)


def _check_calls(where: str, run: Run, booked: Sequence[Call]) -> Iterator[Problem]:
    told = {call.number: call for call in run.calls}
    rows = {call.number: call for call in booked}
    if missing := sorted(told.keys() - rows.keys()):
        yield Problem(where, f"its trace has calls that are not booked: {', '.join(map(str, missing))}")
    if unknown := sorted(rows.keys() - told.keys()):
        yield Problem(where, f"calls are booked that its trace does not have: {', '.join(map(str, unknown))}")
    for number in sorted(told.keys() & rows.keys()):
        of_trace, of_row = told[number], rows[number]
        if wrong := [name for name in Call.__struct_fields__ if getattr(of_trace, name) != getattr(of_row, name)]:
            yield Problem(where, f"call {number} is booked otherwise than its trace says: {', '.join(wrong)}")
