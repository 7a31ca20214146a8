"""Random runs of all kinds, written to a journal in random order."""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from hypothesis import strategies as st
from msgspec.structs import replace

from router.amount import Amount
from router.errors import BudgetExhausted
from router.ledger import UsageQuery
from router.models import Completion, Message, Usage
from router.store import Database, LogJournal, SQLArchive, SQLUsages
from router.store.check import check
from router.store.quotas import names
from router.trace import Call, Run
from router.trace.call import Outcome, added, totals
from router.trace.run import RunStatus
from router.trace.turns import AgentId, Decided, Searched
from router.trace.values import brief, with_executions
from tests.router.store.entries import ended, opened, rows, spent, start
from tests.router.store.stored import ANSWER, EXECUTIONS, events, run

amounts = st.builds(Amount, st.integers(0, 30), st.integers(0, 30))
usages = st.none() | st.builds(
    Usage,
    st.integers(0, 20),
    st.integers(0, 20),
    st.none() | st.integers(0, 5),
    st.none() | st.integers(0, 5),
)
OUTCOMES: list[Outcome] = ["completed", "refused", "cancelled", "unavailable"]


class Plan(NamedTuple):
    """A planned run."""

    id: str
    tenant: str
    calls: list[Call]
    hold: Amount
    started_at: float


@st.composite
def plans(draw: st.DrawFn, tenant: str, midnight: float) -> list[Plan]:
    """Runs on either side of midnight, with calls of any role, outcome and usage."""
    return [
        Plan(
            run_id := f"{tenant}-{index}",
            tenant,
            [_call(draw, run_id, tenant, number, midnight) for number in range(size)],
            draw(amounts),
            midnight - draw(st.sampled_from([-1.0, 5.0])),
        )
        for index, size in enumerate(draw(st.lists(st.integers(0, 6), max_size=4)))
    ]


def _call(draw: st.DrawFn, run_id: str, tenant: str, number: int, midnight: float) -> Call:
    usage = draw(usages)
    return ended(
        run_id,
        number,
        draw(amounts),
        tenant=tenant,
        role=draw(st.sampled_from(["delegation", "execution", "answer"])),
        usage=usage,
        nano_usd=draw(st.none() | st.integers(0, 30)) if usage else None,
        outcome=draw(st.sampled_from(OUTCOMES)),
        started_at=midnight + draw(st.sampled_from([-7200.0, -1.0, 0.0, 10.0])),
    )


async def conduct(
    journal: LogJournal, plan: Plan, luck: random.Random, *, ends: bool = True
) -> Run | None:
    """Conduct a run with several concurrent calls, and return it as it ended.

    Some calls are settled only by the end of the run. Return None if the run was refused or
    withdrawn, or, unless it `ends`, was left as it is at some point.
    """
    request_id = plan.id if luck.random() < 0.5 else ""
    try:
        began = start(plan.id, plan.tenant, request_id, started_at=plan.started_at, hold=plan.hold)
        await journal.begin(began)
    except BudgetExhausted:
        return None
    made: list[Call] = []

    async def make(call: Call) -> None:
        try:
            await journal.open(opened(call))
        except BudgetExhausted:
            return
        made.append(call)
        await asyncio.sleep(0)
        if luck.random() < 0.8:
            journal.settle(call)
        if luck.random() < 0.3:
            with suppress(BudgetExhausted):
                await journal.reserve_for_answer(plan.id, call.reserved)

    await asyncio.gather(_tell(journal, plan.id, luck), *(make(call) for call in plan.calls))
    if not ends and luck.random() < 0.4:
        return None
    if not made and luck.random() < 0.3:
        journal.forget(plan.id)
        return None
    status: RunStatus = luck.choice(("finished", "failed", "cancelled"))
    result = luck.choice((ANSWER, replace(ANSWER, executions=EXECUTIONS[:1]), None))
    of = {"tenant": plan.tenant, "request_id": request_id}
    happened = with_executions(brief(events(plan.id)), result)
    over = run(plan.id, plan.started_at, made, status=status, result=result, events=happened, **of)
    await journal.finish(over)
    return over


async def _tell(journal: LogJournal, run_id: str, luck: random.Random) -> None:
    """Write turns and searches, those of the result or others."""
    for number, execution in enumerate(EXECUTIONS):
        agent = AgentId("execution", luck.choice((number, number, 5)))
        conversation = execution.conversation
        if luck.random() < 0.7:
            journal.turn(run_id, agent, conversation.messages, conversation.outputs[0])
            await asyncio.sleep(0)
            for search in execution.searches:
                journal.note(run_id, Searched(agent, search))
        if luck.random() < 0.2:
            journal.turn(
                run_id,
                agent,
                (*conversation.messages, Message("user", "More?")),
                Completion("No.", "stop"),
            )
        if luck.random() < 0.2:
            journal.note(run_id, Decided(luck.randrange(3)))


async def stored_runs(database: Database, tenant: str) -> list[Run]:
    """Return all runs of a tenant."""
    run_ids = await rows(
        database, "SELECT run_id FROM runs WHERE tenant = :tenant ORDER BY run_id", tenant=tenant
    )
    return [await SQLArchive(database).load(run_id) for (run_id,) in run_ids]


async def agree(database: Database, tenant: str, runs: list[Run], ended_runs: list[Run]) -> None:
    """Assert that the spending of a tenant equals that of its runs, that ended runs are stored
    as in `ended_runs`, and that the others were interrupted.
    """
    sums: dict[str, Counter[str]] = {}
    for stored_run in runs:
        for period in names(stored_run.started_at)[1:]:
            sums.setdefault(period, Counter())["requests"] += 1
        for call in stored_run.calls:
            for period in names(call.started_at)[1:]:
                counts = sums.setdefault(period, Counter())
                counts.update(tokens=call.charged.tokens, nano_usd=call.charged.nano_usd or 0)
    assert await spent(database, tenant) == {
        period: tuple(counts[name] for name in ("requests", "tokens", "nano_usd"))
        for period, counts in sums.items()
        if any(counts.values())
    }
    usage = await SQLUsages(database).usage(UsageQuery(tenant=tenant))
    summed = {(row.role, row.model): added([row]) for row in usage.rows}
    calls = [call for run in runs for call in run.calls]
    assert summed == {(total.role, total.model): added([total]) for total in totals(calls)}
    assert (await check(database)).problems == []
    stored_by_id = {run.id: run for run in runs}
    for over in ended_runs:
        stored = stored_by_id.pop(over.id)
        assert {call.number: call for call in stored.calls} == {
            call.number: call for call in over.calls
        }
        assert replace(stored, calls=()) == replace(over, calls=())
    assert {run.status for run in stored_by_id.values()} <= {"interrupted"}
