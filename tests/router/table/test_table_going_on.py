"""A table whose gateway was killed is gone on with, and comes to what it would have been."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from router.errors import BadRequest
from router.runs import Gateway, RequestOptions, RunFilter
from router.table import TableLimits, table_of
from router.trace import Run
from router.trace.values import TableRun
from tests.router.deployment import HeldModel
from tests.router.table.small_world import REQUEST, Reader, World, gateway, lead

LIMITS = TableLimits(width=3)
NAMED = RequestOptions(request_id="mine")


def world() -> World:
    """With old names, and facts that no page states."""
    return World(10, unstated=1, renamed=1)


def models(held: str = "", free: int = 0, seed: int = 0) -> dict[str, Any]:
    """Two models that note what they are asked; `held` does not answer after `free` calls."""
    said: dict[str, Any] = {"delegator": lead(world(), 2), "executor": Reader(seed=seed, slow=9)}
    return said | ({held: HeldModel(said[held], free)} if held else {})


async def fill(filling: Gateway, options: RequestOptions = NAMED) -> Run:
    return await filling.fill_table(REQUEST, options)


async def killed(folder: Path, held: str, free: int) -> tuple[Path, str, int]:
    """The store as a kill leaves it, the run, and the number of its calls that had ended by then."""
    said, left = models(held, free), folder / "killed"
    async with gateway(folder / "first", world(), **said, limits=LIMITS) as (first, archive):
        filling = asyncio.create_task(fill(first))
        await asyncio.wait_for(said[held].called.wait(), 10)
        await asyncio.sleep(0)  # the log is written at the end of the loop's turn
        run_id = (await archive.list(RunFilter(), 1)).runs[0].id
        shutil.copytree(folder / "first", left)
        (left / "runs.db.log" / "owner").unlink()
        said[held].let.set()
        await filling
    return left, run_id, free


def table(run: Run) -> object:
    assert isinstance(run.result, TableRun)
    return table_of(run.result)


@pytest.mark.parametrize(
    ("held", "free", "way"),
    [
        ("delegator", 0, "name"),
        ("delegator", 1, "name"),
        ("delegator", 2, "identifier"),
        *(("executor", free, ("name", "identifier")[free % 2]) for free in (0, 1, 4, 7, 12, 16, 20, 25, 31)),
    ],
)
async def test_a_killed_run(tmp_path: Path, held: str, free: int, way: str) -> None:
    """Comes to the same table, claim by claim; only what was in flight is asked twice; and asks keep their numbers."""
    async with gateway(tmp_path / "whole", world(), **models(seed=5), limits=LIMITS) as (undisturbed, _):
        whole = await fill(undisturbed)
    left, run_id, _ = await killed(tmp_path, held, free)
    anew = models(seed=8)
    async with gateway(left, world(), **anew, limits=LIMITS) as (second, archive):
        interrupted = await archive.load(run_id)
        run = await fill(second, NAMED if way == "name" else RequestOptions(resume=run_id))
        stored = await archive.load(run.id)
        assert (await fill(second)).id == run.id
    assert (run.status, run.resumed_from, interrupted.status) == ("finished", run_id, "interrupted")
    assert table(run) == table(stored) == table(whole)
    ended = [call for call in interrupted.calls if call.outcome == "completed"]
    cut = len(interrupted.calls) - len(ended)
    assert cut <= LIMITS.width
    assert len(ended) + len(run.calls) == len(whole.calls)
    assert len(anew["delegator"].prompts) + len(anew["executor"].prompts) == len(run.calls)


async def test_a_second_kill(tmp_path: Path) -> None:
    """Is gone on after as well."""
    async with gateway(tmp_path / "whole", world(), **models(), limits=LIMITS) as (undisturbed, _):
        whole = await fill(undisturbed)
    left, run_id, _ = await killed(tmp_path, "executor", 10)
    said, again = models("executor", 8), tmp_path / "again"
    async with gateway(left, world(), **said, limits=LIMITS) as (second, archive):
        filling = asyncio.create_task(fill(second, RequestOptions(resume=run_id)))
        await asyncio.wait_for(said["executor"].called.wait(), 10)
        await asyncio.sleep(0)
        second_id = (await archive.list(RunFilter(), 1)).runs[0].id
        shutil.copytree(left, again)
        (again / "runs.db.log" / "owner").unlink()
        said["executor"].let.set()
        await filling
    async with gateway(again, world(), **models(), limits=LIMITS) as (third, archive):
        run = await fill(third, RequestOptions(resume=second_id))
        before = [await archive.load(one) for one in (run_id, second_id)]
    assert table(run) == table(whole)
    ended = sum(call.outcome == "completed" for one in before for call in one.calls)
    assert ended + len(run.calls) == len(whole.calls)


async def test_a_table_is_no_answer(tmp_path: Path) -> None:
    """Neither is gone on with as the other."""
    left, run_id, _ = await killed(tmp_path, "executor", 3)
    async with gateway(left, world(), **models(), limits=LIMITS) as (second, _):
        with pytest.raises(BadRequest, match="can be gone on with here"):
            await second.answer("", RequestOptions(resume=run_id))
