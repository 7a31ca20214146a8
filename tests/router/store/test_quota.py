"""Quotas: what is spent and what is reserved never exceed them together, whoever asks at the same time."""

import asyncio
import random
import sys
from collections.abc import Awaitable, Sequence

import pytest

from router.access import Tenant
from router.amount import Amount
from router.errors import PriceUnknown, QuotaExhausted
from router.ledger.journal import Admitted
from router.models import Usage
from router.store import Database, SQLJournal
from tests.router.store.entries import DAY, MONTH, NOW, ended, opened, rows, spent, start
from tests.router.store.stored import put, run

TO_MIDNIGHT_S = 11 * 3600.0
TO_DECEMBER_S = (9 * 24 + 11) * 3600.0
WORST = Amount(10, 10)


async def refused(step: Awaitable[object]) -> QuotaExhausted:
    with pytest.raises(QuotaExhausted) as caught:
        await step
    return caught.value


@pytest.mark.parametrize(
    ("limit", "comes_back_s"),
    [
        ("tokens_per_day", TO_MIDNIGHT_S),
        ("tokens_per_month", TO_DECEMBER_S),
        ("nano_usd_per_day", TO_MIDNIGHT_S),
        ("nano_usd_per_month", TO_DECEMBER_S),
    ],
)
async def test_what_is_left_is_reserved_before_it_is_spent(
    database: Database, journal: SQLJournal, limit: str, comes_back_s: float
) -> None:
    """A call that may cost more than what is left is not opened; what others did not spend of theirs is free again.
    Whether that may happen soon, or another period must begin, is told.
    """
    await put(database, tenants=[Tenant("acme", **{limit: 25})])  # type: ignore[arg-type]
    calls = [ended("run-1", number, WORST, tenant="acme", usage=Usage(2, 3), nano_usd=5) for number in range(4)]
    assert await journal.begin(start("run-1", "acme")) == Admitted(limited=True)
    await journal.open(opened(calls[0]))
    await journal.open(opened(calls[1]))

    error = await refused(journal.open(opened(calls[2])))
    assert limit in str(error)
    assert (error.retry_after_s, error.contended) == (1.0, True)

    journal.settle(calls[0])
    await journal.open(opened(calls[2]))
    journal.settle(calls[1])
    journal.settle(calls[2])
    await journal.open(opened(calls[3]))
    assert await spent(database, "acme") == {DAY: (1, 15, 15, 10, 10), MONTH: (1, 15, 15, 10, 10)}
    assert await rows(database, "SELECT number FROM calls ORDER BY number") == [(0,), (1,), (2,), (3,)]

    journal.settle(calls[3])
    error = await refused(journal.open(opened(ended("run-1", 4, WORST, tenant="acme"))))
    assert limit in str(error)
    assert error.retry_after_s == pytest.approx(comes_back_s - 1)
    assert not error.contended


async def test_what_a_run_holds_itself_does_not_come_back(database: Database, journal: SQLJournal) -> None:
    """A run that keeps what is left for its own answer is told to come back when the next period begins."""
    await put(database, tenants=[Tenant("acme", tokens_per_day=25)])
    await journal.begin(start("run-1", "acme"))
    await journal.reserve_for_answer("run-1", Amount(20, 0))
    error = await refused(journal.open(opened(ended("run-1", 0, WORST, tenant="acme"))))
    assert (error.contended, error.retry_after_s > 1) == (False, True)


async def test_the_answer_takes_what_is_kept_for_it(database: Database, journal: SQLJournal) -> None:
    """Nobody else gets it; and where even that is too little, it is still kept."""
    await put(database, tenants=[Tenant("acme", tokens_per_day=25)])
    await journal.begin(start("run-1", "acme", hold=Amount(5)))
    await journal.reserve_for_answer("run-1", Amount(15))
    await refused(journal.reserve_for_answer("run-1", Amount(26)))
    await refused(journal.begin(start("run-2", "acme", hold=Amount(11))))
    await journal.open(opened(ended("run-1", 0, WORST, tenant="acme")))
    await refused(journal.open(opened(ended("run-1", 1, Amount(1), tenant="acme"))))
    await refused(journal.open(opened(ended("run-1", 2, Amount(16), tenant="acme", role="answer"))))
    assert await spent(database, "acme") == {DAY: (1, 0, 0, 25, 10), MONTH: (1, 0, 0, 25, 10)}

    await journal.open(opened(ended("run-1", 3, Amount(15), tenant="acme", role="answer")))
    assert await spent(database, "acme") == {DAY: (1, 0, 0, 25, 10), MONTH: (1, 0, 0, 25, 10)}
    assert await rows(database, "SELECT held_tokens FROM runs") == [(0,)]


async def test_a_day_that_begins(database: Database, journal: SQLJournal) -> None:
    """Brings a new quota; what was reserved before midnight is released there."""
    await put(database, tenants=[Tenant("acme", tokens_per_day=10)])
    tomorrow = NOW + TO_MIDNIGHT_S
    late = ended("run-1", 0, WORST, tenant="acme", usage=Usage(9, 1), nano_usd=None)
    early = ended("run-1", 1, WORST, tenant="acme", usage=Usage(1, 1), nano_usd=None, started_at=tomorrow)
    await journal.begin(start("run-1", "acme"))
    await journal.open(opened(late))
    await journal.open(opened(early))
    await journal.finish(run("run-1", NOW, [late, early], tenant="acme"))
    await journal.begin(start("run-2", "acme", started_at=tomorrow, hold=Amount(8)))

    assert await spent(database, "acme") == {
        DAY: (1, 10, 0, 0, 0),
        "2026-11-22": (1, 2, 0, 8, 0),
        MONTH: (2, 12, 0, 8, 0),
    }


@pytest.mark.parametrize("limit", ["tokens", "nano_usd"])
async def test_a_limit_that_was_lowered_below_what_is_spent(
    database: Database, journal: SQLJournal, limit: str
) -> None:
    """Nothing is left of it, and not less; of a run that asks for nothing yet it is not said what it needs."""
    call = ended("run-1", 0, Amount(50, 50), tenant="acme", usage=Usage(20, 30), nano_usd=50)
    await journal.begin(start("run-1", "acme"))
    await journal.open(opened(call))
    journal.settle(call)
    await journal.finish(run("run-1", NOW, [call], tenant="acme"))
    await put(database, tenants=[Tenant("acme", **{f"{limit}_per_day": 10})])  # type: ignore[arg-type]

    nothing, some = ("0 tokens", "7 tokens") if limit == "tokens" else ("0.000000000 dollars", "0.000000007 dollars")
    error = await refused(journal.begin(start("run-2", "acme")))
    assert f"what is left does not suffice: {nothing} are left; it begins anew" in str(error)
    error = await refused(journal.begin(start("run-3", "acme", hold=Amount(7, 7))))
    assert f"{nothing} are left, and {some} are needed; it begins anew" in str(error)


async def test_a_price_that_is_not_known(database: Database, journal: SQLJournal) -> None:
    """Cannot be held against a limit of cost, so the call is refused; tokens alone are no hindrance."""
    await put(database, tenants=[Tenant("acme", nano_usd_per_month=10**9), Tenant("other", tokens_per_day=100)])
    for tenant in ("acme", "other"):
        await journal.begin(start(f"run-{tenant}", tenant))
    with pytest.raises(PriceUnknown, match=r"acme.* in dollars for each month.*\[prices\]"):
        await journal.open(opened(ended("run-acme", 0, Amount(10, None), tenant="acme")))
    await journal.open(opened(ended("run-other", 0, Amount(10, None), tenant="other")))
    assert await rows(database, "SELECT run_id, reserved_nano_usd FROM calls") == [("run-other", None)]


@pytest.mark.parametrize(
    ("limit", "comes_back_s"),
    [("requests_per_day", TO_MIDNIGHT_S), ("requests_per_month", TO_DECEMBER_S), ("runs_in_flight", 1.0)],
)
async def test_runs_are_counted(database: Database, journal: SQLJournal, limit: str, comes_back_s: float) -> None:
    """As they are asked for, and as they run; a refused one does not count."""
    await put(database, tenants=[Tenant("acme", **{limit: 3})])  # type: ignore[arg-type]
    starts = [start(f"run-{number}", "acme") for number in range(8)]
    begun = await asyncio.gather(*(journal.begin(each) for each in starts), return_exceptions=True)
    assert begun[:3] == [Admitted()] * 3
    for error in begun[3:]:
        assert isinstance(error, QuotaExhausted)
        assert limit in str(error)
        assert error.retry_after_s == pytest.approx(comes_back_s)

    await journal.finish(run("run-0", NOW, tenant="acme"))
    if limit == "runs_in_flight":
        await journal.begin(start("run-8", "acme"))
    await refused(journal.begin(start("run-9", "acme")))
    assert await journal.begin(start("run-10", "other")) == Admitted()


async def _spend(journal: SQLJournal, name: str, most_calls: int) -> int:
    """Runs that each make calls until the quota is used up; how many calls were made."""
    made = 0

    async def work(run_id: str, luck: random.Random) -> None:
        nonlocal made
        calls = []
        await journal.begin(start(run_id, "acme"))
        for number in range(most_calls):
            call = ended(run_id, number, WORST, tenant="acme", usage=Usage(luck.randint(1, 9), 1), nano_usd=1)
            try:
                await journal.open(opened(call))
            except QuotaExhausted:
                break
            made += 1
            calls.append(call)
            journal.settle(call)
        await journal.finish(run(run_id, NOW, calls, tenant="acme"))

    await asyncio.gather(*(work(f"{name}-{number}", random.Random(number)) for number in range(50)))
    return made


_SPENDING = """
import asyncio, sys
from router.store.database import Database
from router.store.journal import SQLJournal
from tests.router.store.test_quota import _spend

async def main(url, name):
    database = await Database.open(url)
    async with SQLJournal.writing(database) as journal:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(await _spend(journal, name, 20))
    await database.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_processes_share_a_quota(url: str) -> None:
    """Three gateways on one database: never is more spent and reserved than allowed, and it is used to the last."""
    database = await Database.open(url)
    await put(database, tenants=[Tenant("acme", tokens_per_day=5000)])
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    children = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", _SPENDING, url, f"run-{name}", **pipes)  # type: ignore[arg-type]
        for name in "abc"
    ]
    for child in children:
        assert child.stdout is not None
        await child.stdout.readline()
    most = asyncio.create_task(_most_taken(database, children))
    said = [said for said, _ in await asyncio.gather(*(child.communicate(b"go\n") for child in children))]

    assert 4000 < await most <= 5000
    ((tokens, reserved),) = await rows(
        database, "SELECT tokens, reserved_tokens FROM spending WHERE period = :day", day=DAY
    )
    assert (4990 < tokens <= 5000, reserved) == (True, 0)
    assert await rows(database, "SELECT count(*), sum(prompt_tokens + completion_tokens) FROM calls") == [
        (sum(map(int, said)), tokens)
    ]
    await database.close()


async def _most_taken(database: Database, children: Sequence[asyncio.subprocess.Process]) -> int:
    """What any reader ever saw as spent and reserved while the processes ran."""
    most = 0
    while any(child.returncode is None for child in children):
        found = await rows(database, "SELECT tokens + reserved_tokens FROM spending WHERE period = :day", day=DAY)
        most = max(most, *(taken for (taken,) in found), 0)
    return most
