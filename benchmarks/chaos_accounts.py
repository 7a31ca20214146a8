"""What clients and upstreams saw, compared with what is in the store."""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
from sqlalchemy import Connection, func, select

from benchmarks.chaos_questions import ANSWERED, Ended
from router.store.database import Database
from router.store.schema import CALLS, RUNS
from router.trace.call import WHOLE


class Accounts(msgspec.Struct, frozen=True):
    """Where the two sides differ; all but the sums should be empty."""

    runs: int
    attempts: int
    """That came to an upstream."""
    rows: dict[str, int]
    """Of the ledger, by outcome."""
    unaccounted: list[str]
    """Attempts that came to an upstream, and that the ledger does not have, or has at another one."""
    again: list[str]
    """Attempts that came more than once."""
    unseen: dict[str, int]
    """Rows whose attempt came to no upstream, by outcome."""
    lost: list[str]
    """Runs whose answer a client received, and which are not in the store with all that the client was told."""
    stuck: list[str]
    """Runs and calls that have not ended."""

    @property
    def invented(self) -> int:
        """Rows of attempts that came to an end without having come anywhere."""
        return sum(count for outcome, count in self.unseen.items() if outcome in (*WHOLE, "refused", "garbled"))


async def accounts(store: str, ended: Iterable[Ended], seen: Mapping[str, Iterable[str]]) -> Accounts:
    """Of the store of a gateway that has ended. `seen`: request ids by deployment, as the ledger names it."""
    database = await Database.open(store)
    try:
        return await database.read(lambda connection: _compared(connection, ended, seen))
    finally:
        await database.close()


def _compared(connection: Connection, ended: Iterable[Ended], seen: Mapping[str, Iterable[str]]) -> Accounts:
    calls, came = CALLS.c, Counter(name for names in seen.values() for name in names)
    rows = {
        f"{row.run_id}-{row.number}": (row.deployment, row.outcome)
        for row in connection.execute(select(calls.run_id, calls.number, calls.deployment, calls.outcome))
    }
    statuses = {row.run_id: row.status for row in connection.execute(select(RUNS.c.run_id, RUNS.c.status))}
    tokens = func.coalesce(func.sum(calls.prompt_tokens + calls.completion_tokens), 0)
    sums = {
        row[0]: (row[1], row[2])
        for row in connection.execute(select(calls.run_id, func.count(), tokens).group_by(calls.run_id))
    }
    return Accounts(
        runs=len(statuses),
        attempts=sum(came.values()),
        rows=dict(Counter(outcome for _, outcome in rows.values()).most_common()),
        unaccounted=[
            f"{name or 'one without a name'} at {deployment}"
            for deployment, names in seen.items()
            for name in names
            if name not in rows or rows[name][0] != deployment
        ],
        again=[name for name, times in came.items() if times > 1],
        unseen=dict(Counter(outcome for name, (_, outcome) in rows.items() if name not in came)),
        lost=[
            one.run_id
            for one in ended
            if one.outcome == ANSWERED
            and (statuses.get(one.run_id), sums.get(one.run_id, (0, 0))) != ("finished", (one.attempts, one.tokens))
        ],
        stuck=[
            *(run_id for run_id, status in statuses.items() if status == "running"),
            *(name for name, (_, outcome) in rows.items() if outcome == "open"),
        ],
    )
