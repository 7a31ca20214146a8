"""Train with verl, which needs a block-diagonal attention mask and positions that restart (below).

rolegate's loop is the environment. This was never run: it follows the documentation of verl 0.6
(`verl.experimental.agent_loop`, `verl.trainer.ppo.core_algos`).

verl starts the engines, and calls `run` once for each run of a question. Here, the roles of the
config name verl's server as `base_url`. A run has several agents, and verl wants one output; so the
agents' rows are returned as one sequence, in which only weighted tokens count. No row may see the
rows before it: the actor must build the mask and the positions from `row_lengths`, which verl does
not do by itself. Otherwise the tokens have wrong prefixes. The weights need the rewards of the
whole group, so `run` returns shares, and the loss multiplies them by the advantage.

    data.train_batch_size=64                               # times rollout.n: RUNS
    actor_rollout_ref.rollout.agent.default_agent_loop=rolegate
    actor_rollout_ref.rollout.n=8
    actor_rollout_ref.actor.policy_loss.loss_mode=weighted_sum
    actor_rollout_ref.actor.loss_agg_mode=token-mean       # ignored by weighted_sum
    algorithm.adv_estimator=grpo
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.trainer.ppo.core_algos import register_policy_loss

from executor_sft.questions import Question
from executor_sft.reinforcement.recipe import ReinforceRecipe
from executor_sft.reinforcement.sequences import batch_of
from executor_sft.rollout import Group, roll_out_run
from executor_sft.runtime import open_runtime
from executor_sft.train import read_recipe
from serving.config.file import load_config

CONFIG = Path("rolegate.toml")
ROLES = ("delegation", "execution")
RUNS = 64 * 8
"""Runs of a batch."""


@register("rolegate")
class RolegateLoop(AgentLoopBase):
    """A run of a question, as verl's agent loop."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Answer the question once, and return the tokens of all agents with their shares."""
        # One divergence is enough to weigh rows whose advantage is not known yet
        recipe = read_recipe("marl-mini", ReinforceRecipe)
        question = Question(kwargs["id"], kwargs["question"], tuple(kwargs["answers"]))
        extra = {"return_token_ids": True, "logprobs": True}
        async with open_runtime(load_config(CONFIG), print) as opened:
            runtime = replace(opened, asking=dict.fromkeys(ROLES, extra))
            sampled = runtime.sampled(kwargs["seed"], sampling_params["temperature"])
            run = await roll_out_run(sampled, "factorized", question)
        rows, figures = batch_of([Group(question, (run,))], recipe, ROLES, kwargs["seed"])
        ids = [token for row in rows for token in row.input_ids]
        # Those of a batch of one run sum to 1
        shares = [share / RUNS for row in rows for share in row.shares]
        return AgentLoopOutput(
            prompt_ids=ids[:1],
            response_ids=ids[1:],
            response_mask=[int(share > 0) for share in shares[1:]],
            response_logprobs=[value for row in rows for value in row.logprobs][1:],
            reward_score=figures["reward"],
            num_turns=len(rows),
            extra_fields={
                "shares": shares[1:],
                "row_lengths": [len(row.input_ids) for row in rows],
            },
        )


@register_policy_loss("weighted_sum")
def weighted_sum(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    shares: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the sum of weighted, clipped terms. Over all micro-batches, it is the loss of the
    batch, however that is divided. verl must pass `shares` from `extra_fields` to the loss; those
    of all runs of a batch sum to 1.
    """
    weights = advantages * shares * response_mask
    ratio = (log_prob - old_log_prob).clamp(-20, 20).exp()
    terms = torch.minimum(ratio * weights, ratio.clamp(0.8, 1.28) * weights)
    terms = torch.where(weights < 0, torch.maximum(terms, 10 * weights), terms)
    return -terms.sum(), {}
