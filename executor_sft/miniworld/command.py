"""`rolegate sft mini-world`: write a world as files."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from executor_sft.miniworld.export import export, over, write_config
from executor_sft.miniworld.world import World
from router.errors import BadConfig
from serving.config.file import load_config, preset


def main(arguments: Sequence[str]) -> int:
    """Write a world; the exit status."""
    parser = argparse.ArgumentParser(
        prog="rolegate sft mini-world",
        description="Writes corpus.jsonl, questions.jsonl with gold plans, reports and answers, scope.txt, and "
        "rolegate.toml: the preset mini over this world.",
    )
    parser.add_argument("--seed", type=int, default=7, metavar="N", help="the demo's world has seed 7 (default)")
    parser.add_argument("--side", choices=["test", "train"], default="test", help="worlds of two sides share no name")
    parser.add_argument("--questions", type=int, default=200, metavar="N", help="how many (default: 200)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the files go")
    parser.add_argument("--force", action="store_true", help="write over what is there")
    given = parser.parse_args(arguments)
    if not given.force and given.out.is_dir() and any(given.out.iterdir()):
        raise BadConfig(
            f"--out {given.out}: is not empty; name another folder, or write over what is there with --force."
        )
    questions = export(World(given.seed, given.side), given.out, given.questions)
    write_config(over(load_config(preset("mini")), given.out.resolve()), given.out / "rolegate.toml")
    print(f"{given.out}: a world of seed {given.seed} with {len(questions)} questions")
    return 0
