"""Options that several commands share."""

import argparse
from pathlib import Path

from router.errors import BadConfig
from serving.config import Config
from serving.config_file import load_config, preset


def add_config(parser: argparse.ArgumentParser) -> None:
    """`--config FILE` or `--preset NAME`; the embedded default without either."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--config", type=Path, metavar="FILE", help="a TOML file; see the shipped presets for examples")
    choice.add_argument("--preset", default="mini", metavar="NAME", help="a shipped config (default: mini, the demo)")


def chosen_config(arguments: argparse.Namespace) -> Config:
    """The config that the options name. Raises `BadConfig`."""
    return load_config(arguments.config or preset(arguments.preset))


def timeout(text: str) -> float:
    """A positive number of seconds."""
    seconds = float(text)
    if not 0 < seconds < 86_400:
        raise BadConfig(f"--timeout {text}: give seconds between 0 and 86400.")
    return seconds
