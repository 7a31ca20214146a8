"""`rolegate sft`, or `python -m executor_sft`: distil the executor, step by step or all at once."""

import argparse
import importlib
import sys
from collections.abc import Sequence

from executor_sft.command import parse
from router.errors import RolegateError
from serving.files import private_files
from serving.logs import errors_only
from serving.terminal import complain

_COMMANDS = {
    "retrain": (
        "executor_sft.retrain",
        "from logged runs to a version that works as shadow, all steps at once",
    ),
    "rollout": (
        "executor_sft.rollout",
        "let teacher and student work on the sub-queries of questions",
    ),
    "mine": (
        "executor_sft.mine",
        "the same for logged questions, with what clients said of the answers",
    ),
    "filter": ("executor_sft.filter", "keep what is worth learning from"),
    "dataset": ("executor_sft.dataset", "turn it into the tokens that the serving engine sees"),
    "train": ("executor_sft.train", "fine-tune an executor on them"),
    "evaluate": ("executor_sft.evaluate", "compare executors on held-out questions"),
    "publish": (
        "executor_sft.publish",
        "make a version of what was trained, and hand it to a running gateway",
    ),
    "mini-world": (
        "executor_sft.miniworld.export",
        "write a mini world: corpus, questions with gold plans, scope",
    ),
    "mini-model": ("executor_sft.minimodel.command", "train one of the mini models"),
}


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit status. Raises `RolegateError` and `OSError`."""
    parser = argparse.ArgumentParser(prog="rolegate sft", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, summary) in _COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    chosen, rest = parser.parse_known_args(arguments[:1])
    errors_only()
    module = importlib.import_module(_COMMANDS[chosen.command][0])
    return int(
        module.run(
            parse(module.Options, chosen.command, module.__doc__ or "", [*rest, *arguments[1:]])
        )
    )


@private_files()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status. Errors raised on purpose are printed in one line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return run(given)
    except (RolegateError, OSError, UnicodeError) as error:
        complain(f"rolegate sft {given[0]}: {error}")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
