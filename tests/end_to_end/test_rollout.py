"""Rollouts over the demo's world, with real engines and real retrieval; the mini executor
teaches itself.
"""

import re
from functools import partial
from pathlib import Path

import msgspec
import pytest

from executor_sft.miniworld.export import export
from executor_sft.miniworld.world import World
from executor_sft.questions import read_questions
from executor_sft.rollout import CALLS, ROLLOUTS, Rollout, roll_out_all, rollout_worker
from executor_sft.runtime import Runtime, open_runtime
from router.ledger.reconciliation import Tokens, VLLMCounts
from router.models.session import fetch_text, upstream_session
from serving.config.config import Config, DistillationConfig
from tests.end_to_end.test_demo import DEMO_SEED

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest.fixture
def config(demo_engines: Config) -> Config:
    """The demo's config, with the executor as its teacher."""
    return msgspec.structs.replace(
        demo_engines, distillation=DistillationConfig(teacher=demo_engines.roles.execution)
    )


def without_scores(lines: bytes) -> bytes:
    """Return the rollouts without scores, whose last digits depend on what was embedded at the same
    time.
    """
    return re.sub(rb'"score":[-\d.e]+', b"", lines)


async def counted(bench: Runtime) -> dict[str, Tokens]:
    """Return the tokens that each engine has counted, by its model."""
    roles = (bench.config.roles.delegation, bench.config.roles.execution)
    async with upstream_session() as session:
        counts = VLLMCounts(partial(fetch_text, session))
        return {role.model: (await counts.read(str(role.base_url))).tokens for role in roles}


async def test_rollouts_cost_what_the_engines_counted(config: Config, tmp_path: Path) -> None:
    """All questions are rolled out, and a repetition costs nothing."""
    export(World(DEMO_SEED, "test"), tmp_path, 6)
    questions = read_questions(tmp_path / "questions.jsonl")[0]
    async with open_runtime(
        config, lambda step: None, cache=tmp_path / CALLS, teacher=True
    ) as bench:
        before = await counted(bench)
        failed = await roll_out_all(
            rollout_worker(bench).roll_out, questions, tmp_path / ROLLOUTS, 4, lambda: None
        )
        assert bench.cache is not None
        spent = bench.cache.spent
        for model, after in (await counted(bench)).items():
            ours = [usage for usage in spent if usage.model == model]
            assert (
                after.prompt - before[model].prompt
                == sum(usage.prompt_tokens for usage in ours)
                > 0
            )
            assert (
                after.completion - before[model].completion
                == sum(usage.completion_tokens for usage in ours)
                > 0
            )
        written = (tmp_path / ROLLOUTS).read_bytes()
        (tmp_path / ROLLOUTS).unlink()
        await roll_out_all(
            rollout_worker(bench).roll_out, questions, tmp_path / ROLLOUTS, 4, lambda: None
        )
        rewritten = (tmp_path / ROLLOUTS).read_bytes()
        assert (without_scores(rewritten), bench.cache.spent) == (without_scores(written), spent)
    assert failed == {}
    rollouts = [msgspec.json.decode(line, type=Rollout) for line in written.splitlines()]
    assert [rollout.question for rollout in rollouts] == questions
    works = [work for rollout in rollouts for work in rollout.sub_queries]
    assert works
    for work in works:
        assert work.teacher.execution.executor == "mini-executor"
        assert work.student.execution.conversation == work.teacher.execution.conversation
        assert (work.student.answer, work.student.verdict) == (
            work.teacher.answer,
            work.teacher.verdict,
        )
    assert any(rollout.verdict.correct for rollout in rollouts)
