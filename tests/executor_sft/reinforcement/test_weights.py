"""Advantages of runs, and the weights of their agents and tokens."""

from math import fsum
from random import Random
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_sft.reinforcement.weights import (
    AgentTurns,
    Shares,
    WeightRecipe,
    advantages,
    token_shares,
    token_weights,
)

LEAD = AgentTurns("delegation", (2, 4))
SHORT = AgentTurns("execution", (1,))
LONG = AgentTurns("execution", (3, 1))
SILENT = AgentTurns("execution", ())
RUNS = [[LEAD, SHORT, LONG], [LEAD]]


def total(runs: list[list[AgentTurns]], shares: Shares) -> float:
    return fsum(
        share * length
        for run, of_run in zip(runs, shares, strict=True)
        for agent, of_agent in zip(run, of_run, strict=True)
        for length, share in zip(agent.turns, of_agent, strict=True)
    )


def test_advantages_are_distances_in_standard_deviations() -> None:
    """They sum to 0. Equal rewards give exactly 0."""
    assert advantages([0.0, 0.0, 1.0, 1.0]) == pytest.approx(
        [-0.866024, -0.866024, 0.866024, 0.866024], abs=1e-5
    )
    assert advantages([0.3, 0.3, 0.3]) == [0.0] * 3
    assert advantages([]) == []


@pytest.mark.parametrize(
    ("recipe", "shares"),
    [
        # a mean over runs, over agents, over tokens: Eq. 1
        ({}, [[[1 / 36, 1 / 36], [1 / 6], [1 / 24, 1 / 24]], [[1 / 12, 1 / 12]]]),
        # every agent of the batch weighs the same
        (
            {"agents": "none"},
            [[[1 / 24, 1 / 24], [1 / 4], [1 / 16, 1 / 16]], [[1 / 24, 1 / 24]]],
        ),
        # the lead has half of the weight of a run with executors
        (
            {"agents": "role"},
            [[[1 / 24, 1 / 24], [1 / 8], [1 / 32, 1 / 32]], [[1 / 12, 1 / 12]]],
        ),
        # every turn of an agent weighs the same
        (
            {"tokens": "turn"},
            [[[1 / 24, 1 / 48], [1 / 6], [1 / 36, 1 / 12]], [[1 / 8, 1 / 16]]],
        ),
        # every token of a run, of the batch, of a role weighs the same
        (
            {"tokens": "all"},
            [[[1 / 22, 1 / 22], [1 / 22], [1 / 22, 1 / 22]], [[1 / 12, 1 / 12]]],
        ),
        (
            {"tokens": "all", "agents": "none"},
            [[[1 / 17, 1 / 17], [1 / 17], [1 / 17, 1 / 17]], [[1 / 17, 1 / 17]]],
        ),
        (
            {"tokens": "all", "agents": "role"},
            [[[1 / 24, 1 / 24], [1 / 20], [1 / 20, 1 / 20]], [[1 / 12, 1 / 12]]],
        ),
    ],
)
def test_levels_of_weights(recipe: dict[str, str], shares: Shares) -> None:
    """Two runs: one with a lead of 6 tokens and executors of 1 and 4, and one without executors."""
    found = token_shares(RUNS, WeightRecipe(**recipe))  # type: ignore[arg-type]
    for run, expected in zip(found, shares, strict=True):
        for agent, of_agent in zip(run, expected, strict=True):
            assert agent == pytest.approx(of_agent)


lengths = st.lists(st.integers(0, 5), max_size=3).map(tuple)
agents = st.builds(AgentTurns, st.sampled_from(["delegation", "execution"]), lengths)


@given(
    st.lists(st.lists(agents, max_size=4), min_size=1, max_size=4),
    st.sampled_from(["run", "none", "role"]),
    st.sampled_from(["agent", "turn", "all"]),
)
def test_shares_sum_to_the_share_of_runs_that_wrote(
    runs: list[list[AgentTurns]], of_agents: str, of_tokens: str
) -> None:
    """A run in which no agent wrote still counts as a run."""
    recipe = WeightRecipe(agents=of_agents, tokens=of_tokens)  # type: ignore[arg-type]
    wrote = sum(any(agent.tokens for agent in run) for run in runs)
    expected = float(wrote > 0) if of_agents == "none" else wrote / len(runs)
    assert total(runs, token_shares(runs, recipe)) == pytest.approx(expected)


def test_agents_without_tokens_do_not_count() -> None:
    recipe = WeightRecipe()
    (of_run,) = token_shares([[SILENT, LEAD, AgentTurns("execution", (0, 2))]], recipe)
    assert of_run == [[], [pytest.approx(1 / 12)] * 2, [pytest.approx(1 / 4)] * 2]


@pytest.mark.parametrize("of_tokens", ["agent", "turn", "all"])
def test_drawn_executors_stand_for_all(of_tokens: Literal["agent", "turn", "all"]) -> None:
    """The mean over draws is the share without drawing. The lead is always trained."""
    runs = [[LEAD, SHORT, LONG, LONG, SHORT, SILENT], [LEAD]]
    recipe = WeightRecipe(agents="role", tokens=of_tokens, executors_per_run=2)
    drawn = [token_shares(runs, recipe, Random(seed)) for seed in range(4000)]
    assert {sum(any(agent) for agent in of_run[1:]) for of_run, _ in drawn} == {2}
    plain = WeightRecipe(agents="role", tokens=of_tokens)
    for place, agent in enumerate(token_shares(runs, plain)[0]):
        for number, share in enumerate(agent):
            mean = sum(shares[0][place][number] for shares in drawn) / len(drawn)
            assert mean == pytest.approx(share, rel=0.1)
    assert all(shares[0][0] == drawn[0][0][0] for shares in drawn)


def test_weights_are_shares_times_the_advantage_of_the_run() -> None:
    shares = [[[0.5], [0.25, 0.125]], [[1.0]]]
    assert token_weights(shares, [2.0, -1.0]) == [[[1.0], [0.5, 0.25]], [[-1.0]]]
