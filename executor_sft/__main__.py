"""`rolegate sft`, or `python -m executor_sft`: train the executor (the model that searches) on runs
of a teacher model. Run the steps one by one, or all of them with `retrain`.
"""

import importlib
import sys
from collections.abc import Sequence

from serving.cli.command import chosen_command, parse
from serving.cli.main import main as rolegate
from serving.logs import errors_only

_COMMANDS = {
    "retrain": (
        "executor_sft.retrain",
        "run all steps, from stored runs to a new version on shadow traffic",
    ),
    "rollout": (
        "executor_sft.rollout",
        "run teacher and student (the model to train) on the sub-queries of questions",
    ),
    "mine": (
        "executor_sft.mine",
        "do the same as rollout, with the questions and the feedback of stored runs",
    ),
    "filter": ("executor_sft.filter", "keep the trajectories that are good enough to train on"),
    "dataset": (
        "executor_sft.dataset",
        "turn filtered trajectories into tokenized training rows",
    ),
    "train": ("executor_sft.train", "fine-tune an executor on a data set"),
    "reinforce": (
        "executor_sft.reinforcement.reinforce",
        "train delegator and executors together by reinforcement learning",
    ),
    "weigh": (
        "executor_sft.reinforcement.weigh",
        "write training rows, weighted by the rewards of runs, for a trainer outside rolegate",
    ),
    "evaluate": ("executor_sft.evaluate", "compare executors on held-out questions"),
    "tables": ("executor_sft.tables.command", "make tables with known right rows from documents"),
    "publish": (
        "executor_sft.publish",
        "publish a trained executor as an immutable version",
    ),
    "mini-world": (
        "executor_sft.miniworld.export",
        "write a generated corpus (mini world): pages, questions with right plans, vocabulary",
    ),
    "mini-model": ("executor_sft.minimodel.command", "train one of the mini models from scratch"),
}
"""Module and summary of each command, by its name."""


def run(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name, and return its exit status.

    Raises `RolegateError` for expected errors, and `OSError`.
    """
    summaries = {name: summary for name, (_, summary) in _COMMANDS.items()}
    name = chosen_command("sft", __doc__, summaries, arguments)
    errors_only()
    module = importlib.import_module(_COMMANDS[name][0])
    return int(module.run(parse(module.Options, f"sft {name}", arguments[1:], module.__doc__)))


main = run
"""Alias of `run`. The `rolegate` command calls it, and prints a `RolegateError` as one line."""


if __name__ == "__main__":
    sys.exit(rolegate(["sft", *sys.argv[1:]]))
