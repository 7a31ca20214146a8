"""Rows of groups: which turns are trained, and how their tokens are joined."""

from collections.abc import Sequence

import msgspec
import pytest

from executor_sft.questions import Question
from executor_sft.reinforcement.recipe import ObjectiveRecipe, ReinforceRecipe
from executor_sft.reinforcement.rewards import RewardRecipe
from executor_sft.reinforcement.sequences import Batch, batch_of
from executor_sft.rollout import Group
from router.errors import BadConfig
from router.models import Completion, Message
from router.models.model import TokenIds
from router.protocol import Report
from router.trace import Conversation, Execution, Run, Trajectory
from router.trace.values import AnswerOutcome
from tests.router.store.stored import run

RECIPE = ReinforceRecipe(learning_rate=1.0, reward=RewardRecipe(format=0, search=0))
QUESTION = Question("q1", "Who?", ("Mann",))
BOTH = ("delegation", "execution")


def output(*tokens: int, prompt: Sequence[int] = (1,), reason: str = "stop") -> Completion:
    logprobs = tuple(-0.5 * token for token in tokens)
    return Completion("x", reason, tokens=TokenIds(tuple(prompt), tokens, logprobs))


def talk(*outputs: Completion) -> Conversation:
    return Conversation((Message("user", "?"),), outputs)


def worked(*outputs: Completion, outcome: str = "reported") -> Execution:
    return Execution("?", Report("", ()), outcome, (), talk(*outputs))  # type: ignore[arg-type]


def answered(
    seed: int,
    answer: str,
    lead: Sequence[Completion],
    *executions: Execution,
    outcome: AnswerOutcome = "answered",
) -> Run:
    result = Trajectory(
        answer,
        outcome,
        executions,
        (len(executions),),
        delegation=talk(*lead),
        answering=talk(output(9)),
    )
    return run(f"q1/{seed}", result=result)


RIGHT = answered(0, "Mann", [output(2, 3)], worked(output(4)))
WRONG = answered(1, "Nobody", [output(2)])


def batch(*runs: Run, recipe: ReinforceRecipe = RECIPE, roles: Sequence[str] = BOTH) -> Batch:
    return batch_of([Group(QUESTION, runs)], recipe, roles, 0)


def test_agents_share_the_advantage_of_their_run() -> None:
    """Each of two runs has half of the weight, in which its agents, and their tokens, share."""
    rows, figures = batch(RIGHT, WRONG)
    assert [(row.run_id, row.agent, row.role, row.reward) for row in rows] == [
        ("q1/0", "delegation", "delegation", 1.0),
        ("q1/0", "execution-0", "execution", 1.0),
        ("q1/1", "delegation", "delegation", 0.0),
    ]
    assert [row.shares for row in rows] == [(0, 1 / 8, 1 / 8), (0, 1 / 4), (0, 1 / 2)]
    assert rows[0].input_ids == (1, 2, 3)
    assert rows[0].logprobs == (0.0, -1.0, -1.5)
    assert rows[0].weights == pytest.approx((0, 0.707 / 8, 0.707 / 8), abs=1e-3)
    assert rows[2].weights == pytest.approx((0, -0.707 / 2), abs=1e-3)
    assert figures["agents"] == {"delegation": 1.0, "execution": 0.5}
    assert (figures["reward"], figures["mixed_groups"]) == (0.5, 1.0)


def test_a_role_that_is_not_trained_has_no_weight() -> None:
    (row,) = batch(RIGHT, WRONG, roles=["execution"]).rows
    assert (row.agent, row.shares) == ("execution-0", (0, 1 / 2))


def test_turns_are_joined_while_prompts_continue_them() -> None:
    """Another form of earlier turns in a prompt begins a new row."""
    turns = output(2, 3), output(5, prompt=(1, 2, 3, 4)), output(7, prompt=(1, 6))
    first, second, _ = batch(answered(0, "Mann", turns), WRONG).rows
    assert (first.input_ids, second.input_ids) == ((1, 2, 3, 4, 5), (1, 6, 7))
    assert first.shares == pytest.approx((0, 1 / 8, 1 / 8, 0, 1 / 8))
    assert second.shares == pytest.approx((0, 0, 1 / 8))
    assert first.logprobs == (0.0, -1.0, -1.5, 0.0, -2.5)


def test_tied_groups_have_no_rows() -> None:
    """With a divergence from the start, they have rows without weight."""
    tied = msgspec.structs.replace(WRONG, id="q1/0")
    assert batch(WRONG, tied).rows == []
    near = msgspec.structs.replace(RECIPE, objective=ObjectiveRecipe(kl=0.1))
    assert [row.weights for row in batch(WRONG, tied, recipe=near).rows] == [(0, 0)] * 2


def test_agents_at_a_limit_get_no_reward_of_an_answer() -> None:
    """Neither an executor without a report, nor one whose output was cut off."""
    executions = (
        worked(output(4), outcome="no_report"),
        worked(output(5, reason="length")),
        worked(output(6)),
    )
    rows = batch(answered(0, "Mann", [output(2)], *executions), WRONG).rows
    assert [row.agent for row in rows[:-1]] == ["delegation", "execution-2"]


def test_a_run_without_an_answer_blames_its_end_and_endless_turns() -> None:
    """Its other turns are not trained."""
    late = answered(
        0,
        "",
        [output(2), output(3)],
        worked(output(4)),
        worked(output(5), output(6, reason="length")),
        outcome="rounds_exhausted",
    )
    rows = batch(RIGHT, late).rows
    assert [(row.agent, row.input_ids) for row in rows[2:]] == [
        ("delegation", (1, 3)),
        ("execution-1", (1, 6)),
    ]


@pytest.mark.parametrize(
    "tokens", [msgspec.UNSET, TokenIds((1,), (2,))], ids=["no token ids", "no log-probabilities"]
)
def test_outputs_without_tokens_are_refused(tokens: TokenIds | msgspec.UnsetType) -> None:
    """The error names the role."""
    silent = answered(0, "Mann", [Completion("x", "stop", tokens=tokens)])
    with pytest.raises(BadConfig, match=r"q1/0: outputs of the agent delegation .* with vLLM"):
        batch(silent, WRONG)


def test_questions_without_right_answers_are_refused() -> None:
    unknown = Group(Question("q1", "Who?", ()), (RIGHT, WRONG))
    with pytest.raises(BadConfig, match="q1: has no right answer, so"):
        batch_of([unknown], RECIPE, BOTH, 0)
