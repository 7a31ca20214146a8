"""Weights of tokens in the objective of multi-agent GRPO (WideSeek-R1, Eq. 1).

All agents of a run get the run's advantage. The objective is a nested mean: over runs; for each
run, over its agents; and for each agent, over the tokens of all its turns. This module turns the
nested means of a whole batch into one weight per token. The loss is then a plain sum, whose
gradient is the same for every division of the batch.

This module needs only numbers of tokens, and no texts, models or tensors.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from random import Random
from statistics import fmean, stdev
from typing import Annotated, Literal

from msgspec import Meta

from router.frozen import Frozen

_SPREAD = 1e-6
"""Added to the standard deviation of rewards, so that it is never 0."""


class WeightRecipe(Frozen, forbid_unknown_fields=True, kw_only=True):
    """Rules that divide a run's weight among its agents and their tokens. The defaults are those of
    WideSeek-R1, Eq. 1.
    """

    agents: Literal["run", "none", "role"] = "run"
    """`run`: all runs weigh the same, and within a run, all agents weigh the same. `none`: all
    agents of the batch weigh the same. `role`: all runs weigh the same; within a run, all roles;
    and within a role, all agents.
    """
    tokens: Literal["agent", "turn", "all"] = "agent"
    """`agent`: all tokens of an agent weigh the same. `turn`: all turns of an agent weigh the same,
    and in a turn all its tokens. `all`: all tokens of a run weigh the same (with `agents = "role"`,
    of a role in a run; with `agents = "none"`, of the batch).
    """
    executors_per_run: Annotated[int, Meta(ge=1)] | None = None
    """Max executors of a run that are trained; they are drawn at random. Their weights are raised
    so that the expected gradient stays the same. None for all executors.
    """


class AgentTurns(Frozen):
    """Numbers of tokens in the turns that an agent wrote."""

    role: str
    turns: tuple[int, ...]
    """Number of tokens of each turn, without prompts and results of tools."""

    @property
    def tokens(self) -> int:
        """Number of tokens of all turns together."""
        return sum(self.turns)


Shares = list[list[list[float]]]
"""Nested lists: for each run, for each agent, for each turn, the share (or weight) of every token
in that turn.
"""


def advantages(rewards: Sequence[float]) -> list[float]:
    """Return the advantage of each run of a group: its reward minus the group's mean reward,
    divided by the standard deviation. All advantages are 0 if the rewards are equal.
    """
    if len(set(rewards)) < 2:
        return [0.0] * len(rewards)
    mean = fmean(rewards)
    spread = stdev(rewards) + _SPREAD
    return [(reward - mean) / spread for reward in rewards]


def token_shares(
    runs: Sequence[Sequence[AgentTurns]],
    recipe: WeightRecipe,
    rng: Random | None = None,
) -> Shares:
    """Return, for each turn, the share of each of its tokens in the objective. All tokens of a turn
    have the same share. No share is negative. The shares of all tokens of the batch sum to 1, with
    two exceptions. With `executors_per_run`, only the expected sum is 1. A run without tokens adds
    nothing, so the sum is lower, unless `agents` is "none".

    `runs`: for each run of the batch, the agents that are to be trained. Agents without tokens are
    ignored. `rng`: draws the executors of each run; needed with `executors_per_run`.
    """
    # A unit is a set of agents that share a weight: the batch, a run, or a role in a run
    unit_of: dict[str, Callable[[int, AgentTurns], Hashable]] = {
        "none": lambda number, agent: None,
        "run": lambda number, agent: number,
        "role": lambda number, agent: (number, agent.role),
    }
    unit = unit_of[recipe.agents]
    agents_of = Counter[Hashable]()
    tokens_of = Counter[Hashable]()
    for number, run in enumerate(runs):
        for agent in run:
            agents_of[unit(number, agent)] += agent.tokens > 0
            tokens_of[unit(number, agent)] += agent.tokens

    shares: Shares = []
    for number, run in enumerate(runs):
        whole = 1 / len(runs)
        if recipe.agents == "none":
            whole = 1.0
        elif recipe.agents == "role":
            whole /= max(1, len({agent.role for agent in run if agent.tokens}))
        run_shares = list[list[float]]()
        for agent, factor in zip(run, _drawn(run, recipe.executors_per_run, rng), strict=True):
            key = unit(number, agent)
            run_shares.append(
                _agent_shares(agent, recipe, factor * whole, agents_of[key], tokens_of[key])
            )
        shares.append(run_shares)
    return shares


def token_weights(shares: Shares, run_advantages: Sequence[float]) -> Shares:
    """Return, for each turn, the weight of each of its tokens: the token's share times the
    advantage of the run.

    `run_advantages`: the advantage of each run.
    """
    return [
        [[share * advantage for share in agent] for agent in run]
        for run, advantage in zip(shares, run_advantages, strict=True)
    ]


def _agent_shares(
    agent: AgentTurns,
    recipe: WeightRecipe,
    whole: float,
    agents: int,
    tokens: int,
) -> list[float]:
    """Return the share of a token for each turn of an agent. The agent belongs to a unit: a set of
    agents that divide a weight among themselves. `whole`: this weight, times the agent's factor
    from `_drawn`. `agents`, `tokens`: number of agents, and number of tokens, in the unit.
    """
    if not agent.tokens:
        return [0.0] * len(agent.turns)
    if recipe.tokens == "all":
        return [whole / tokens] * len(agent.turns)
    if recipe.tokens == "agent":
        return [whole / agents / agent.tokens] * len(agent.turns)
    turns = sum(length > 0 for length in agent.turns)
    return [whole / agents / turns / length if length else 0.0 for length in agent.turns]


def _drawn(run: Sequence[AgentTurns], limit: int | None, rng: Random | None) -> list[float]:
    """Draw at most `limit` of the executors that have tokens. Return a factor for the weight of
    each agent of the run: 0 for executors that were not drawn, more than 1 for drawn executors, so
    that the expected gradient stays the same, and 1 for all other agents. If at most `limit`
    executors have tokens, all factors are 1.
    """
    factors = [1.0] * len(run)
    executors = [
        place for place, agent in enumerate(run) if agent.role == "execution" and agent.tokens
    ]
    if limit is None or len(executors) <= limit:
        return factors
    assert rng
    drawn = set(rng.sample(executors, limit))
    for place in executors:
        factors[place] = len(executors) / limit if place in drawn else 0.0
    return factors
