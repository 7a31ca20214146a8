"""`rolegate sft weigh`: write training rows, weighted by the rewards of runs, for a trainer outside
rolegate.

Each row has the tokens of an agent, their log-probabilities at sampling, and their weights in the
objective of multi-agent GRPO (paper WideSeek-R1, Eq. 1). The trainer's loss must be minus the sum,
over all tokens, of the weight times the clipped ratio of the new and the old probability. The loss
must not be averaged over rows or tokens.
"""

from pathlib import Path
from typing import Annotated

from executor_sft.command import show
from executor_sft.jsonl import read_jsonl
from executor_sft.reinforcement.recipe import ROLES, ReinforceRecipe, Trained
from executor_sft.reinforcement.sequences import batch_of
from executor_sft.rollout import ADVICE, ROLLOUTS, Group
from executor_sft.train import read_recipe
from router.errors import BadConfig
from router.frozen import Frozen
from serving.cli.command import POSITIONAL
from serving.json_lines import write_json_lines


class Options(Frozen):
    """Options of `rolegate sft weigh`."""

    groups: Annotated[Path, POSITIONAL]
    """result folder of `rolegate sft rollout --group`"""
    out: Path
    """file to write the rows to (JSON lines)"""
    recipe: str = "marl-mini"
    """settings that determine the weights, such as the reward: marl-mini, or a TOML file with the
    keys of this recipe
    """
    roles: tuple[Trained, ...] = ("delegator", "executor")
    """roles to write rows for: delegator, executor or both"""
    json: bool = False
    """print the figures as JSON (default: as tables)"""


def run(options: Options) -> int:
    """Write the rows, print the figures and return the exit status."""
    recipe = read_recipe(options.recipe, ReinforceRecipe)
    groups = list(read_jsonl(options.groups, Group, ADVICE, ROLLOUTS))
    if not groups:
        raise BadConfig(
            f"{options.groups}: has no groups; make them with `rolegate sft rollout --group`."
        )
    batch = batch_of(groups, recipe, {ROLES[role] for role in options.roles}, "weigh")
    write_json_lines(options.out, batch.rows)
    figures = {"groups": len(groups), "rows": len(batch.rows), **batch.figures}
    show(figures, as_json=options.json)
    return 0
