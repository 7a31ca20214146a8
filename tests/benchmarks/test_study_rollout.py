"""One rollout of a cell, and the role that lost a wrong answer."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.study.cells import SweepCell, cells_of
from benchmarks.study.plan import read_plan
from benchmarks.study.results import QuestionResult
from benchmarks.study.sweep import ask
from executor_sft.runtime import open_runtime
from tests.benchmarks import test_sweep

endpoint = test_sweep.endpoint
rollout_config = test_sweep.rollout_config
sweep = test_sweep.sweep
QUESTION = BenchmarkQuestion(
    "1", "Where was the director of F1 born?", ("home of MannF1",), "films", "test"
)


async def asked(
    sweep: Path, name: str, change: Callable[[SweepCell], SweepCell] = lambda cell: cell
) -> QuestionResult:
    """Return the row of one rollout of the cell with this name."""
    plan = read_plan(sweep)
    cell = next(cell for cell in cells_of(plan) if cell.name == name)
    async with open_runtime(cell.config, lambda _step: None) as bench:
        cell = change(cell)
        return await ask(cell, plan, None, replace(bench, config=cell.config), (QUESTION, 0))


async def test_a_rollout_without_execution_needs_no_executor(sweep: Path) -> None:
    """The executor's engine may be in another group of cells, and not running."""

    def elsewhere(cell: SweepCell) -> SweepCell:
        roles = cell.config.roles
        execution = msgspec.structs.replace(roles.execution, engine="elsewhere", base_url=None)
        roles = msgspec.structs.replace(roles, execution=execution)
        config = msgspec.structs.replace(cell.config, roles=roles)
        return msgspec.structs.replace(cell, config=config)

    row = await asked(sweep, "no_retrieval: big", elsewhere)
    assert {spent.role for spent in row.spent} == {"delegation"}
    assert (row.executor, row.lost_by, row.searches) == ("", None, ())


@pytest.mark.parametrize(("executor", "lost_by"), [("student", "documents"), ("teacher", None)])
async def test_a_wrong_answer_is_traced_to_a_role(
    sweep: Path, executor: str, lost_by: str | None
) -> None:
    """A right answer is not."""
    row = await asked(sweep, f"big + {executor}")
    assert (row.executor, row.exact_match, row.lost_by) == (executor, lost_by is None, lost_by)
