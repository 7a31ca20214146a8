"""Killed runs of three layers are resumed from the last turn of each of their models."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.access import Tenant
from router.ledger import UsageQuery
from router.runs import Gateway, RequestOptions, RunFilter, RunLifecycle
from router.runs.gateway import AnswerRequest
from router.runs.live import LiveRuns
from router.search import Topology
from router.search.managers import Managers
from router.store import Database, LogJournal, SQLAccounts, SQLArchive, SQLUsages
from router.trace import Run, Trajectory
from router.trace.export import agent_trajectories
from router.trace.run import RoleSetting
from router.trace.values import by_executors
from tests.router.deployment import HeldModel
from tests.router.layers import QUESTION, Layers, Pages

WHO = "delegator", "manager", "worker", "browser's worker", "answerer"


def layers(held: str = "", free: int = 0) -> Layers:
    """Return layers whose first four facts are blocked for the first manager.

    The model `held` stops answering after `free` calls.
    """
    made = Layers(pages={"search": Pages(range(4)), "browser": Pages()})
    managers = dict(made.managers)
    workers = dict(made.workers)
    match held:
        case "manager":
            managers["search"] = HeldModel(managers["search"], free)
        case "worker":
            workers["search"] = HeldModel(workers["search"], free)
        case "browser's worker":
            workers["browser"] = HeldModel(workers["browser"], free)
        case "delegator" | "answerer":
            setattr(made, held, HeldModel(getattr(made, held), free))
    made.managers = managers
    made.workers = workers
    return made


def held_of(made: Layers) -> HeldModel:
    models = [made.delegator, made.answerer, *made.managers.values(), *made.workers.values()]
    return next(model for model in models if isinstance(model, HeldModel))


def asked(made: Layers) -> int:
    """Count the calls of all models."""
    models: list[Any] = [
        made.delegator,
        made.answerer,
        *made.managers.values(),
        *made.workers.values(),
    ]
    return sum(len(model.prompts) for model in models)


@asynccontextmanager
async def gateway(
    folder: Path, made: Layers, tenant: Tenant | None = None
) -> AsyncIterator[tuple[Gateway, SQLArchive, SQLUsages]]:
    folder.mkdir(exist_ok=True)
    database = await Database.open(f"sqlite:///{folder}/runs.db")
    roles: Any = made.roles()
    managers: Managers = made.of()
    settings = {"delegation": RoleSetting("backbone", "0" * 64)}
    if tenant:
        await SQLAccounts(database).set_tenant(tenant)
    try:
        async with LogJournal.writing(database) as journal:
            archive = SQLArchive(database, journal.calls)
            lifecycle = RunLifecycle(journal, archive, LiveRuns(), settings, 60.0)
            host = Topology(made.search(), roles)
            topologies: Any = {"host": host, "factorized": host}
            opened_gateway = Gateway(
                topologies=topologies, executor=managers, roles=roles, lifecycle=lifecycle
            )
            yield opened_gateway, archive, SQLUsages(database, journal.under_way)
    finally:
        await database.close()


async def ask(asked_gateway: Gateway, **options: Any) -> Run:
    return await asked_gateway.answer(AnswerRequest(QUESTION, "host"), RequestOptions(**options))


async def whole(folder: Path) -> Run:
    """Return an undisturbed run."""
    async with gateway(folder / "whole", layers()) as (undisturbed_gateway, archive, _):
        run = await ask(undisturbed_gateway)
        assert await archive.load(run.id) == run
    return run


def result_of(run: Run) -> object:
    assert isinstance(run.result, Trajectory)
    return run.result


@pytest.mark.parametrize(
    ("held", "free"),
    [("delegator", 0), ("delegator", 1), ("answerer", 0)]
    + [("manager", free) for free in (0, 1, 3)]
    + [("worker", free) for free in (0, 3, 9, 15)]
    + [("browser's worker", free) for free in (0, 5)],
)
async def test_only_calls_in_flight_are_repeated_in_any_layer(
    tmp_path: Path, held: str, free: int
) -> None:
    """The resumed run equals an undisturbed one, worker by worker, and pays for the rest only."""
    left = tmp_path / "killed"
    made = layers(held, free)
    async with gateway(tmp_path / "first", made) as (first, archive, _):
        asking = asyncio.create_task(ask(first, request_id="mine"))
        await asyncio.wait_for(held_of(made).called.wait(), 10)
        await asyncio.sleep(0)  # the log is written at the end of the loop's turn
        run_id = (await archive.list(RunFilter(), 1)).runs[0].id
        shutil.copytree(tmp_path / "first", left)
        (left / "runs.db.log" / "owner").unlink()
        held_of(made).let.set()
        await asking
    anew = layers()
    async with gateway(left, anew) as (second, archive, _):
        interrupted = await archive.load(run_id)
        run = await ask(second, request_id="mine")
        assert await archive.load(run.id) == run
    undisturbed = await whole(tmp_path)
    assert (run.status, run.resumed_from, result_of(run)) == (
        "finished",
        run_id,
        result_of(undisturbed),
    )
    ended = [call for call in interrupted.calls if call.outcome == "completed"]
    assert len(ended) + len(run.calls) == len(undisturbed.calls)
    assert asked(anew) == len(run.calls)
    assert {call.outcome for call in interrupted.calls} <= {"completed", "interrupted"}


async def test_sums_by_manager_and_exported_agents_match_the_calls(tmp_path: Path) -> None:
    """The agents of an export name their manager."""
    async with gateway(tmp_path / "one", layers()) as (asked_gateway, archive, usages):
        run = await ask(asked_gateway)
        await archive.load(run.id)
        report = await usages.usage(UsageQuery(by=("role", "manager")))
    sums = {
        (row.role, row.manager): row.prompt_tokens + row.completion_tokens for row in report.rows
    }
    for (role, manager), tokens in sums.items():
        calls = [call for call in run.calls if (call.role, call.manager) == (role, manager)]
        assert tokens == sum(call.usage.total_tokens for call in calls if call.usage) > 0
    assert set(sums) == {
        *(("delegation", name) for name in ("", "search", "browser")),
        *(("execution", name) for name in ("search", "browser")),
        ("answer", ""),
    }
    agents = {line.agent: line for line in agent_trajectories(run, ())}
    assert len(agents) == 1 + 3 + 12 + 1
    assert (
        agents["delegation-0-search"].parent
        == agents["delegation-0-browser"].parent
        == "delegation"
    )
    assert agents["execution-0-browser-3"].parent == "delegation-0-browser"
    assert agents["delegation-1-search"].model == "manager"
    assert isinstance(run.result, Trajectory)
    assert len(list(by_executors(run.result.executions))) == 12


async def test_a_redacted_run_keeps_managers_and_counts_and_no_texts(tmp_path: Path) -> None:
    async with gateway(tmp_path / "one", layers(), Tenant("default", redact=True)) as (
        asked_gateway,
        archive,
        _,
    ):
        run = await archive.load((await ask(asked_gateway)).id)
    assert isinstance(run.result, Trajectory)
    first, second = run.result.executions
    assert (first.manager, second.manager, run.redacted) == ("browser", "search", True)
    assert first.before
    assert (first.before.outcome, first.before.report.answer, first.sub_query) == (
        "escalated",
        "",
        "",
    )
    assert first.work
    assert [len(execution.conversation.outputs) for execution in first.work.executions] == [2] * 4
    assert not any(
        message.content
        for execution in first.work.executions
        for message in execution.conversation.messages
    )
