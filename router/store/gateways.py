"""Gateways: the processes that write to a database, each with a heartbeat."""

import os
import secrets
import socket
import time
from pathlib import Path

import msgspec
from sqlalchemy import Connection, Row, select

from router.store.operations import Operation
from router.store.schema import GATEWAYS, RUNS
from router.store.unit_of_work import Reads, UnitOfWork

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
        """True where another gateway is dead: of a process of this machine that is gone, or not heard of for long."""
        if now - row.seen_at > _DEAD_AFTER_S:
            return True
        return row.host == self.host and (row.pid == self.pid or not _exists(row.pid))


class Noticed(msgspec.Struct, frozen=True):
    """News for a gateway, which it gets with its heartbeat."""

    to_cancel: list[str]
    """Its runs that are to be cancelled."""
    orphans: list[tuple[str, str]]
    """Tenants and identifiers of the runs of dead gateways."""


def heartbeat(gateway: ThisGateway) -> Operation[Noticed]:
    """Note that a gateway is alive, and look for what is to be done."""

    def apply(work: UnitOfWork) -> Noticed:
        connection, own = work.connection, gateway.gateway_id
        now = database_time(connection)
        if not connection.execute(GATEWAYS.update().where(GATEWAYS.c.gateway_id == own).values(seen_at=now)).rowcount:
            connection.execute(GATEWAYS.insert().values(**msgspec.structs.asdict(gateway), seen_at=now))
        others = connection.execute(select(GATEWAYS).where(GATEWAYS.c.gateway_id != own))
        alive = [own, *(other.gateway_id for other in others if not gateway.outlives(other, now))]
        running = RUNS.c.status == "running"
        to_cancel = select(RUNS.c.run_id).where(running, RUNS.c.gateway_id == own, RUNS.c.cancel_requested)
        orphans = select(RUNS.c.tenant, RUNS.c.run_id).where(running, RUNS.c.gateway_id.not_in(alive))
        return Noticed([*connection.scalars(to_cancel)], [row._tuple() for row in connection.execute(orphans)])

    return Operation(Reads(), apply)


def leave(gateway: ThisGateway) -> Operation[None]:
    """Take a gateway that ends off the list, and with it those that have been dead for a day."""

    def apply(work: UnitOfWork) -> None:
        old = GATEWAYS.c.seen_at < database_time(work.connection) - 86400
        work.connection.execute(GATEWAYS.delete().where((GATEWAYS.c.gateway_id == gateway.gateway_id) | old))

    return Operation(Reads(), apply)


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
