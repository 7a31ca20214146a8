"""Options that several commands share, and the client that they amount to."""

import argparse
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import msgspec
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Console
from rolegate.client import Client, Connection, GatewayError
from rolegate.client.requests import ADDRESS

from router.edge.listening import is_address
from router.errors import BadConfig
from serving.config.config import Config
from serving.config.file import load_config, preset
from serving.terminal import complain


def new_parser(
    command: str, description: str | None, epilog: str | None = None
) -> argparse.ArgumentParser:
    """The parser of `rolegate COMMAND`; its description is shown as it is."""
    shown = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(
        prog=f"rolegate {command}",
        description=description,
        epilog=epilog,
        formatter_class=shown,
        allow_abbrev=False,
    )


Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(
    commands: Commands,
    name: str,
    summary: str,
    description: str,
    work: Callable[..., object] | None = None,
) -> argparse.ArgumentParser:
    """The parser of a subcommand. `summary` stands in the help of the command above it; `work` is
    kept with what is parsed.
    """
    shown = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser(
        name, help=summary, description=description, formatter_class=shown, allow_abbrev=False
    )
    command.set_defaults(work=work)
    return command


def json_of(value: object) -> str:
    """A line of JSON: a struct, plain data, or a message of the protocol, with every field that
    has a default.
    """
    if isinstance(value, Message):
        value = MessageToDict(
            value, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    return msgspec.json.encode(value).decode()


def show_each(items: Sequence[object], table: Callable[[], object], *, as_json: bool) -> None:
    """Print a line of JSON for each item, or a table of all."""
    if as_json:
        for item in items:
            print(json_of(item))
    else:
        Console().print(table())


_MOST_TOKENS = 2**63
_MOST_DOLLARS = 2**63 / 1e9
CONFIG = Path("rolegate.toml")
"""The config of commands that are given none, where it lies in the working directory."""


def add_config(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """`--config FILE` or `--preset NAME`; without either `rolegate.toml`, and without that the
    demo.

    What rules both out can be added to the group.
    """
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"a TOML file (default: {CONFIG}, if it is here)",
    )
    choice.add_argument(
        "--preset", metavar="NAME", help="a shipped config (default: mini, the demo)"
    )
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
        raise argparse.ArgumentTypeError(
            f"{text!r} must be of letters, digits, . _ and -, at most 64"
        )
    return text


def host_port(text: str) -> str:
    """An address to listen at, or to connect to."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not HOST:PORT, without {text.partition('://')[0]}://"
        )
    if not is_address(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, with a port of 0 to 65535")
    return text


def dollars(text: str) -> float:
    """An amount of money to spend, in dollars."""
    if not 0 < (amount := float(text)) < _MOST_DOLLARS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no amount that can be spent; give dollars, such as 0.05"
        )
    return amount


def tokens(text: str) -> int:
    """A number of tokens to spend."""
    if not 0 < (count := int(text)) < _MOST_TOKENS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no amount that can be spent; give tokens, such as 20000"
        )
    return count


def timeout(text: str) -> float:
    """A positive number of seconds."""
    seconds = float(text)
    if not 0 < seconds < 86_400:
        raise BadConfig(f"--timeout {text}: give seconds between 0 and 86400.")
    return seconds


FORMATS = "2026-11-21, 2026-11-21T10:00 (UTC, unless it names a zone), or 7d or 12h ago"


def time_argument(text: str) -> datetime:
    """A date, a time, or so many days (`7d`) or hours (`12h`) ago. Raises `BadConfig`."""
    try:
        if ago := re.fullmatch(r"(\d+)([dh])", text):
            number = int(ago[1])
            unit = {"d": "days", "h": "hours"}[ago[2]]
            return datetime.now(UTC) - timedelta(**{unit: number})
        named = datetime.fromisoformat(text)
        return named.astimezone(UTC) if named.tzinfo else named.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise BadConfig(f"{text!r} is no time; write {FORMATS}.") from None


def add_connection(parser: argparse.ArgumentParser) -> None:
    """`--address HOST:PORT` and what `add_certificates` adds."""
    parser.add_argument(
        "--address",
        type=host_port,
        default=ADDRESS,
        metavar="HOST:PORT",
        help="the gateway (default: %(default)s)",
    )
    add_certificates(parser)


def add_certificates(parser: argparse.ArgumentParser) -> None:
    """`--ca FILE`, `--certificate FILE` and `--key FILE`."""
    group = parser.add_argument_group(
        "connection", "The key is that of the environment variable ROLEGATE_API_KEY."
    )
    group.add_argument(
        "--ca",
        type=Path,
        metavar="FILE",
        help="encrypt; who signed the gateway's certificate (PEM)",
    )
    group.add_argument(
        "--certificate",
        type=Path,
        metavar="FILE",
        help="your own, where the gateway wants one (PEM)",
    )
    group.add_argument(
        "--key", type=Path, metavar="FILE", help="that belongs to --certificate (PEM)"
    )


def connection(given: argparse.Namespace) -> Connection:
    """To where the options of `add_connection` lead. Raises `BadConfig`."""
    try:
        return Connection.to(
            given.address, ca=given.ca, certificate=given.certificate, key=given.key
        )
    except OSError as error:
        raise BadConfig(
            f"--ca, --certificate, --key: cannot read {error.filename}: {error.strerror}."
        ) from None
    except ValueError as error:
        raise BadConfig(f"--address {given.address}: {error}") from None


def with_client(given: argparse.Namespace, work: Callable[[Client], int]) -> int:
    """The exit status that `work` comes to with a client; 1, and a line that says why, where
    the gateway refuses.
    """
    try:
        with Client(connection(given)) as client:
            return work(client)
    except GatewayError as error:
        complain(f"rolegate: {error}")
        return 1
