"""`rolegate sft`, or `python -m executor_sft`: the mini world and the models trained on it."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["mini-model"]:
        from executor_sft.minimodel.__main__ import main as train_mini_model

        return train_mini_model(given[1:])
    if given[:1] == ["mini-evaluate"]:
        from executor_sft.minimodel.evaluation import main as evaluate_mini_model

        return evaluate_mini_model(given[1:])
    parser = argparse.ArgumentParser(prog="rolegate sft", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    world = commands.add_parser(
        "mini-world",
        help="write a mini world: corpus, questions with gold plans, scope",
        description="Writes corpus.jsonl, questions.jsonl with gold plans, reports and answers, and scope.txt.",
    )
    world.add_argument("--seed", type=int, default=7, metavar="N", help="the demo's world has seed 7 (default)")
    world.add_argument("--side", choices=["test", "train"], default="test", help="worlds of two sides share no name")
    world.add_argument("--questions", type=int, default=200, metavar="N", help="how many (default: 200)")
    world.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the files go")
    commands.add_parser("mini-model", help="train one of the mini models", add_help=False)
    commands.add_parser("mini-evaluate", help="share of right turns on a held-out world", add_help=False)
    return _write_world(parser.parse_args(given))


def _write_world(given: argparse.Namespace) -> int:
    from executor_sft.miniworld.export import export
    from executor_sft.miniworld.world import World

    questions = export(World(given.seed, given.side), given.out, given.questions)
    print(f"{given.out}: a world of seed {given.seed} with {len(questions)} questions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
