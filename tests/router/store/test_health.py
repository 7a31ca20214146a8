"""Health of a gateway whose store goes down and comes back."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy.engine import make_url

from tests.serving.test_health import NOT_SERVING, SERVING, config_of, searching, watched

SERVICES = [
    f"rolegate.v1.{name}Service"
    for name in ("Answer", "Completion", "Execution", "Run", "Usage", "Retrieval")
]


@contextmanager
def away(url: str) -> Iterator[None]:
    """Make the database fail while the context is open."""
    place = make_url(url)
    if place.get_backend_name() == "sqlite":
        with sqlite3.connect(str(place.database)) as database:
            database.execute("ALTER TABLE logs RENAME TO lost")
            yield
            database.execute("ALTER TABLE lost RENAME TO logs")
        return
    name = str(place.database)
    other = place.set(database="postgres").render_as_string(hide_password=False)
    with psycopg.connect(other, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )
        yield
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())


async def test_every_service_is_down_while_the_store_is(url: str, tmp_path: Path) -> None:
    """No client asks anything meanwhile."""
    async with searching() as retrieval:
        config = config_of(tmp_path, url, "http://127.0.0.1:9/v1", retrieval)
        async with watched(config, "", *SERVICES) as (_, watch):
            await watch.all_say(SERVING)
            with away(url):
                await watch.all_say(NOT_SERVING)
            await watch.all_say(SERVING)
