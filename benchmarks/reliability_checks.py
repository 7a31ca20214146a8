"""Checks of `bench reliability`: what clients and upstreams saw, against a store."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec
from sqlalchemy import Connection, func, select

from benchmarks.harness import Check
from benchmarks.load import ANSWERED, Ended
from router.store.rows import run_of
from router.store.schema import CALLS, RUNS
from router.testing.fault_proxy import Counted
from router.trace import Run
from router.trace.call import WHOLE


class Accounts(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between what clients and upstreams saw and the store; all lists should be empty."""

    attempts: int
    """That came to an upstream."""
    rows: dict[str, int]
    """Of the ledger, by outcome."""
    unaccounted: list[str]
    """Attempts that came to an upstream, and that the ledger does not have, or has at another one."""
    again: list[str]
    """Attempts that came more than once."""
    invented: list[str]
    """Rows of attempts that came to an end without having come to any upstream."""
    miscounted: list[str]
    """Completed calls that the upstream counted otherwise."""
    lost: list[str]
    """Runs whose answer a client received, and which are not in the store with all that the client was told."""
    stuck: list[str]
    """Runs and calls that have not ended."""
    gone_on: int = 0
    """Runs that went on with one that was cut."""
    in_flight: int = 0
    """Calls of theirs that were in flight at a kill, and were made again."""
    repeated: list[str] = []
    """Calls of theirs that had been completed before, and were made again all the same."""
    begun_anew: list[str] = []
    """Runs that should have gone on with one that was cut."""


def ended_and_booked(ended: Sequence[Ended], late: Sequence[Ended], found: Accounts) -> Iterator[Check]:
    """Checks that hold wherever questions are asked."""
    untyped, answered = [one.outcome for one in ended if not one.typed], sum(one.outcome == ANSWERED for one in ended)
    yield Check("none ends 100 ms after its deadline", not late, f"{len(late)} of {len(ended)}")
    yield Check("each ends in an answer or a typed error", not untyped, named(untyped))
    yield Check("some are answered", answered > 0, f"{answered} of {len(ended)}")
    yield Check("there are attempts", found.attempts > 0, f"{found.attempts:,}")
    completed = f"{found.rows.get('completed', 0):,}"
    went_on = f"{found.gone_on:,} that went on"
    for text, names, of in (
        ("every attempt is booked", found.unaccounted, f"{found.attempts:,}"),
        ("no attempt comes twice", found.again, f"{found.attempts:,}"),
        ("no row is invented", found.invented, f"{sum(found.rows.values()):,}"),
        ("completed calls are booked as upstreams counted them", found.miscounted, completed),
        ("no answer is lost", found.lost, f"{answered:,}"),
        ("nothing is left open", found.stuck, ""),
        ("no completed call is made again", found.repeated, f"{went_on}; {found.in_flight:,} had been in flight"),
        ("who asks again goes on", found.begun_anew, went_on),
    ):
        yield Check(text, not names, named(names, of))


def named(names: Sequence[str], of: str = "") -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (f"{', '.join(names[:3])}{more}" if names else "none") + (of and f" of {of}")


def compared(
    connection: Connection,
    ended: Iterable[Ended],
    seen: Mapping[str, Sequence[str]],
    counted: Mapping[str, Counted],
    shown: Mapping[str, bytes],
) -> Accounts:
    """`seen`: request ids by deployment, as the ledger names it; `counted`: the upstreams' counts by request id;
    `shown`: what they were shown, by request id.
    """
    calls, came = CALLS.c, Counter(name for names in seen.values() for name in names)
    rows = {f"{row.run_id}-{row.number}": row for row in connection.execute(select(CALLS))}
    statuses = {row.run_id: row.status for row in connection.execute(select(RUNS.c.run_id, RUNS.c.status))}
    tokens = func.coalesce(func.sum(calls.prompt_tokens + calls.completion_tokens), 0)
    summed = connection.execute(select(calls.run_id, func.count(), tokens).group_by(calls.run_id))
    sums = {run_id: (attempts, total) for run_id, attempts, total in summed}
    whole = (*WHOLE, "refused", "protocol_error")
    booked = {name: Counted(row.prompt_tokens, row.completion_tokens) for name, row in rows.items() if row.counted}
    runs = {run.id: run for run in map(run_of, connection.execute(select(RUNS).order_by(RUNS.c.started_at)))}
    again = [pair for run in runs.values() for pair in _made_again(run, runs, shown)]
    return Accounts(
        attempts=sum(came.values()),
        rows=dict(Counter(row.outcome for row in rows.values()).most_common()),
        unaccounted=[
            f"{name or 'one without a name'} at {deployment}"
            for deployment, names in seen.items()
            for name in names
            if name not in rows or rows[name].deployment != deployment
        ],
        again=[name for name, times in came.items() if times > 1],
        invented=[name for name, row in rows.items() if name not in came and row.outcome in whole],
        miscounted=[
            name
            for name, row in rows.items()
            if row.outcome == "completed" and name in counted and booked.get(name) != counted[name]
        ],
        lost=[
            one.run_id
            for one in ended
            if one.outcome == ANSWERED
            and (statuses.get(one.run_id), sums.get(one.run_id, (0, 0))) != ("finished", (one.attempts, one.tokens))
        ],
        stuck=[
            *(run_id for run_id, status in statuses.items() if status == "running"),
            *(name for name, row in rows.items() if row.outcome == "open"),
        ],
        gone_on=sum(bool(run.resumed_from) for run in runs.values()),
        in_flight=sum(not completed for _, completed in again),
        repeated=[name for name, completed in again if completed],
        begun_anew=[
            later.id
            for earlier, later in pairwise(sorted(runs.values(), key=lambda run: run.request))
            if earlier.request == later.request and earlier.status == "interrupted" and not later.resumed_from
        ],
    )


def _made_again(run: Run, runs: Mapping[str, Run], shown: Mapping[str, bytes]) -> Iterator[tuple[str, bool]]:
    """The calls of a run that show a model what one was shown in a run that it goes on with, and whether that call had
    been completed.
    """
    completed = dict[bytes, bool]()
    earlier = runs.get(run.resumed_from)
    while earlier:
        for call in earlier.calls:
            if told := shown.get(call.request_id):
                completed[told] = completed.get(told, False) or call.outcome == "completed"
        earlier = runs.get(earlier.resumed_from)
    for call in run.calls:
        if (told := shown.get(call.request_id)) in completed:
            yield call.request_id, completed[told]
