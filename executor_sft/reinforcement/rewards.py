"""Rewards of runs. A reward is the score of the answer or table, plus bonuses for a readable result
and for searches, minus penalties for length and cost (WideSeek-R1, appendix B.2).
"""

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from router.frozen import Frozen
from router.protocol import exact_match
from router.protocol.scoring import token_f1
from router.protocol.tags import Malformed
from router.protocol.turns import read_answer
from router.table import table_of
from router.table.scores import table_score
from router.trace import Trajectory
from router.trace.turns import AgentWork
from router.trace.values import TableRun, by_executors

_NotNegative = Annotated[float, Meta(ge=0)]
_STOPPED = ("rounds_exhausted", "rows_exhausted", "tasks_exhausted", "budget_exhausted")
"""Outcomes of runs whose delegator reached a limit. Runs whose time ran out, or whose delegator
failed, get no reward; `executor_sft.rollout.check_failures` raises their error.
"""


class RewardRecipe(Frozen, forbid_unknown_fields=True, kw_only=True):
    """Parts of a reward, with the weight of each. The defaults are from the paper WideSeek-R1."""

    answer: Literal["exact_match", "f1"] = "exact_match"
    """Score of an answer to a question. The score of a table is always its item F1 (F1 over cells).
    """
    format: _NotNegative = 0.1
    """Added if the run ended with a readable answer or table."""
    search: _NotNegative = 0.05
    """Added if any agent of the run searched."""
    length: _NotNegative = 0.1
    """Subtracted for a long turn. For the run's longest turn, the penalty rises from 0 at
    `length_from` tokens to this value at `length_to` tokens.
    """
    length_from: Annotated[int, Meta(ge=0)] = 3000
    length_to: Annotated[int, Meta(ge=1)] = 5000
    cost: _NotNegative = 0.0
    """Subtracted for each sub-query that the run dispatched."""


class RewardParts(Frozen):
    """The parts of a reward. Penalties are negative."""

    answer: float = 0.0
    format: float = 0.0
    search: float = 0.0
    length: float = 0.0
    cost: float = 0.0

    @property
    def total(self) -> float:
        """Sum of all parts: the reward."""
        return self.answer + self.format + self.search + self.length + self.cost


def reward_parts(
    recipe: RewardRecipe,
    answer: float,
    *,
    readable: bool,
    searched: bool,
    longest: int,
    sub_queries: int,
) -> RewardParts:
    """Return the parts of a run's reward. All parts are 0 if the run has no `readable` answer.

    `answer`: score of the answer or table, from 0 to 1. `searched`: True if any agent searched.
    `longest`: number of tokens of the run's longest turn. `sub_queries`: number of sub-queries.
    """
    if not readable:
        return RewardParts()
    span = max(1, recipe.length_to - recipe.length_from)
    excess = min(max((longest - recipe.length_from) / span, 0.0), 1.0)
    return RewardParts(
        answer,
        recipe.format,
        recipe.search * searched,
        -recipe.length * excess,
        -recipe.cost * sub_queries,
    )


def is_readable(result: Trajectory | TableRun) -> bool:
    """Return True if a run ended with an answer or a table. Return False if the run ended at a
    limit, or if the answerer's last output is malformed.
    """
    answering = result.answering if isinstance(result, Trajectory) else None
    if answering and isinstance(read_answer(answering.outputs[-1].text), Malformed):
        return False
    return result.outcome not in _STOPPED


def item_f1(run: TableRun, right: Sequence[Sequence[str]]) -> float:
    """Return the item F1 (F1 over cells) of a filled table against the `right` rows."""
    rows = [[cell.value for cell in row.cells] for row in table_of(run).rows]
    return table_score(run.schema, rows, right).item_f1


def run_reward(
    recipe: RewardRecipe,
    result: Trajectory | TableRun,
    works: Sequence[AgentWork],
    golds: Sequence[str],
    rows: Sequence[Sequence[str]] = (),
) -> RewardParts:
    """Return the parts of a run's reward.

    `works`: work of all agents of the run. `golds`: right answers of a question. `rows`: right rows
    of a table.
    """
    if isinstance(result, TableRun):
        score = item_f1(result, rows)
    elif recipe.answer == "f1":
        score = token_f1(result.answer, golds)
    else:
        score = float(exact_match(result.answer, golds))
    executions = list(by_executors(result.executions))
    written = (work.conversation.outputs for work in works if work.conversation)
    lengths = (
        len(output.tokens.completion)
        for output in chain.from_iterable(written)
        if output.tokens is not msgspec.UNSET
    )
    return reward_parts(
        recipe,
        score,
        readable=is_readable(result),
        searched=any(execution.searches for execution in executions),
        longest=max(lengths, default=0),
        sub_queries=len(executions),
    )
