"""Tables of a killed gateway are resumed and equal undisturbed ones."""

import asyncio
import shutil
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from router.errors import BadRequest, UpstreamRefused
from router.models import Completion, Delta, OnDelta, Prompt
from router.runs import Gateway, RequestOptions, RunFilter
from router.table import TableLimits, TableRequest, table_of
from router.trace import Run
from router.trace.values import Reported, TableRun
from tests.router.deployment import HeldModel
from tests.router.table.small_world import REQUEST, Reader, World, gateway, lead
from tests.scripted_model import ScriptedModel

LIMITS = TableLimits(width=3)
NAMED = RequestOptions(request_id="mine")


def world() -> World:
    """A world with old names and unstated facts."""
    return World(10, unstated=1, renamed=1)


def models(held: str = "", free: int = 0, seed: int = 0) -> dict[str, Any]:
    """Return two models that note their prompts.

    The model `held` stops answering after `free` calls.
    """
    by_role: dict[str, Any] = {"delegator": lead(world(), 2), "executor": Reader(seed=seed, slow=9)}
    return by_role | ({held: HeldModel(by_role[held], free)} if held else {})


async def fill(
    filling: Gateway, options: RequestOptions = NAMED, request: TableRequest = REQUEST
) -> Run:
    return await filling.fill_table(request, options)


async def killed(
    folder: Path, held: str, played: dict[str, Any], request: TableRequest = REQUEST, **terms: Any
) -> tuple[Path, str]:
    """Return the store that a kill leaves when `held` stops answering, and the run."""
    left = folder / "killed"
    async with gateway(folder / "first", world(), **played, limits=LIMITS, **terms) as (
        first,
        archive,
    ):
        filling = asyncio.create_task(fill(first, request=request))
        await asyncio.wait_for(played[held].called.wait(), 10)
        await asyncio.sleep(0)  # the log is written at the end of the loop's turn
        run_id = (await archive.list(RunFilter(), 1)).runs[0].id
        shutil.copytree(folder / "first", left)
        (left / "runs.db.log" / "owner").unlink()
        played[held].let.set()
        await filling
    return left, run_id


def table(run: Run) -> object:
    assert isinstance(run.result, TableRun)
    return table_of(run.result)


@pytest.mark.parametrize(
    ("held", "free", "way"),
    [
        ("delegator", 0, "name"),
        ("delegator", 1, "name"),
        ("delegator", 2, "identifier"),
        *(
            ("executor", free, ("name", "identifier")[free % 2])
            for free in (0, 1, 4, 7, 12, 16, 20, 25, 31)
        ),
    ],
)
async def test_a_resumed_table_equals_an_undisturbed_one_claim_by_claim(
    tmp_path: Path, held: str, free: int, way: str
) -> None:
    """Only calls in flight are repeated, with shared reports too."""
    terms: dict[str, Any] = {"limits": LIMITS, "shared": free % 3 == 1}
    async with gateway(tmp_path / "whole", world(), **models(seed=5), **terms) as (undisturbed, _):
        whole = await fill(undisturbed)
    left, run_id = await killed(tmp_path, held, models(held, free), shared=terms["shared"])
    anew = models(seed=8)
    async with gateway(left, world(), **anew, **terms) as (second, archive):
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


async def test_a_table_is_resumed_after_a_second_kill(tmp_path: Path) -> None:
    async with gateway(tmp_path / "whole", world(), **models(), limits=LIMITS) as (undisturbed, _):
        whole = await fill(undisturbed)
    left, run_id = await killed(tmp_path, "executor", models("executor", 10))
    played = models("executor", 8)
    again = tmp_path / "again"
    async with gateway(left, world(), **played, limits=LIMITS) as (second, archive):
        filling = asyncio.create_task(fill(second, RequestOptions(resume=run_id)))
        await asyncio.wait_for(played["executor"].called.wait(), 10)
        await asyncio.sleep(0)
        second_id = (await archive.list(RunFilter(), 1)).runs[0].id
        shutil.copytree(left, again)
        (again / "runs.db.log" / "owner").unlink()
        played["executor"].let.set()
        await filling
    async with gateway(again, world(), **models(), limits=LIMITS) as (third, archive):
        run = await fill(third, RequestOptions(resume=second_id))
        before = [await archive.load(killed_id) for killed_id in (run_id, second_id)]
    assert table(run) == table(whole)
    ended = sum(call.outcome == "completed" for earlier in before for call in earlier.calls)
    assert ended + len(run.calls) == len(whole.calls)


class Telling(Reader):
    """A delegator that announces its third turn."""

    def __init__(self) -> None:
        super().__init__()
        self.third = asyncio.Event()

    def _write(self, prompt: Prompt) -> Any:
        if len(self.prompts) == 3:
            self.third.set()
        return super()._write(prompt)


class HalfWritten(HeldModel):
    """A delegator that writes its first turn but for the end, and stops once executors have
    begun.
    """

    def __init__(self, model: ScriptedModel, executor: Telling) -> None:
        super().__init__(model)
        self._executor = executor

    async def stream(self, prompt: Prompt, on_delta: OnDelta, *, live: bool = True) -> Completion:
        deltas = list[Delta]()
        completion = await self._model.stream(prompt, deltas.append)
        for delta in deltas[:-4]:
            on_delta(delta)
        await self._executor.third.wait()
        self.called.set()
        await self.let.wait()
        for delta in deltas[-4:]:
            on_delta(delta)
        return completion


@pytest.mark.parametrize("agrees", [True, False])
async def test_early_asks_are_taken_over_if_the_delegator_repeats_them(
    tmp_path: Path, agrees: bool
) -> None:
    """Otherwise the table is as if they had never begun."""
    deciding = {} if agrees else {"delegator": lead(world(), 3, first=1)}
    async with gateway(tmp_path / "whole", world(), **(models() | deciding), limits=LIMITS) as (
        undisturbed,
        _,
    ):
        whole = await fill(undisturbed)
    played = {"delegator": HalfWritten(lead(world(), 2), reader := Telling()), "executor": reader}
    left, run_id = await killed(tmp_path, "delegator", played)
    deciding = {} if agrees else {"delegator": lead(world(), 3, first=1)}  # starts elsewhere
    async with gateway(left, world(), **(models() | deciding), limits=LIMITS) as (second, _):
        run = await fill(second, RequestOptions(resume=run_id))
    assert table(run) == table(whole)
    assert (len(run.calls) < len(whole.calls)) == agrees


class OnlyLists(Reader):
    """An executor that fails whenever it is asked about a row."""

    def _write(self, prompt: Prompt) -> Any:
        if "part" not in prompt.messages[1].content:
            return UpstreamRefused("no", endpoint=self.endpoint)
        return super()._write(prompt)


@pytest.mark.parametrize("free", [3, 4])
async def test_no_two_asks_have_the_same_number_if_a_turn_is_asked_for_again(
    tmp_path: Path, free: int
) -> None:
    """After the kill, executors succeed that had failed before. So the delegator sees another
    status, and writes a turn again whose asks were recorded.
    """
    played = {"delegator": lead(world(), 1), "executor": HeldModel(OnlyLists(), free)}
    left, run_id = await killed(tmp_path, "executor", played)
    deciding = {"delegator": lead(world(), 1)}
    async with gateway(left, world(), **(models() | deciding), limits=LIMITS) as (second, _):
        run = await fill(second, RequestOptions(resume=run_id))
    assert isinstance(run.result, TableRun)
    assert len(deciding["delegator"].prompts) > 1
    reports = [
        (event.index, event.execution) for event in run.events if isinstance(event, Reported)
    ]
    # Asks that only the killed run made have no report
    executions = enumerate(run.result.executions)
    assert sorted(reports, key=itemgetter(0)) == [
        (number, execution) for number, execution in executions if execution.looked
    ]


async def test_a_table_and_an_answer_are_not_resumed_as_each_other(tmp_path: Path) -> None:
    left, run_id = await killed(tmp_path, "executor", models("executor", 3))
    async with gateway(left, world(), **models(), limits=LIMITS) as (second, _):
        with pytest.raises(BadRequest, match="cannot be resumed"):
            await second.answer("", RequestOptions(resume=run_id))
