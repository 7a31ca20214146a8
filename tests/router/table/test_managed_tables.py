"""Tables whose cells go to managers: the program asks another manager for cells that one cannot
fill.
"""

import asyncio
import dataclasses
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from router.calls import Role
from router.errors import UpstreamRefused
from router.models import Prompt, Sampling
from router.protocol import Passage
from router.runs import RequestOptions, RunFilter
from router.search import Delegator, Executor
from router.search.agent import Agent, ExecutorLimits
from router.search.managers import Manager, Managers
from router.table import TableLimits, table_of
from router.table.filling import EXECUTOR_OF_TABLES, TABLE_FORM
from router.table.table_text import parse_table_turn
from router.trace import Run
from router.trace.table import Ask
from router.trace.turns import work_of
from router.trace.values import TableRun
from tests.router.deployment import HeldModel, block
from tests.router.table.small_world import REQUEST, Reader, World, gateway, lead
from tests.router.unfiltered import Unfiltered
from tests.scripted_model import ScriptedModel

LIMITS = TableLimits(width=4, cells_per_ask=1)
BLOCKED = "This page is blocked."


class Partly:
    """Pages of a world; those of some cities are blocked, and some say nothing."""

    def __init__(
        self, world: World, blocked: Sequence[str] = (), silent: Sequence[str] = ()
    ) -> None:
        self._world = world
        self._blocked = blocked
        self._silent = silent

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        pages_by_query = await self._world.search(queries, top_k)
        return [[self._shown(page) for page in pages] for pages in pages_by_query]

    def _shown(self, page: Passage) -> Passage:
        text = page.text
        if page.title in self._silent:
            text = "Nothing."
        if page.title in self._blocked:
            text = BLOCKED
        return Passage(page.id, page.title, text, document=page.document)


class Blocked(Reader):
    """A worker that names a manager for blocked pages."""

    def report(self, asked: str, shown: str) -> str:
        handed_on = '<escalate to="browser">it is blocked</escalate>'
        return handed_on if BLOCKED in shown else super().report(asked, shown)


def manages(prompt: Prompt) -> str:
    """Pass the step on, and return the workers' answers."""
    if len(prompt.messages) == 2:
        return block(prompt.messages[1].content)
    answers = re.findall(r"<answer>(.*?)</answer>", prompt.messages[-1].content, re.DOTALL)
    return f"<answer>{chr(10).join(answers)}</answer><evidence>as workers say</evidence>"


def managers(**pages: Any) -> Managers:
    """Return managers by name, with the pages of their workers; None if the workers' model is
    gone.
    """
    gone = ScriptedModel(lambda _: UpstreamRefused("no", endpoint="x"))

    def manager(name: str, shown: Any) -> Manager:
        lead_role = Role(
            "delegation", ScriptedModel(manages), f"manage {name}", Sampling(max_tokens=256), 1
        )
        model: Any = Blocked() if shown else gone
        if isinstance(shown, Held):
            model = shown.model
        worker = Role("execution", model, "execution", Sampling(max_tokens=256), 1)
        searched = Unfiltered(shown or Partly(World()))
        agent = Agent(worker, searched, ExecutorLimits(), EXECUTOR_OF_TABLES)
        workers = Executor(worker, searched, ExecutorLimits(), forms={TABLE_FORM: agent})
        return Manager(name, Delegator(lead_role, report=parse_table_turn), workers)

    return Managers([manager(name, shown) for name, shown in pages.items()])


@dataclasses.dataclass
class Held:
    """Pages whose reader stops answering after some calls."""

    pages: Any
    model: Any

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        pages_by_query: list[list[Passage]] = await self.pages.search(queries, top_k)
        return pages_by_query


async def filled(folder: Path, world: World, **pages: Any) -> tuple[TableRun, Run]:
    made = managers(**pages)
    async with gateway(
        folder, world, delegator=lead(world), limits=LIMITS, around=lambda _: made
    ) as (filling_gateway, archive):
        run = await filling_gateway.fill_table(REQUEST, RequestOptions())
        assert (await archive.load(run.id)).result == run.result
    assert isinstance(run.result, TableRun)
    return run.result, run


def rows(table_run: TableRun) -> list[tuple[str, ...]]:
    return [tuple(cell.value for cell in row.cells) for row in table_of(table_run).rows]


def asks(table_run: TableRun, city: str, column: str) -> list[Ask]:
    """Return the asks for a cell in their order."""
    named = [
        ask for ask in table_run.asks if ask.row == (city.casefold(),) and column in ask.columns
    ]
    return sorted(named, key=lambda ask: ask.attempt)


async def test_a_blocked_cell_is_asked_for_at_the_named_manager(tmp_path: Path) -> None:
    """No other cell is, and the delegator is not involved."""
    world = World(8)
    closed = world.cities[:3]
    table_run, run = await filled(
        tmp_path / "one", world, search=Partly(world, closed), other=None, browser=Partly(world)
    )
    assert (rows(table_run), table_run.outcome) == (world.rows(), "filled")
    for city in world.cities:
        went = [ask.manager for ask in asks(table_run, city, "founder")]
        assert went == (["search", "browser"] if city in closed else ["search"])
    assert sum(call.role == "delegation" and not call.manager for call in run.calls) == 2
    assert all(
        claim.citations
        for row in table_of(table_run).rows
        for cell in row.cells[1:]
        for claim in cell.claims
    )
    alone, _ = await filled(tmp_path / "two", world, search=Partly(world, closed))
    blank = [row for row in rows(alone) if not row[1]]
    assert [row[0] for row in blank] == closed


async def test_a_repeated_discovery_goes_once_to_each_named_manager(tmp_path: Path) -> None:
    """A missing and an unknown name mean the first manager."""
    world = World(4)
    text = "Which cities does part 1 list?"
    first = "".join(
        f'<search{name}>["{text}"]</search>'
        for name in ("", ' manager="search"', ' manager="nobody"')
    )
    outputs = [
        first,
        f'<search manager="browser">["{text}"]</search>',
        "<stop/>Enough evidence<stop>",
    ]
    made = managers(search=Partly(world, ["Register, part 1"]), browser=Partly(world))
    model = ScriptedModel(outputs)
    async with gateway(
        tmp_path / "one", world, delegator=model, limits=LIMITS, around=lambda _: made
    ) as (filling_gateway, _):
        table_run = (await filling_gateway.fill_table(REQUEST, RequestOptions())).result
    assert isinstance(table_run, TableRun)
    assert {ask.discovery for ask in table_run.asks} == {0, 1, 2}


async def test_a_hole_is_settled_at_another_manager(tmp_path: Path) -> None:
    """A value that no page states is looked for as often as a cell may be, and no more."""
    world = World(6, unstated=1)
    silent = world.cities[:3]
    table_run, _ = await filled(
        tmp_path / "one", world, search=Partly(world, silent=silent), browser=Partly(world)
    )
    assert rows(table_run) == world.rows()
    for city in world.cities:
        tried = [(ask.kind, ask.manager) for ask in asks(table_run, city, "founder")]
        assert tried == [("fill", "search"), ("settle", "browser")][: 2 if city in silent else 1]


async def test_a_conflict_is_settled_at_another_manager(tmp_path: Path) -> None:
    world = World(6, renamed=2)
    table_run, _ = await filled(
        tmp_path / "one", world, search=Partly(world), browser=Partly(world)
    )
    settled = {ask.manager for ask in table_run.asks if ask.kind == "settle"}
    assert settled == {"browser"}
    counts = [sum(ask.row == row.key for ask in table_run.asks) for row in table_of(table_run).rows]
    assert max(counts) <= 2 * len(REQUEST.columns) * LIMITS.asks_per_cell


@pytest.mark.parametrize("dead", ["search", "browser"])
async def test_a_dead_manager_costs_only_cells_that_no_other_can_fill(
    tmp_path: Path, dead: str
) -> None:
    world = World(6)
    closed = world.cities[:2]
    pages: dict[str, Any] = {"search": Partly(world, closed), "browser": Partly(world)}
    table_run, _ = await filled(tmp_path / "one", world, **(pages | {dead: None}))
    empty = [row[0] for row in rows(table_run) if not all(row)]
    assert empty == (closed if dead == "browser" else [])
    assert [row[0] for row in rows(table_run)] == world.cities


def turns(run: Run) -> int:
    """Return the number of outputs in all conversations of a run."""
    works = work_of(run)
    return sum(len(work.conversation.outputs) for work in works if work.conversation)


@pytest.mark.parametrize("free", [0, 5, 11, 17])
async def test_a_table_of_managers_is_resumed_after_a_kill(tmp_path: Path, free: int) -> None:
    """It equals an undisturbed one, and only calls in flight are repeated."""
    world = World(6)
    closed = world.cities[:2]

    def made(model: Any = None) -> Managers:
        shown: Any = Partly(world, closed)
        return managers(search=Held(shown, model) if model else shown, browser=Partly(world))

    whole, undisturbed = await filled(
        tmp_path / "whole", world, search=Partly(world, closed), browser=Partly(world)
    )
    held = HeldModel(Blocked(), free)
    left = tmp_path / "left"
    named = RequestOptions(request_id="mine")
    first = made(held)
    again = made()
    options: Any = {"delegator": lead(world), "limits": LIMITS}
    async with gateway(tmp_path / "first", world, **options, around=lambda _: first) as (
        filling_gateway,
        archive,
    ):
        filling = asyncio.create_task(filling_gateway.fill_table(REQUEST, named))
        await asyncio.wait_for(held.called.wait(), 10)
        await asyncio.sleep(0)  # the log is written at the end of the loop's turn
        run_id = (await archive.list(RunFilter(), 1)).runs[0].id
        shutil.copytree(tmp_path / "first", left)
        (left / "runs.db.log" / "owner").unlink()
        held.let.set()
        await filling
    async with gateway(left, world, **options, around=lambda _: again) as (
        filling_gateway,
        archive,
    ):
        interrupted = await archive.load(run_id)
        run = await filling_gateway.fill_table(REQUEST, named)
    assert isinstance(run.result, TableRun)
    assert (run.resumed_from, rows(run.result)) == (run_id, rows(whole))
    ended = [call for call in interrupted.calls if call.outcome == "completed"]
    # As many calls as turns. Which cells are asked for together depends on the order of reports.
    assert len(ended) + len(run.calls) == turns(run)
    assert len(undisturbed.calls) == turns(undisturbed)
