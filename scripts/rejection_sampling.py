"""Train a delegator by rejection sampling, the baseline of `rolegate sft reinforce`, whose figures
are in docs/LOG.md.

    python -m scripts.rejection_sampling CONFIG QUESTIONS OUT [--exclude FILE …] [--rounds N]

A round answers some tables with eight runs each, and trains the delegator to imitate the run with
the highest reward. Tables whose runs all have the same reward are left out. The next round samples
from the trained delegator. All rounds together make `--groups` times eight runs. If the command is
killed, the same command trains again, and takes the completed calls from OUT/calls.jsonl. The
adapters are in OUT/NNNN/delegator.
"""

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import NamedTuple

import torch

from executor_sft.asking import in_flight
from executor_sft.questions import Question, select_questions
from executor_sft.reinforcement.learner import Learner, _padded, _parts
from executor_sft.reinforcement.objective import token_logprobs
from executor_sft.reinforcement.recipe import ReinforceRecipe
from executor_sft.reinforcement.sequences import TokenSequence, _joined, _reward, _trained
from executor_sft.rollout import Group, Run, roll_out_run
from executor_sft.runtime import Runtime, adapter_name, named_adapters, open_runtime
from executor_sft.train import read_recipe
from router.errors import BadConfig, OutOfTime, UpstreamError
from serving.config.file import load_config

ROLE = "delegation"
RUNS = 8
"""Number of runs of a table."""
EPOCHS = 4
_BATCH = 8
_IN_FLIGHT = 8
_SEED = 7


class BestRuns(NamedTuple):
    """The best runs of a round, and the rewards of all its runs."""

    rows: list[TokenSequence]
    """Turns of the best run of each table."""
    rewards: list[float]
    """Rewards of all runs."""
    best: list[float]
    """Highest reward of each table's runs."""


async def sampled(
    runtime: Runtime, questions: Sequence[Question], first_seed: int
) -> tuple[list[Group], int]:
    """Answer each question with `RUNS` runs. Return the groups without a failed run, and the number
    of failed runs. `first_seed`: seed of the first run.
    """
    runs: dict[tuple[int, int], Run] = {}

    async def roll_out(pair: tuple[int, int]) -> None:
        place, number = pair
        seed = first_seed + place * RUNS + number
        sampled_runtime = runtime.sampled(seed, 1.0, roles={ROLE})
        try:
            runs[pair] = await roll_out_run(sampled_runtime, "factorized", questions[place])
        except (UpstreamError, OutOfTime) as error:
            print(f"{questions[place].id}: {error}", flush=True)

    pairs = [(place, number) for place in range(len(questions)) for number in range(RUNS)]
    await in_flight(roll_out, pairs, _IN_FLIGHT, lambda: None)
    groups = [
        Group(question, tuple(runs[place, number] for number in range(RUNS)))
        for place, question in enumerate(questions)
        if all((place, number) in runs for number in range(RUNS))
    ]
    return groups, len(pairs) - len(runs)


def best_runs(groups: Sequence[Group], recipe: ReinforceRecipe) -> BestRuns:
    """Return the rows of the best run of each group."""
    chosen = BestRuns([], [], [])
    for group in groups:
        rewards = [_reward(group, run, recipe).total for run in group.runs]
        best = max(rewards)
        chosen.rewards.extend(rewards)
        chosen.best.append(best)
        if best > min(rewards):
            chosen.rows.extend(_rows(group, group.runs[rewards.index(best)], best))
    return chosen


def _rows(group: Group, run: Run, reward: float) -> Iterator[TokenSequence]:
    for agent in _trained(run, {ROLE}):
        tokens = sum(len(turn.completion) for turn in agent.turns)
        for row in _joined(agent.turns, [1 / tokens] * len(agent.turns), 1.0):
            yield TokenSequence(
                group.question.id, run.id, agent.name, agent.role, reward, 1.0, *row
            )


def imitate(
    learner: Learner, rows: list[TokenSequence], recipe: ReinforceRecipe, rng: Random
) -> None:
    """Train with the mean cross entropy of the tokens that the delegator wrote."""
    for _ in range(EPOCHS):
        rng.shuffle(rows)
        for start in range(0, len(rows), _BATCH):
            batch = rows[start : start + _BATCH]
            learner._optimizer.zero_grad()
            written = sum(share != 0 for row in batch for share in row.shares)
            for part in _parts(batch, recipe.micro_tokens):
                torch.autograd.backward(_cross_entropy(learner, part) / written)
            torch.nn.utils.clip_grad_norm_(learner._weights, recipe.gradient_clip)
            learner._optimizer.step()


def _cross_entropy(learner: Learner, rows: Sequence[TokenSequence]) -> torch.Tensor:
    """Return the sum of the cross entropies, in nats, of all tokens that the delegator wrote."""
    device = learner._weights[0].device
    ids = _padded([row.input_ids for row in rows], torch.long, device)
    lengths = torch.tensor([[len(row.input_ids)] for row in rows], device=device)
    mask = torch.arange(ids.shape[1], device=device) < lengths
    shares = _padded([row.shares for row in rows], torch.float32, device)[:, 1:]
    logits = learner._model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
    return -(token_logprobs(logits, ids[:, 1:]) * (shares != 0)).sum()


async def train(options: argparse.Namespace) -> None:
    """Run all rounds, and print a line of figures for each."""
    config = load_config(options.config)
    recipe = read_recipe(options.recipe, ReinforceRecipe)
    questions, _ = select_questions(options.questions, options.exclude, rows_needed=True)
    executors = named_adapters([options.executor])
    learner = Learner(Path(config.engines["backbone"].path), None, recipe)
    rng = Random(_SEED)
    tables = options.groups // options.rounds
    options.out.mkdir(parents=True, exist_ok=True)
    calls = options.out / "calls.jsonl"
    async with open_runtime(config, print, cache=calls, adapters=executors) as opened:
        asking = {ROLE: {"return_token_ids": True, "logprobs": True}}
        runtime = replace(opened.with_versions(*executors, "base"), asking=asking)
        for number in range(options.rounds):
            order: list[Question] = []
            while len(order) < tables:
                order += rng.sample(questions, len(questions))
            groups, failed = await sampled(runtime, order[:tables], number * tables * RUNS)
            if not groups:
                raise BadConfig(f"Round {number + 1}: a run of each table failed; see above.")
            chosen = best_runs(groups, recipe)
            await asyncio.to_thread(imitate, learner, chosen.rows, recipe, rng)
            folder = options.out / f"{number + 1:04}" / "delegator"
            folder.parent.mkdir(exist_ok=True)
            learner.save(folder)
            figures = {
                "round": number + 1,
                "runs": len(chosen.rewards),
                "failed": failed,
                "reward": fmean(chosen.rewards),
                "best": fmean(chosen.best),
                "rows": len(chosen.rows),
            }
            print(json.dumps(figures), flush=True)
            name = adapter_name(folder)
            await runtime.loaders[ROLE].load(name, folder.resolve())
            runtime = replace(runtime, versions={**runtime.versions, ROLE: name})


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path, help="config whose engine backbone has the delegator")
    parser.add_argument("questions", type=Path, help="tables with right rows (JSON lines)")
    parser.add_argument("out", type=Path, help="folder for the adapters")
    parser.add_argument("--exclude", type=Path, nargs="*", default=[], help="held-out questions")
    parser.add_argument("--recipe", default="marl-mini", help="rewards and LoRA settings")
    parser.add_argument("--executor", default="base", help="base, or the folder of an adapter")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of sampling (default: 1)")
    parser.add_argument("--groups", type=int, default=64, help="tables of all rounds (default: 64)")
    options = parser.parse_args()
    if options.groups % options.rounds:
        parser.error("--groups must be a multiple of --rounds")
    asyncio.run(train(options))


if __name__ == "__main__":
    main()
