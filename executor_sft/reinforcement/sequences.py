"""Training rows for reinforcement learning: the tokens of each agent in a batch of runs, with their
weights in the objective.
"""

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from msgspec import UNSET

from executor_sft.reinforcement.recipe import ReinforceRecipe
from executor_sft.reinforcement.rewards import RewardParts, is_readable, run_reward
from executor_sft.reinforcement.weights import AgentTurns, advantages, token_shares
from executor_sft.rollout import Group
from router.errors import BadConfig
from router.frozen import Frozen
from router.models import Completion
from router.models.model import TokenIds
from router.trace import Run, Trajectory
from router.trace.turns import AgentWork, work_of
from router.trace.values import TableRun


class TokenSequence(Frozen):
    """A training row: the tokens of consecutive turns of an agent. If the prompt of the next turn
    does not begin with all tokens of the row, that turn starts a new row.

    The loss is minus the sum, over the tokens of all rows, of a token's weight times the clipped
    ratio of its new and old probability. `logprobs`, `shares` and `weights` have one number per
    token of `input_ids`; the number is 0 for tokens that the agent did not write.
    """

    question_id: str
    run_id: str
    agent: str
    """Name of the agent in its run, as in trajectories.jsonl."""
    role: str
    reward: float
    """Reward of the run."""
    advantage: float
    """Advantage of the run within its group."""
    input_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probabilities of the tokens when they were sampled."""
    shares: tuple[float, ...]
    """Shares of the tokens in the objective (`token_shares`). The KL divergence of a token is
    multiplied by its share.
    """
    weights: tuple[float, ...]
    """Weights of the tokens: share times advantage of the run."""


class Batch(NamedTuple):
    """Training rows of several groups, and named figures about the groups."""

    rows: list[TokenSequence]
    figures: dict[str, Any]


class _Agent(NamedTuple):
    name: str
    role: str
    turns: list[TokenIds]
    """The turns to train on."""

    @property
    def lengths(self) -> AgentTurns:
        """The agent's role, and the number of tokens of each turn."""
        return AgentTurns(self.role, tuple(len(turn.completion) for turn in self.turns))


def batch_of(
    groups: Sequence[Group],
    recipe: ReinforceRecipe,
    roles: Container[str],
    seed: object,
) -> Batch:
    """Return the rows of all groups together. Rows that have no effect on the loss are left out.

    `roles`: names of the roles that are trained. `seed`: seed for drawing executors at random.
    Raises `BadConfig` if a question has no right answer, or if a turn has no token ids or
    log-probabilities.
    """
    rewards = list[RewardParts]()
    run_advantages = list[float]()
    agents = list[list[_Agent]]()
    mixed = 0
    for group in groups:
        parts = [_reward(group, run, recipe) for run in group.runs]
        group_advantages = advantages([part.total for part in parts])
        mixed += any(group_advantages)
        rewards += parts
        run_advantages += group_advantages
        agents += [list(_trained(run, roles)) for run in group.runs]
    lengths = [[agent.lengths for agent in run] for run in agents]
    shares = token_shares(lengths, recipe.weights, Random(f"{recipe.seed}/{seed}"))

    rows = list[TokenSequence]()
    counts = Counter[str]()
    runs = (run for group in groups for run in group.runs)
    for number, run in enumerate(runs):
        question = run.id.rpartition("/")[0]
        for agent, turn_shares in zip(agents[number], shares[number], strict=True):
            counts[agent.role] += 1
            if not any(turn_shares) or not (run_advantages[number] or recipe.objective.kl):
                continue
            origin = question, run.id, agent.name, agent.role
            values = rewards[number].total, run_advantages[number]
            rows += [
                TokenSequence(*origin, *values, *tokens)
                for tokens in _joined(agent.turns, turn_shares, run_advantages[number])
            ]
    figures: dict[str, Any] = {"reward": fmean(part.total for part in rewards)}
    for name in RewardParts.__struct_fields__:
        figures[f"reward_{name}"] = fmean(getattr(part, name) for part in rewards)
    figures["mixed_groups"] = mixed / len(groups)
    figures["agents"] = {role: count / len(agents) for role, count in sorted(counts.items())}
    return Batch(rows, figures)


def _reward(group: Group, run: Run, recipe: ReinforceRecipe) -> RewardParts:
    result = run.result
    question = group.question
    assert isinstance(result, Trajectory | TableRun)
    if not (question.rows if question.table else question.golds):
        raise BadConfig(
            f"question {question.id}: has no right {'rows' if question.table else 'answer'}, so "
            "its runs have no reward; add a right one, or leave the question out."
        )
    return run_reward(recipe.reward, result, work_of(run), question.golds, question.rows)


def _trained(run: Run, roles: Container[str]) -> Iterator[_Agent]:
    """Yield each agent of the run whose role is in `roles`, with the turns to train on. Agents
    without such turns are left out.
    """
    assert isinstance(run.result, Trajectory | TableRun)
    readable = is_readable(run.result)
    for work in work_of(run):
        if work.agent.role not in roles:
            continue
        turns = [_tokens(output, run, work) for output in _kept(work, readable=readable)]
        if turns:
            yield _Agent(work.agent.path, work.agent.role, turns)


def _kept(work: AgentWork, *, readable: bool) -> Sequence[Completion]:
    """Return the outputs of an agent to train on (WideSeek-R1, appendix B.3).

    If the run has an answer, agents that reached a limit are left out, because they do not deserve
    the run's reward. If the run has no answer, only the causes of the failure are trained on: the
    delegator's last output, and executors' outputs that were cut off.
    """
    outputs = work.conversation.outputs if work.conversation else ()
    cut = [output for output in outputs if output.finish_reason == "length"]
    if readable:
        limited = cut or (work.execution is not None and work.execution.failed)
        return () if limited else outputs
    return outputs[-1:] if work.agent.sub_query_index is None else cut


def _tokens(output: Completion, run: Run, work: AgentWork) -> TokenIds:
    tokens = output.tokens
    if tokens is UNSET or tokens.logprobs is UNSET:
        raise BadConfig(
            f"run {run.id}: outputs of the agent {work.agent.path} lack token ids or "
            f"log-probabilities; serve the role {work.agent.role} with vLLM, and roll out again."
        )
    return tokens


def _joined(
    turns: Sequence[TokenIds],
    shares: Sequence[float],
    advantage: float,
) -> Iterator[tuple[Any, ...]]:
    """Yield the token ids, log-probabilities, shares and weights of each row of an agent."""
    ids = list[int]()
    logprobs = list[float]()
    row_shares = list[float]()

    def row() -> tuple[Any, ...]:
        weights = (share * advantage for share in row_shares)
        return tuple(ids), tuple(logprobs), tuple(row_shares), tuple(weights)

    for tokens, share in zip(turns, shares, strict=True):
        # A chat template may render earlier turns as other tokens; then a new row begins
        if tokens.prompt[: len(ids)] != tuple(ids):
            yield row()
            for values in (ids, logprobs, row_shares):
                values.clear()
        between = len(tokens.prompt) - len(ids)
        assert tokens.logprobs is not UNSET
        ids += tokens.prompt[len(ids) :] + tokens.completion
        logprobs += (0.0,) * between + tokens.logprobs
        row_shares += [0.0] * between + [share] * len(tokens.completion)
    yield row()
