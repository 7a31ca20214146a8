"""Options that several commands share."""

import argparse
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from router.edge.listening import is_address
from router.errors import BadConfig
from serving.config.config import Config
from serving.config.file import load_config, preset
from serving.terminal import complain

_MOST_TOKENS, _MOST_DOLLARS = 2**63, 2**63 / 1e9
CONFIG = Path("rolegate.toml")
"""The config of commands that are given none, where it lies in the working directory."""


def add_config(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """`--config FILE` or `--preset NAME`; without either `rolegate.toml`, and without that the demo.

    What rules both out can be added to the group.
    """
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--config", type=Path, metavar="FILE", help=f"a TOML file (default: {CONFIG}, if it is here)")
    choice.add_argument("--preset", metavar="NAME", help="a shipped config (default: mini, the demo)")
    return choice


def chosen_file(arguments: argparse.Namespace) -> Path:
    """The file that the options name; one that they do not name is told. Raises `BadConfig`."""
    if arguments.config is None and arguments.preset is None and CONFIG.is_file():
        complain(f"rolegate: the config is {CONFIG.resolve()}")
        return CONFIG
    if arguments.config is None and arguments.preset is None:
        complain(f"rolegate: no {CONFIG} here, so this is the demo")
    file: Path = arguments.config or preset(arguments.preset or "mini")
    return file


def chosen_config(arguments: argparse.Namespace) -> Config:
    """The config that the options name. Raises `BadConfig`."""
    return load_config(chosen_file(arguments))


def tenant_name(text: str) -> str:
    """A name that needs no quotes anywhere."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        raise argparse.ArgumentTypeError(f"{text!r} must be of letters, digits, . _ and -, at most 64")
    return text


def host_port(text: str) -> str:
    """Where to listen, or to connect to."""
    if not is_address(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, with a port of 0 to 65535")
    return text


def dollars(text: str) -> float:
    """An amount of money to spend, in dollars."""
    if not 0 < (amount := float(text)) < _MOST_DOLLARS:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount that can be spent; give dollars, such as 0.05")
    return amount


def tokens(text: str) -> int:
    """A number of tokens to spend."""
    if not 0 < (count := int(text)) < _MOST_TOKENS:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount that can be spent; give tokens, such as 20000")
    return count


def timeout(text: str) -> float:
    """A positive number of seconds."""
    seconds = float(text)
    if not 0 < seconds < 86_400:
        raise BadConfig(f"--timeout {text}: give seconds between 0 and 86400.")
    return seconds


FORMATS = "2026-11-21, 2026-11-21T10:00 (UTC, unless it names a zone), or 7d or 12h ago"


def moment(text: str) -> datetime:
    """A date, a time, or so many days (`7d`) or hours (`12h`) ago. Raises `BadConfig`."""
    try:
        if ago := re.fullmatch(r"(\d+)([dh])", text):
            number, unit = int(ago[1]), {"d": "days", "h": "hours"}[ago[2]]
            return datetime.now(UTC) - timedelta(**{unit: number})
        named = datetime.fromisoformat(text)
        return named.astimezone(UTC) if named.tzinfo else named.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise BadConfig(f"{text!r} is no time; write {FORMATS}.") from None
