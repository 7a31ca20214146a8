"""Temporary PostgreSQL servers for tests. PostgreSQL must be installed."""

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from router.errors import RolegateError

_DEBIAN = Path("/usr/lib/postgresql")


def postgres_binaries() -> Path | None:
    """Return the folder of PostgreSQL's programs, such as `initdb`: the folder of the newest Debian
    package, or else the folder in `PATH`. Return None if PostgreSQL is not installed.
    """
    installed = sorted(_DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if installed:
        return installed[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


class PostgresServer(NamedTuple):
    """A running PostgreSQL server."""

    url: str
    """URL of an empty database on the server."""
    restart: Callable[[str], None]
    """Function that restarts the server and waits until it is up. Its argument is the shutdown mode
    for `pg_ctl`, such as `fast`.
    """
    new: Callable[[], str]
    """Function that creates another empty database on the server, and returns the URL of the
    database.
    """


@contextmanager
def running_postgres(*, durable: bool = True) -> Iterator[PostgresServer]:
    """Run a PostgreSQL server on a free port of the loopback interface while the context is open.

    `durable`: True if each commit must wait until its changes are on disk (`fsync`). If the current
    user is root, the server runs as the user `nobody`, because PostgreSQL refuses to run as root.
    Raises `RolegateError` if PostgreSQL is not installed.
    """
    binaries = postgres_binaries()
    if binaries is None:
        raise RolegateError(
            "PostgreSQL is not installed; install it (Debian: apt-get install postgresql)."
        )
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    # The program `setpriv` changes the user. Python itself would have to fork for this, which is
    # not safe while gRPC's threads run.
    as_user: tuple[str | Path, ...] = ()
    if user:
        ids = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}")
        as_user = ("setpriv", *ids, "--clear-groups")
    with tempfile.TemporaryDirectory() as name, socket.socket() as probe:
        folder = Path(name)
        if user:
            os.chown(folder, user.pw_uid, user.pw_gid)
        data = folder / "data"
        log = folder / "log"
        initdb = (
            binaries / "initdb",
            "-D",
            data,
            "-U",
            "rolegate",
            "--auth=trust",
            "--no-sync",
            "--encoding=UTF8",
        )
        _run((*as_user, *initdb), folder)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        options = (
            f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c "
            f"fsync={'on' if durable else 'off'}"
        )
        control = (*as_user, binaries / "pg_ctl", "-D", data, "-l", log)
        address = f"postgresql://rolegate@127.0.0.1:{port}"

        def new() -> str:
            name = f"db{secrets.token_hex(4)}"
            _run(
                (binaries / "createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "rolegate", name),
                folder,
            )
            return f"{address}/{name}"

        _run((*control, "-w", "-o", options, "start"), folder)
        try:
            yield PostgresServer(
                f"{address}/postgres",
                lambda mode: _run((*control, "-w", "-m", mode, "-o", options, "restart"), folder),
                new,
            )
        finally:
            _run((*control, "-m", "immediate", "stop"), folder)


def _run(command: Sequence[str | Path], folder: Path) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)
