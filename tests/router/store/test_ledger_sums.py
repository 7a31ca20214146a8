"""Sums of a deployment's calls: a minimum, a maximum, and the calls between them."""

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
    """Return the sum for `engine` after these calls of a run that has ended."""
    await put(database, run("run-1", calls=calls))
    return await SQLUsages(database).since("engine", start)


async def both(database: Database, *calls: Call) -> tuple[LedgerSum, LedgerSum]:
    """Return the sum for `engine` with the run ended, and with the run open and its calls only
    in the log.
    """
    under_way = SQLUsages(database, lambda: (calls, ()))
    return await under_way.since("engine", 900.0), await summed(database, *calls)


async def test_minimum_and_maximum_of_completed_calls_are_equal(database: Database) -> None:
    """Other deployments, and calls from before the engine's start, are left out."""
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
async def test_uncertain_calls_widen_the_sum(
    database: Database, outcome: Outcome, usage: Usage | None, bounds: tuple[Tokens, Tokens]
) -> None:
    """A cut call may have spent from the reported tokens up to its maximum.

    An estimate is not certain.
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
    await put(database, run("run-1", calls=[call("run-1")]))
    running = [
        opened(call("run-2", 1, prompt_bound=99)),
        opened(call("run-2", 2, deployment="other")),
        opened(call("run-2", 3, started_at=899.9)),
    ]
    running_sum = await SQLUsages(database, lambda: ((), running)).since("engine", 900.0)
    assert running_sum == LedgerSum(1, ("run-2-1",), Tokens(10, 2), Tokens(109, 66))


async def test_the_oldest_thousand_uncertain_calls_are_named(database: Database) -> None:
    calls = [
        call("run-1", number, outcome="failed", usage=None, started_at=1000.0 + number)
        for number in range(1001)
    ]
    uncertain_sum = await summed(database, *calls)
    assert uncertain_sum.uncertain_calls == tuple(f"run-1-{number}" for number in range(1000))
    assert uncertain_sum.upper_bound.completion == 1001 * 64


async def test_sums_are_incomplete_where_calls_were_deleted(database: Database) -> None:
    """The calls are from after the engine's start."""
    assert (await summed(database, call("run-1", started_at=7300.0), start=7000.0)).complete
    await database.write(lambda connection: connection.execute(CALLS.delete()))
    sums = SQLUsages(database)
    assert not (await sums.since("engine", 7000.0)).complete
    assert (await sums.since("engine", 10801.0)).complete
    assert (await sums.since("other", 7000.0)).complete


async def test_without_calls_there_are_no_tokens(database: Database) -> None:
    assert await SQLUsages(database).since("engine", 0.0) == LedgerSum(
        0, (), Tokens(0, 0), Tokens(0, 0)
    )
