"""`rolegate config`: check a configuration before anything is started."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from router.errors import BadConfig
from serving.composition import check_hosted
from serving.config import RoleConfig
from serving.config_file import load_config


def main(arguments: Sequence[str]) -> int:
    """`rolegate config check FILE`."""
    parser = argparse.ArgumentParser(prog="rolegate config", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check",
        help="read a file, refuse what is wrong in it, show what it means",
        description="Reads a configuration as `rolegate serve` would. Nothing is started and nothing is called.",
    )
    check.add_argument("file", type=Path, metavar="FILE", help="a TOML file")
    file: Path = parser.parse_args(arguments).file
    config = load_config(file)
    table = Table("role", *(Column(name, overflow="fold") for name in ("model", "where", "prompt")))
    for name in ("delegation", "execution", "answer"):
        role: RoleConfig = getattr(config.roles, name)
        where = f"vLLM engine {role.engine}" if role.engine else role.base_url or "LiteLLM"
        table.add_row(name, *map(escape, (role.model, where, role.prompt)))
    console = Console(soft_wrap=True)
    console.print(table)
    console.out(f"{file}: fine", highlight=False)
    try:
        check_hosted(config)
    except BadConfig as missing:
        console.out(f"but not ready to be served here: {missing}", highlight=False)
    return 0
