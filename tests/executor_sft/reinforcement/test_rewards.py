"""Rewards of runs of questions and of tables, by part."""

import msgspec
import pytest

from executor_sft.reinforcement.rewards import (
    RewardParts,
    RewardRecipe,
    is_readable,
    reward_parts,
    run_reward,
)
from router.trace import Trajectory
from router.trace.table import Column, Schema
from router.trace.turns import work_of
from router.trace.values import TableRun
from tests.router.deployment import Deployment, lasting
from tests.router.store.stored import run
from tests.router.trace.test_agent_trajectories import FOUND
from tests.scripted_model import ScriptedModel

PAPER = RewardRecipe()


@pytest.mark.parametrize(
    ("longest", "penalty"), [(0, 0), (3000, 0), (4000, -0.05), (5000, -0.1), (9000, -0.1)]
)
def test_long_turns_cost(longest: int, penalty: float) -> None:
    """From 3,000 tokens on, in full from 5,000 on."""
    parts = reward_parts(PAPER, 0.5, readable=True, searched=True, longest=longest, sub_queries=3)
    assert msgspec.structs.astuple(parts) == pytest.approx((0.5, 0.1, 0.05, penalty, 0.0))
    assert parts.total == pytest.approx(0.65 + penalty)


def test_an_unreadable_answer_earns_nothing() -> None:
    """Not even for its searches."""
    parts = reward_parts(PAPER, 1.0, readable=False, searched=True, longest=9, sub_queries=3)
    assert parts == RewardParts()


def test_sub_queries_cost_if_the_recipe_says_so() -> None:
    recipe = RewardRecipe(cost=0.01, search=0.0, format=0.0)
    parts = reward_parts(recipe, 1.0, readable=True, searched=True, longest=9, sub_queries=8)
    assert parts.total == pytest.approx(0.92)


@pytest.mark.parametrize(
    ("score", "gold", "reward"),
    [("exact_match", "Mann", 0.0), ("f1", "Mann", 2 / 3), ("exact_match", "michael mann", 1.0)],
)
def test_answers_are_scored_as_the_recipe_says(score: str, gold: str, reward: float) -> None:
    """FOUND made no search, and dispatched two sub-queries."""
    recipe = RewardRecipe(answer=score, cost=0.01)  # type: ignore[arg-type]
    parts = run_reward(recipe, FOUND, work_of(run("run-1", result=FOUND)), [gold])
    assert msgspec.structs.astuple(parts) == pytest.approx((reward, 0.1, 0.0, 0.0, -0.02))


def test_a_run_at_a_limit_earns_nothing() -> None:
    late = msgspec.structs.replace(FOUND, outcome="rounds_exhausted")
    assert not is_readable(late)
    assert run_reward(PAPER, late, [], ["Michael Mann"]) == RewardParts()


def test_tables_are_scored_by_item_f1() -> None:
    """One of two rows, given by the client, with one of two right cells."""
    schema = Schema((Column("city", key=True), Column("founded", "integer")))
    filled = TableRun(schema, given=(("Rome", "1200"),))
    right = [["Rome", "753 BC"], ["Oslo", "1040"]]
    parts = run_reward(PAPER, filled, [], (), right)
    assert msgspec.structs.astuple(parts) == pytest.approx((1 / 3, 0.1, 0.0, 0.0, 0.0))
    cut = msgspec.structs.replace(filled, outcome="rows_exhausted")
    assert run_reward(PAPER, cut, [], (), right) == RewardParts()


def test_other_ends_of_a_run_are_readable() -> None:
    assert is_readable(Trajectory("not found in your documents", "not_found"))


@pytest.mark.parametrize(
    ("outputs", "readable"),
    [(["<search>Who?</search>", ""], False), (["<search>Who?</search>", "Mann"], True)],
)
async def test_an_answer_that_stays_malformed_earns_nothing(
    outputs: list[str], readable: bool
) -> None:
    """It ends a run like an answer that nothing was found, but has no reward for its form."""
    answerer = ScriptedModel(outputs)
    result = await Deployment(answerer=answerer).search().run("Who?", lasting())
    assert len(answerer.prompts) == 2
    assert is_readable(result) is readable
    parts = run_reward(PAPER, result, [], ["Mann"])
    assert (parts.format > 0, parts == RewardParts()) == (readable, not readable)
