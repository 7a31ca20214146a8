"""The processes that write here: who is alive, and what is to be done for it."""

import os
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
from sqlalchemy import Connection, Row, select

from router.store.schema import GATEWAYS, RUNS
from router.store.unit_of_work import Books, Scope

_DEAD_AFTER_S = 15.0


class ThisGateway(msgspec.Struct, frozen=True):
    """A process, as others can tell whether it is alive."""

    gateway_id: str
    host: str
    pid: int

    @classmethod
    def new(cls) -> "ThisGateway":
        """One that writes from this process."""
        return cls(f"gateway-{secrets.token_hex(8)}", _host(), os.getpid())

    def outlives(self, row: Row[tuple[str, str, int, float]], now: float) -> bool:
        """Whether another gateway is dead: of a process of this machine that is gone, or not heard of for long."""
        if now - row.seen_at > _DEAD_AFTER_S:
            return True
        return row.host == self.host and (row.pid == self.pid or not _exists(row.pid))


@dataclass(frozen=True, slots=True)
class Seen:
    """What a gateway learns when it says that it is alive."""

    to_cancel: list[str]
    """Those of its runs that somebody wants cancelled."""
    orphans: list[tuple[str, str]]
    """Tenants and identifiers of the runs of dead gateways."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A gateway is alive."""

    gateway: ThisGateway
    scope = Scope()
    otherwise = None

    def apply(self, books: Books) -> Seen:
        """Say so, and look around."""
        connection, own = books.connection, self.gateway.gateway_id
        now = database_time(connection)
        row = {**msgspec.structs.asdict(self.gateway), "seen_at": now}
        if not connection.execute(GATEWAYS.update().where(GATEWAYS.c.gateway_id == own).values(seen_at=now)).rowcount:
            connection.execute(GATEWAYS.insert().values(row))
        others = connection.execute(select(GATEWAYS).where(GATEWAYS.c.gateway_id != own))
        alive = [own, *(other.gateway_id for other in others if not self.gateway.outlives(other, now))]
        running = RUNS.c.status == "running"
        orphans = select(RUNS.c.tenant, RUNS.c.run_id).where(running, RUNS.c.gateway_id.not_in(alive))
        to_cancel = select(RUNS.c.run_id).where(running, RUNS.c.gateway_id == own, RUNS.c.cancel_requested)
        return Seen(
            list(connection.execute(to_cancel).scalars()), [row._tuple() for row in connection.execute(orphans)]
        )


@dataclass(frozen=True, slots=True)
class Leave:
    """A gateway ends; its row goes, and with it those of gateways that have been dead for a day."""

    gateway: ThisGateway
    scope = Scope()
    otherwise = None

    def apply(self, books: Books) -> None:
        """Delete the rows."""
        old = GATEWAYS.c.seen_at < database_time(books.connection) - 86400
        books.connection.execute(GATEWAYS.delete().where((GATEWAYS.c.gateway_id == self.gateway.gateway_id) | old))


def database_time(connection: Connection) -> float:
    """Unix time by one clock for all who write here."""
    if connection.dialect.name == "sqlite":
        return time.time()
    return float(connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one())


def _host() -> str:
    """The machine as it was started, and which of its process numbers are meant: machines and containers may share a
    name.
    """
    booted, numbers = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    start = booted.read_text("ascii").strip() if booted.is_file() else ""
    return f"{socket.gethostname()} {start} {numbers.readlink() if numbers.is_symlink() else ''}".strip()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is there, and another user's
    return True
