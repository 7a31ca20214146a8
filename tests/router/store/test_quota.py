"""Quotas: spending plus reservations never exceed them, for any number of concurrent runs."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from router.access import QuotaUse, Tenant, new_key
from router.amount import Amount, Remaining
from router.errors import PriceUnknown, QuotaExhausted
from router.ledger.journal import Admitted
from router.models import Usage
from router.store import Database, LogJournal, SQLAccounts
from router.store.quotas import Quotas, counted, names
from router.trace import Call
from tests.router.store.entries import (
    DAY,
    MONTH,
    NOW,
    change,
    ended,
    opened,
    rows,
    spent,
    start,
)
from tests.router.store.stored import put, run

TO_MIDNIGHT_S = 11 * 3600.0
TO_DECEMBER_S = (9 * 24 + 11) * 3600.0
WORST = Amount(10, 10)


@asynccontextmanager
async def journal_for(database: Database, *tenants: Tenant) -> AsyncIterator[LogJournal]:
    """Open a journal with these settings from the start."""
    await put(database, tenants=tenants)
    async with LogJournal.writing(database) as journal:
        yield journal


async def refused(step: Awaitable[object]) -> QuotaExhausted:
    with pytest.raises(QuotaExhausted) as caught:
        await step
    return caught.value


async def left(journal: LogJournal, tokens: int, at: float = NOW + 1, tenant: str = "acme") -> None:
    """Assert that exactly this many tokens are left for a run."""
    probe = ended(
        "probe", 0, Amount(tokens), tenant=tenant, started_at=at, usage=None, outcome="refused"
    )
    await journal.begin(start("probe", tenant, started_at=at))
    await refused(
        journal.open(opened(ended("probe", 1, Amount(tokens + 1), tenant=tenant, started_at=at)))
    )
    await journal.open(opened(probe))
    journal.settle(probe)
    journal.forget("probe")


@pytest.mark.parametrize(
    ("limit", "comes_back_s"),
    [
        ("tokens_per_day", TO_MIDNIGHT_S),
        ("tokens_per_month", TO_DECEMBER_S),
        ("nano_usd_per_day", TO_MIDNIGHT_S),
        ("nano_usd_per_month", TO_DECEMBER_S),
    ],
)
async def test_a_call_is_opened_only_if_its_worst_case_fits(
    database: Database, limit: str, comes_back_s: float
) -> None:
    """Tokens that other calls reserved and did not spend are free again.

    The refusal says whether that may happen soon or the next period must begin.
    """
    calls = [
        ended("run-1", number, WORST, tenant="acme", usage=Usage(2, 3), nano_usd=5)
        for number in range(4)
    ]
    async with journal_for(database, Tenant("acme", **{limit: 25})) as journal:  # type: ignore[arg-type]
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
        journal.settle(calls[3])
        error = await refused(journal.open(opened(ended("run-1", 4, WORST, tenant="acme"))))
        assert limit in str(error)
        assert error.retry_after_s == pytest.approx(comes_back_s - 1)
        assert not error.contended
        await journal.finish(run("run-1", NOW, calls, tenant="acme"))
        assert await spent(database, "acme") == {DAY: (1, 20, 20), MONTH: (1, 20, 20)}


async def test_tokens_that_a_run_holds_for_itself_come_back_only_next_period(
    database: Database,
) -> None:
    """The run holds everything for its own answer, so the refusal names the next period."""
    async with journal_for(database, Tenant("acme", tokens_per_day=25)) as journal:
        await journal.begin(start("run-1", "acme"))
        await journal.reserve_for_answer("run-1", Amount(20, 0))
        error = await refused(journal.open(opened(ended("run-1", 0, WORST, tenant="acme"))))
        assert (error.contended, error.retry_after_s > 1) == (False, True)


async def test_only_the_answer_uses_its_hold(database: Database) -> None:
    """If the hold does not suffice, it is kept. The end of the run returns it."""
    async with journal_for(database, Tenant("acme", tokens_per_day=25)) as journal:
        await journal.begin(start("run-1", "acme", hold=Amount(5)))
        await left(journal, 20)
        await journal.reserve_for_answer("run-1", Amount(15))
        await refused(journal.reserve_for_answer("run-1", Amount(26)))
        await refused(journal.begin(start("run-2", "acme", hold=Amount(11))))
        await journal.open(opened(ended("run-1", 0, WORST, tenant="acme")))
        await left(journal, 0)
        await refused(
            journal.open(opened(ended("run-1", 2, Amount(16), tenant="acme", role="answer")))
        )
        await left(journal, 0)

        await journal.open(opened(ended("run-1", 3, Amount(15), tenant="acme", role="answer")))
        await left(journal, 0)
        done = [
            ended("run-1", 0, WORST, tenant="acme", usage=Usage(1, 1)),
            ended("run-1", 3, Amount(15), tenant="acme", usage=Usage(2, 1), role="answer"),
        ]
        await journal.finish(run("run-1", NOW, done, tenant="acme"))
        await left(journal, 20)

        await journal.begin(start("run-3", "acme", hold=Amount(5)))
        await left(journal, 15)
        await journal.finish(run("run-3", NOW, status="failed", tenant="acme"))
        await journal.begin(start("run-4", "acme", hold=Amount(5)))
        journal.forget("run-4")
        await left(journal, 20)


async def test_a_new_day_brings_a_new_quota(database: Database) -> None:
    """Reservations from before midnight are released on the day before."""
    tomorrow = NOW + TO_MIDNIGHT_S
    late = ended("run-1", 0, WORST, tenant="acme", usage=Usage(8, 1), nano_usd=None)
    early = ended(
        "run-1", 1, WORST, tenant="acme", usage=Usage(1, 1), nano_usd=None, started_at=tomorrow
    )
    async with journal_for(database, Tenant("acme", tokens_per_day=10)) as journal:
        await journal.begin(start("run-1", "acme"))
        await journal.open(opened(late))
        await left(journal, 0)
        await journal.open(opened(early))
        await left(journal, 0, tomorrow)
        await journal.finish(run("run-1", NOW, [late, early], tenant="acme"))
        await left(journal, 1)
        await left(journal, 8, tomorrow)
        await journal.begin(start("run-2", "acme", started_at=tomorrow))
        await journal.finish(run("run-2", tomorrow, tenant="acme"))
        assert await spent(database, "acme") == {
            DAY: (1, 9, 0),
            "2026-11-22": (1, 2, 0),
            MONTH: (2, 11, 0),
        }


@pytest.mark.parametrize("limit", ["tokens", "nano_usd"])
async def test_a_limit_lowered_below_the_spending_leaves_nothing(
    database: Database, journal: LogJournal, limit: str
) -> None:
    """It counts soon, and the rest is never negative.

    A run that requests nothing yet is refused without a number of tokens.
    """
    call = ended("run-1", 0, Amount(50, 50), tenant="acme", usage=Usage(20, 30), nano_usd=50)
    await journal.begin(start("run-1", "acme"))
    await journal.open(opened(call))
    await journal.finish(run("run-1", NOW, [call], tenant="acme"))
    await put(database, tenants=[Tenant("acme", **{f"{limit}_per_day": 10})])  # type: ignore[arg-type]

    async def until_it_counts() -> None:
        while True:
            await journal.begin(start("run-2", "acme"))
            journal.forget("run-2")
            await asyncio.sleep(0.02)

    nothing, some = (
        ("0 tokens", "7 tokens")
        if limit == "tokens"
        else ("0.000000000 dollars", "0.000000007 dollars")
    )
    async with asyncio.timeout(10):
        error = await refused(until_it_counts())
    assert f"not enough of it is left: {nothing} are left; the limit resets at" in str(error)
    error = await refused(journal.begin(start("run-3", "acme", hold=Amount(7, 7))))
    assert f"{nothing} are left, and {some} are needed; the limit resets at" in str(error)


async def test_a_call_without_a_price_is_refused_under_a_cost_limit(database: Database) -> None:
    """A limit of tokens does not refuse it."""
    tenants = Tenant("acme", nano_usd_per_month=10**9), Tenant("other", tokens_per_day=100)
    async with journal_for(database, *tenants) as journal:
        for tenant in ("acme", "other"):
            await journal.begin(start(f"run-{tenant}", tenant))
        with pytest.raises(PriceUnknown, match=r"acme.* in dollars per month.*\[prices\]"):
            await journal.open(opened(ended("run-acme", 0, Amount(10, None), tenant="acme")))
        known = opened(ended("run-other", 0, Amount(10, None), tenant="other"))
        await journal.open(known)
        assert journal.under_way() == ([], [known])


@pytest.mark.parametrize(
    ("limit", "comes_back_s"),
    [
        ("requests_per_day", TO_MIDNIGHT_S),
        ("requests_per_month", TO_DECEMBER_S),
        ("runs_in_flight", 1.0),
    ],
)
async def test_requests_and_running_runs_are_counted(
    database: Database, limit: str, comes_back_s: float
) -> None:
    """A refused run does not count."""
    async with journal_for(database, Tenant("acme", **{limit: 3})) as journal:  # type: ignore[arg-type]
        starts = [start(f"run-{number}", "acme") for number in range(8)]
        begun = await asyncio.gather(
            *(journal.begin(run_start) for run_start in starts), return_exceptions=True
        )
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
        journal.forget("run-1")  # withdraws the request
        await journal.begin(start("run-11", "acme"))


async def test_many_concurrent_runs_use_a_quota_fully_and_never_exceed_it(
    database: Database,
) -> None:
    made = 0

    async def work(journal: LogJournal, run_id: str, luck: random.Random) -> None:
        nonlocal made
        calls = []
        await journal.begin(start(run_id, "acme"))
        for number in range(20):
            call = ended(
                run_id, number, WORST, tenant="acme", usage=Usage(luck.randint(1, 9), 1), nano_usd=1
            )
            try:
                await journal.open(opened(call))
            except QuotaExhausted:
                break
            under_way = sum(call.reserved.tokens for call in journal.under_way()[1])
            taken = sum(call.charged.tokens for call in journal.under_way()[0]) + under_way
            assert taken <= 5000
            await asyncio.sleep(0)
            made += 1
            calls.append(call)
            journal.settle(call)
        await journal.finish(run(run_id, NOW, calls, tenant="acme"))

    async with journal_for(database, Tenant("acme", tokens_per_day=5000)) as journal:
        await asyncio.gather(
            *(work(journal, f"run-{number}", random.Random(number)) for number in range(50))
        )
        ((tokens,),) = await rows(
            database, "SELECT tokens FROM spending WHERE period = :day", day=DAY
        )
        assert 4990 < tokens <= 5000
        assert await rows(
            database, "SELECT count(*), sum(prompt_tokens + completion_tokens) FROM calls"
        ) == [(made, tokens)]
        await left(journal, 5000 - tokens)


async def test_spending_of_the_day_and_month_is_known_after_a_restart(database: Database) -> None:
    now = time.time()
    call = ended("run-1", 0, WORST, tenant="acme", usage=Usage(8, 1), started_at=now)
    async with journal_for(database, Tenant("acme", tokens_per_month=20)) as journal:
        await journal.begin(start("run-1", "acme", started_at=now))
        await journal.open(opened(call))
        await journal.finish(run("run-1", now, [call], tenant="acme"))
    async with LogJournal.writing(database) as journal:
        await left(journal, 11, now)


async def test_the_use_of_each_quota_can_be_read(database: Database) -> None:
    """What is spent and stored counts. Tenants without limits, and limits of 0, are left out."""
    now = time.time()
    limited = Tenant("acme", tokens_per_month=20, nano_usd_per_day=10, requests_per_day=2)
    call = ended("run-1", 0, WORST, tenant="acme", usage=Usage(4, 1), nano_usd=10, started_at=now)
    async with journal_for(database, limited, Tenant("free"), Tenant("z", tokens_per_day=0)) as log:
        before = await log.quota_uses()
        await log.begin(start("run-1", "acme", started_at=now))
        await log.open(opened(call))
        await log.finish(run("run-1", now, [call], tenant="acme"))
        after = await log.quota_uses()
    _, day, month = names(now)
    assert after == [
        QuotaUse("acme", "requests_per_day", day, 2, 1),
        QuotaUse("acme", "nano_usd_per_day", day, 10, 10),
        QuotaUse("acme", "tokens_per_month", month, 20, 5),
    ]
    assert [use.left for use in after] == [0.5, 0.0, 0.75]
    assert before == [replace(use, used=0) for use in after]


async def test_one_of_many_gateways_warns(database: Database) -> None:
    """A warning that was not delivered is due again later; another limit is another warning."""
    accounts = SQLAccounts(database)
    uses = [QuotaUse(tenant, "tokens_per_day", DAY, 10, 8) for tenant in ("acme", "other")]
    since = time.time()
    claims = await asyncio.gather(*(accounts.claim_warnings(uses, since) for _ in range(8)))
    assert sorted(map(len, claims)) == [0] * 7 + [2]
    assert max(claims) == [(use, True) for use in uses]
    await accounts.delivered(uses[0])
    raised = replace(uses[0], limit=20)
    claim = await accounts.claim_warnings([*uses, raised], time.time())
    assert claim == [(uses[1], False), (raised, True)]


MINUTE = "2026-11-21T13:00"


async def early_in_a_minute() -> float:
    """Return the time, when at least 15 s of a minute are left."""
    left_s = 60 - time.time() % 60
    if left_s < 15:
        await asyncio.sleep(left_s)
    return time.time()


async def keyed(database: Database, **limits: int) -> None:
    """Store the key `key`, which `start` uses, with these limits."""
    _, made = new_key(None, ["ask"])
    await SQLAccounts(database).add_key(replace(made, key_id="key", **limits))


@pytest.mark.parametrize("of_key", [False, True])
async def test_requests_of_a_minute_are_limited(database: Database, of_key: bool) -> None:
    """For a tenant and for a key. The refusal says when the minute ends; the next one is free."""
    tenants = []
    if of_key:
        await keyed(database, requests_per_minute=3)
    else:
        tenants = [Tenant("acme", requests_per_minute=3)]
    who = "key key" if of_key else "tenant acme"
    async with journal_for(database, *tenants) as journal:
        at = NOW + 12.5
        starts = [start(f"run-{number}", "acme", started_at=at) for number in range(8)]
        begun = await asyncio.gather(
            *(journal.begin(run_start) for run_start in starts), return_exceptions=True
        )
        assert begun[:3] == [Admitted()] * 3
        for error in begun[3:]:
            assert isinstance(error, QuotaExhausted)
            assert f"{who}: requests_per_minute is 3" in str(error)
            assert "resets at 2026-11-21 13:01 UTC" in str(error)
            assert error.retry_after_s == pytest.approx(47.5)
        journal.forget("run-0")
        await journal.begin(start("run-9", "acme", started_at=NOW + 59.9))
        await journal.begin(start("run-10", "acme", started_at=NOW + 60))
        free = start("other", "acme", key_id="other", started_at=at)
        if of_key:
            await journal.begin(free)
        else:
            await refused(journal.begin(free))


@pytest.mark.parametrize("of_key", [False, True])
async def test_tokens_of_a_minute_are_limited(database: Database, of_key: bool) -> None:
    """By the start of each call, which is refused whole: it is not shortened to the rest. What is
    held for the answer counts in no minute.
    """
    tenants = []
    if of_key:
        await keyed(database, tokens_per_minute=25)
    else:
        tenants = [Tenant("acme", tokens_per_minute=25)]

    def of(number: int, at: float, amount: Amount = WORST, **fields: Any) -> Call:
        known = {"tenant": "acme", "key_id": "key", "started_at": at, "usage": Usage(8, 1)}
        return ended("run-1", number, amount, **{**known, **fields})

    async with journal_for(database, *tenants) as journal:
        admitted = await journal.begin(start("run-1", "acme", hold=Amount(20)))
        assert admitted == Admitted(limited=True)
        calls = [of(0, NOW + 1), of(1, NOW + 59)]
        for call in calls:
            await journal.open(opened(call))
        error = await refused(journal.open(opened(of(2, NOW + 59.5))))
        assert (error.contended, error.left, error.retry_after_s) == (True, None, 1.0)
        for call in calls:
            journal.settle(call)
        error = await refused(journal.open(opened(of(2, NOW + 59.5))))
        assert (error.contended, error.left) == (False, None)
        assert error.retry_after_s == pytest.approx(0.5)
        assert "7 tokens are left, and 10 tokens are needed" in str(error)

        later = [of(2, NOW + 60), of(3, NOW + 61, Amount(15), role="answer")]
        for call in later:
            await journal.open(opened(call))
        await refused(journal.open(opened(of(4, NOW + 62, Amount(1)))))
        # No minute is large enough for this one, so it is shortened to a whole minute.
        error = await refused(journal.open(opened(of(4, NOW + 180, Amount(26)))))
        assert error.left == Remaining("tokens", 25)
        await journal.finish(run("run-1", NOW, [*calls, *later], tenant="acme", key_id="key"))
    account = "key key" if of_key else "acme"
    sums = "SELECT period, tokens FROM spending WHERE tenant = :account AND length(period) = 16"
    assert sorted(await rows(database, sums, account=account)) == [
        (MINUTE, 18),
        ("2026-11-21T13:01", 18),
    ]


async def test_spending_of_the_minute_is_known_after_a_restart(database: Database) -> None:
    await keyed(database, requests_per_minute=2)
    now = await early_in_a_minute()
    call = ended("run-1", 0, WORST, tenant="acme", usage=Usage(8, 1), started_at=now)
    async with journal_for(database, Tenant("acme", tokens_per_minute=20)) as journal:
        await journal.begin(start("run-1", "acme", started_at=now))
        await journal.open(opened(call))
        await journal.finish(run("run-1", now, [call], tenant="acme", key_id="key"))
    async with LogJournal.writing(database) as journal:
        await journal.begin(start("run-2", "acme", started_at=now + 1))
        await refused(
            journal.open(opened(ended("run-2", 0, Amount(12), tenant="acme", started_at=now + 1)))
        )
        await journal.open(opened(ended("run-2", 0, Amount(11), tenant="acme", started_at=now + 1)))
        await refused(journal.begin(start("run-3", "acme", started_at=now + 2)))


async def test_sums_of_past_minutes_are_deleted(database: Database) -> None:
    """When a gateway starts, after a day; those of days and months are kept."""
    now = time.time()
    past = [name for at in (now - 86400 * 2, now - 3600, now) for name in names(at)]
    for period in {*past}:
        await change(database, f"INSERT INTO spending VALUES ('acme', '{period}', 1, 2, 3)")
    gone = names(now - 86400 * 2)[0]

    async def kept() -> set[str]:
        return {period for (period,) in await rows(database, "SELECT period FROM spending")}

    async with LogJournal.writing(database), asyncio.timeout(10):
        while gone in await kept():
            pass
    assert await kept() == {*past} - {gone}


async def test_many_minutes_take_no_memory(database: Database) -> None:
    """Sums of past minutes are dropped, but not those in which a call is open."""
    quotas = Quotas(shared=False)
    now = time.time()
    for minute in range(1000):
        quotas.begin(start(f"run-{minute}", "acme", started_at=now - 60 * minute))
    call = opened(ended("run-900", 0, WORST, tenant="acme", started_at=now - 60 * 900))
    quotas.reserve(counted(call), WORST)
    quotas.forget_minutes(now - 60)
    minutes = {period for _, period in quotas.tallies if len(period) == 16}
    assert minutes == {names(now)[0], names(now - 60)[0], names(now - 60 * 900)[0]}
