"""The store that a config names, where there is one."""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from router.errors import BadConfig
from router.store.database import Database
from serving.cli.options import chosen_file
from serving.config_file import read_config


@asynccontextmanager
async def opened_store(given: argparse.Namespace, *, make: bool = False) -> AsyncIterator[Database]:
    """That of the config that the options name, whatever else is wrong in it. Raises `BadConfig`, also where there is
    none yet, unless one is to be made.
    """
    url = read_config(chosen_file(given)).server.store
    if not make and (file := _file(url)) and not (file.exists() and file.stat().st_size):
        raise BadConfig(
            f"server.store: {file} is {'empty' if file.exists() else 'not there'}; `rolegate serve` makes it."
        )
    database = await Database.open(url)
    try:
        yield database
    finally:
        await database.close()


def _file(url: str) -> Path | None:
    """Where SQLite keeps it; None for other databases, and for what is no address."""
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        return None
    return Path(address.database) if address.get_backend_name() == "sqlite" and address.database else None
