"""What the ledger knows of a deployment's calls: a least, a most, and which calls lie between."""

import pytest

from router.ledger.reconciliation import LedgerSum, Tokens
from router.models import Usage
from router.store import Database, SQLUsages
from router.store.schema import CALLS
from router.trace import Call
from router.trace.call import Outcome
from tests.router.store.entries import opened
from tests.router.store.stored import call, put, run


async def summed(database: Database, *calls: Call, start: float = 900.0) -> LedgerSum:
    """The sum for `engine` after these calls of a run that has ended."""
    await put(database, run("run-1", calls=calls))
    return await SQLUsages(database).since("engine", start)


async def both(database: Database, *calls: Call) -> tuple[LedgerSum, LedgerSum]:
    """The sum for `engine` where a run has ended, and where it has not and its calls are not in
    the database.
    """
    under_way = SQLUsages(database, lambda: (calls, ()))
    return await under_way.since("engine", 900.0), await summed(database, *calls)


async def test_completed_calls_are_certain(database: Database) -> None:
    """Least and most are one; other deployments, and what was before the engine's start, are
    left out.
    """
    calls = (
        call("run-1", 0, usage=Usage(10, 2), prompt_bound=99),
        call("run-1", 1, outcome="wasted", usage=Usage(5, 1)),
        call("run-1", 2, deployment="other"),
        call("run-1", 3, started_at=899.9),
    )
    assert await both(database, *calls) == (LedgerSum(2, (), Tokens(15, 3), Tokens(15, 3)),) * 2


UNKNOWN = (Tokens(0, 0), Tokens(99, 64))


@pytest.mark.parametrize(
    ("outcome", "usage", "bounds"),
    [
        ("cancelled", Usage(10, 2, lower_bound=True), (Tokens(10, 2), Tokens(10, 64))),
        ("completed", Usage(10, 2, lower_bound=True), (Tokens(10, 2), Tokens(10, 64))),
        ("unavailable", Usage(10, 2, estimated=True), UNKNOWN),
        ("interrupted", None, UNKNOWN),
        ("protocol_error", None, UNKNOWN),
        ("completed", None, UNKNOWN),
        ("refused", None, UNKNOWN),
    ],
)
async def test_uncertain_calls(
    database: Database, outcome: Outcome, usage: Usage | None, bounds: tuple[Tokens, Tokens]
) -> None:
    """A cut call may have spent from what was reported up to all that it might write; an
    estimate is not known.
    """
    uncertain = call("run-1", 3, outcome=outcome, usage=usage, first_token_s=0.1, prompt_bound=99)
    assert (
        await both(database, uncertain)
        == (LedgerSum(int(outcome == "completed"), ("run-1-3",), *bounds),) * 2
    )


async def test_a_refused_call_spent_nothing(database: Database) -> None:
    """Its endpoint did not begin."""
    refused = call("run-1", 3, outcome="refused", usage=None, first_token_s=None, prompt_bound=99)
    assert await both(database, refused) == (LedgerSum(0, (), Tokens(0, 0), Tokens(0, 0)),) * 2


async def test_a_running_call_is_uncertain(database: Database) -> None:
    """Whatever it has spent by now."""
    await put(database, run("run-1", calls=[call("run-1")]))
    running = [
        opened(call("run-2", 1, prompt_bound=99)),
        opened(call("run-2", 2, deployment="other")),
        opened(call("run-2", 3, started_at=899.9)),
    ]
    found = await SQLUsages(database, lambda: ((), running)).since("engine", 900.0)
    assert found == LedgerSum(1, ("run-2-1",), Tokens(10, 2), Tokens(109, 66))


async def test_at_most_a_thousand_are_named(database: Database) -> None:
    """The oldest."""
    calls = [
        call("run-1", number, outcome="failed", usage=None, started_at=1000.0 + number)
        for number in range(1001)
    ]
    found = await summed(database, *calls)
    assert found.uncertain_calls == tuple(f"run-1-{number}" for number in range(1000))
    assert found.upper_bound.completion == 1001 * 64


async def test_deleted_calls(database: Database) -> None:
    """Where calls since the engine's start have been deleted, the sums are not the whole."""
    assert (await summed(database, call("run-1", started_at=7300.0), start=7000.0)).complete
    await database.write(lambda connection: connection.execute(CALLS.delete()))
    sums = SQLUsages(database)
    assert not (await sums.since("engine", 7000.0)).complete
    assert (await sums.since("engine", 10801.0)).complete
    assert (await sums.since("other", 7000.0)).complete


async def test_nothing_at_all(database: Database) -> None:
    """No calls are no tokens."""
    assert await SQLUsages(database).since("engine", 0.0) == LedgerSum(
        0, (), Tokens(0, 0), Tokens(0, 0)
    )
