"""Compare three records of the same work: the results that clients received, the calls that arrived
at upstreams, and the gateway's store.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter

from sqlalchemy import Connection, func, select

from benchmarks.harness import Check
from benchmarks.load import ANSWERED, LoadResult
from router.frozen import Frozen
from router.store.schema import CALLS, RUNS, run_of
from router.testing.fault_proxy import Attempt, Counted
from router.trace import Run
from router.trace.call import COMPLETE_OUTCOMES

_REACHED = {*COMPLETE_OUTCOMES, "refused", "content_refused", "protocol_error"}
"""Outcomes of calls that certainly reached an upstream."""


class Audit(Frozen):
    """Counts from the store, and violations of the conditions that the store must meet."""

    rows: dict[str, int]
    """Number of calls in the ledger, by outcome."""
    resumed: int
    """Number of runs that resumed an interrupted run."""
    in_flight: int
    """Number of calls that were in flight when the gateway was killed, and so repeated by a resumed
    run.
    """
    wrong: dict[str, list[str]]
    """For each condition, the runs and calls that violate it; an empty list if the condition holds.
    """


def compared(
    connection: Connection, ended: Iterable[LoadResult], attempts: Sequence[Attempt]
) -> Audit:
    """Compare the store with the records of clients and upstreams.

    `connection`: connection to the store's database. `ended`: results that clients received.
    `attempts`: calls that arrived at upstreams.
    """
    arrived = Counter(attempt.request_id for attempt in attempts)
    counted = {attempt.request_id: attempt.counted for attempt in attempts if attempt.counted}
    shown = {attempt.request_id: attempt.conversation for attempt in attempts}
    rows = {f"{row.run_id}-{row.number}": row for row in connection.execute(select(CALLS))}
    by_start = connection.execute(select(RUNS).order_by(RUNS.c.started_at))
    runs = {run.id: run for run in map(run_of, by_start)}
    again = [pair for run in runs.values() for pair in _made_again(run, runs, shown)]
    return Audit(
        rows=dict(Counter(row.outcome for row in rows.values()).most_common()),
        resumed=sum(bool(run.resumed_from) for run in runs.values()),
        in_flight=sum(not completed for _, completed in again),
        wrong={
            "every attempt is booked": [
                f"{attempt.request_id or 'request without an id'} at {attempt.deployment}"
                for attempt in attempts
                if attempt.request_id not in rows
                or rows[attempt.request_id].deployment != attempt.deployment
            ],
            "no attempt comes twice": [name for name, times in arrived.items() if times > 1],
            "no row is invented": [
                name
                for name, row in rows.items()
                if name not in arrived and row.outcome in _REACHED
            ],
            "completed calls are booked as upstreams counted them": [
                name
                for name, row in rows.items()
                if row.outcome == "completed"
                and name in counted
                and counted[name] != Counted(row.prompt_tokens, row.completion_tokens)
            ],
            "no answer is lost": _lost(connection, ended),
            "nothing is left open": [
                *connection.scalars(select(RUNS.c.run_id).where(RUNS.c.status == "running")),
                *(name for name, row in rows.items() if row.outcome == "open"),
            ],
            "no completed call is made again": [name for name, completed in again if completed],
            "a repeated question resumes its interrupted run": [
                later.id
                for earlier, later in pairwise(
                    # A run that was killed at its start made no call, and resumes no earlier run.
                    sorted((run for run in runs.values() if run.calls), key=attrgetter("request"))
                )
                if earlier.request == later.request
                and earlier.status == "interrupted"
                and not later.resumed_from
            ],
        },
    )


def _lost(connection: Connection, ended: Iterable[LoadResult]) -> list[str]:
    """Return the ids of lost runs. A run is lost if a client received the answer, but in the store
    the run is missing, is not finished, or has other numbers of calls or tokens.
    """
    tokens = func.coalesce(func.sum(CALLS.c.prompt_tokens + CALLS.c.completion_tokens), 0)
    summed = select(
        RUNS.c.run_id, RUNS.c.status, func.count(CALLS.c.number), tokens
    ).outerjoin_from(RUNS, CALLS)
    stored = {
        run_id: sums
        for run_id, *sums in connection.execute(summed.group_by(RUNS.c.run_id, RUNS.c.status))
    }
    return [
        result.run_id
        for result in ended
        if result.outcome == ANSWERED
        and stored.get(result.run_id) != ["finished", result.attempts, result.tokens]
    ]


def _made_again(
    run: Run, runs: Mapping[str, Run], shown: Mapping[str, bytes]
) -> Iterator[tuple[str, bool]]:
    """Yield the calls of a resumed run that repeat a call of the interrupted runs before it. Each
    item is (request id of the call, True if the repeated call had completed). A call repeats
    another if both send the same conversation. `shown`: conversation of each call, by request id.
    """
    completed = dict[bytes, bool]()
    earlier = runs.get(run.resumed_from)
    while earlier:
        for call in earlier.calls:
            if conversation := shown.get(call.request_id):
                completed.setdefault(conversation, False)
                completed[conversation] |= call.outcome == "completed"
        earlier = runs.get(earlier.resumed_from)
    for call in run.calls:
        if (conversation := shown.get(call.request_id)) in completed:
            yield call.request_id, completed[conversation]


def checks_of(
    ended: Sequence[LoadResult], late_s: float, wrong: Mapping[str, Sequence[str]]
) -> Iterator[Check]:
    """Yield the checks that every part must pass.

    `ended`: results that clients received. `late_s`: max seconds by which a result may be late.
    `wrong`: see `Audit.wrong`.
    """
    late = [result for result in ended if result.late_s > late_s]
    untyped = [result.outcome for result in ended if not result.typed]
    answered = sum(result.outcome == ANSWERED for result in ended)
    yield Check(
        "no request ends more than 100 ms after its deadline",
        not late,
        f"{len(late)} of {len(ended)}",
    )
    yield Check("each request ends in an answer or a typed error", not untyped, named(untyped))
    yield Check("some requests are answered", answered > 0, f"{answered} of {len(ended)}")
    for condition, names in wrong.items():
        yield Check(condition, not names, named(names))


def named(names: Sequence[str]) -> str:
    """Return a text with the first three names and the number of further names; `none` if there are
    no names.
    """
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}" if names else "none"
