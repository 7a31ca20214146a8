"""`rolegate sft`, or `python -m executor_sft`: distil the executor in single steps or one run."""

import importlib
import sys
from collections.abc import Sequence

from serving.cli.command import new_parser, parse
from serving.cli.main import main as rolegate
from serving.logs import errors_only

_COMMANDS = {
    "retrain": (
        "executor_sft.retrain",
        "run all steps, from logged runs to a shadow version",
    ),
    "rollout": (
        "executor_sft.rollout",
        "run teacher and student on the sub-queries of questions",
    ),
    "mine": (
        "executor_sft.mine",
        "roll out logged questions, with the clients' feedback",
    ),
    "filter": ("executor_sft.filter", "keep the trajectories to learn from"),
    "dataset": ("executor_sft.dataset", "turn them into the tokens that the serving engine sees"),
    "train": ("executor_sft.train", "fine-tune an executor on them"),
    "evaluate": ("executor_sft.evaluate", "compare executors on held-out questions"),
    "publish": (
        "executor_sft.publish",
        "publish a version, and register it with a gateway",
    ),
    "mini-world": (
        "executor_sft.miniworld.export",
        "write a mini world: corpus, questions, gold plans, vocabulary",
    ),
    "mini-model": ("executor_sft.minimodel.command", "train one of the mini models"),
}


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status. Raises `RolegateError` and `OSError`."""
    parser = new_parser("sft", __doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, summary) in _COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    name = parser.parse_args(arguments[:1]).command
    errors_only()
    module = importlib.import_module(_COMMANDS[name][0])
    return int(module.run(parse(module.Options, f"sft {name}", arguments[1:], module.__doc__)))


main = run
"""The entry point's name. `rolegate` prints expected errors in one line."""


if __name__ == "__main__":
    sys.exit(rolegate(["sft", *sys.argv[1:]]))
