"""One cell at work, against a real server."""

from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.study.asker import Asker
from benchmarks.study.cell import prepared
from benchmarks.study.plan import read_plan
from benchmarks.study.provenance import provenance
from executor_sft.call_cache import CallCache
from executor_sft.runtime import open_runtime
from tests.benchmarks import test_sweep

endpoint, rollout_config, sweep = test_sweep.endpoint, test_sweep.rollout_config, test_sweep.sweep


async def test_who_does_not_execute_needs_no_executor(sweep: Path, tmp_path: Path) -> None:
    """Its engine may be of another group of cells, and not be there."""
    cell = next(cell for cell in prepared(read_plan(sweep)) if cell.cell.topology == "no_retrieval")
    question = BenchmarkQuestion("q1", "Where was the director of F1 born?", ("home",), "films", "test")
    async with open_runtime(cell.config, lambda _step: None) as bench:
        roles = cell.config.roles
        elsewhere = msgspec.structs.replace(roles.execution, engine="elsewhere", base_url=None)
        roles = msgspec.structs.replace(roles, execution=elsewhere)
        cell = msgspec.structs.replace(cell, config=msgspec.structs.replace(cell.config, roles=roles))
        made_by = provenance(cell, None, None, 0)
        with CallCache.open(tmp_path / "judgements.jsonl") as judgements:
            asker = Asker(cell, replace(bench, config=cell.config), None, {}, made_by, None, True, judgements, ())
            row = await asker.ask(question, 0, 0)
    assert {one.role for one in row.spent} == {"delegation"}
    assert row.executor is None
