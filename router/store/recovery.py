"""Recovery: what a log tells that its database does not have yet, read when a gateway or a command begins."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import structlog
from sqlalchemy import Connection, exists, select

from router.errors import BadConfig, StoreFailed, StoreInUse
from router.ledger import RunStart
from router.store.database import Database
from router.store.log import Frame, Position, RunLog, Segment, read_all, segments
from router.store.projection import Change, place_of, project
from router.store.records import Begun, Ended, Forgotten, Opened, Record, RecordedRun, decode
from router.store.schema import CALLS, RUNS, TENANTS, struct_of

_log = structlog.get_logger("store")
_PIECE = 256
_WAIT_S, _LOOK_S = 10.0, 0.05
"""How long a command waits for a gateway's database to have what the log has, and how often it looks."""


class Fold:
    """The runs of a log, as its frames come."""

    def __init__(self) -> None:
        self.whole = True
        """Whether all of the log could be read that was on disk."""
        self.running: dict[int, RecordedRun] = {}
        """Those that have not ended, by their keys."""
        self.interrupted: dict[str, RecordedRun] = {}
        """Those that were closed because their gateway had ended, by their identifiers."""
        self._headless: dict[int, list[tuple[int, Record]]] = defaultdict(list)
        """Records, with their numbers, of runs whose beginning is lost."""

    def apply(self, frame: Frame) -> Change | None:
        """Take the next frame; return the change that it makes to the database, if it makes one."""
        record = decode(frame.payload)
        if isinstance(record, Begun):
            begun = self.running[frame.run] = RecordedRun(record)
            begun.before = self.interrupted.pop(record.start.resumes, None)
            begun.end, begun.segment = frame.end, (begun.before or frame.end).segment
            return Change(record.start, record.redact, position=frame.end)
        run = self.running.get(frame.run)
        if run is None:
            self._headless[frame.run].append((frame.number, record))
            if not isinstance(record, Ended) or not (run := self._salvaged(frame.run)):
                return None
        else:
            run.gaps += frame.number - run.records
            run.records, run.end = frame.number, frame.end
            run.apply(record)
        if not isinstance(record, Ended | Forgotten):
            return None
        self.running.pop(frame.run, None)
        ended = run.ended(record.run) if isinstance(record, Ended) else None
        if ended and ended.status == "interrupted":
            self.interrupted[ended.id] = run
        return Change(run.start, run.redact, ended, ended is None, frame.end)

    def read(self, segment: Segment) -> list[Change]:
        """Take the frames of a segment. Where a part of it that was on disk cannot be read, runs which are under way
        and have no records behind it may have lost some.
        """
        changes = [change for frame in segment.frames if (change := self.apply(frame))]
        self.whole = self.whole and not segment.damaged
        for start, _ in segment.holes:
            for run in self.running.values():
                if start < segment.synced and run.end <= (segment.number, start):
                    run.gaps = max(run.gaps, 1)
        return changes

    def left(self) -> dict[int, RecordedRun]:
        """The runs that have not ended, those included whose beginning is lost, where it can be told whose they are."""
        for key in list(self._headless):
            if run := self._salvaged(key):
                self.running[key] = run
        return self.running

    def _salvaged(self, key: int) -> RecordedRun | None:
        """A run whose beginning is lost, from what its other records say of it."""
        numbered, start = self._headless.pop(key), None
        for _, record in numbered:
            if isinstance(record, Ended):
                run = record.run
                start = RunStart(run.id, run.kind, run.tenant, "", run.request_id, run.request, "", run.started_at)
            elif isinstance(record, Opened) and start is None:
                call = record.call
                start = RunStart(call.run_id, "answer", call.tenant, "", "", "", "", call.started_at)
        if start is None:
            return None
        recorded = RecordedRun(Begun(start, False))
        for _, record in numbered:
            recorded.apply(record)
        recorded.records = numbered[-1][0] + 1
        recorded.gaps = recorded.records - len(numbered)
        return recorded


async def recover(database: Database, folder: Path, name: str) -> Fold:
    """Write into the database what the log in `folder` has and it has not; the runs that no record ends are left.

    `name`: of the log, in the database. Raises `StoreFailed`, and `BadConfig` where the log cannot be read.
    """
    place, fold = await database.read(partial(place_of, log=name)), Fold()
    segments = read_all(folder)
    try:
        while segment := await asyncio.to_thread(next, segments, None):
            if segment.damaged:
                _log.error("log.damaged", file=str(segment.path), bytes=segment.damaged, holes=len(segment.holes))
            changes = [change for change in fold.read(segment) if change.position > place]
            for first in range(0, len(changes), _PIECE):
                work = partial(project, log=name, changes=changes[first : first + _PIECE])
                await database.write(work, on_disk=False)
    except (OSError, msgspec.DecodeError) as error:
        advice = "it may be another release's, which can finish it; or move it away, and its last runs are lost"
        raise BadConfig(f"server.store: the log {folder} cannot be read ({error}); {advice}.") from error
    return fold


def ended_among(connection: Connection, run_ids: list[str]) -> set[str]:
    """The runs that have ended by the database, of some; others may close one, but cannot know its calls."""
    known = exists().where(CALLS.c.run_id == RUNS.c.run_id)
    ended = RUNS.c.status.not_in(("running", "interrupted")) | ((RUNS.c.status == "interrupted") & known)
    return set(connection.scalars(select(RUNS.c.run_id).where(RUNS.c.run_id.in_(run_ids), ended)))


def left_over(connection: Connection, name: str) -> list[RecordedRun]:
    """The runs that are running by the database."""
    redact = select(TENANTS.c.redact).where(TENANTS.c.name == RUNS.c.tenant).scalar_subquery().label("redact")
    wanted = select(RUNS, redact).where(RUNS.c.status == "running", RUNS.c.log == name)
    return [
        RecordedRun(Begun(start, bool(row["redact"])))
        for row in connection.execute(wanted).mappings()
        for start in [struct_of(RunStart, row, id=row["run_id"], request_id=row["request_id"] or "")]
    ]


SQLITE = "log"
"""The name of its one log in a SQLite database."""


def own_log(database: Database, folder: Path | None = None) -> RunLog:
    """Take a log for a gateway of this database. `folder`: for it, where it is SQLite's, and else for the folders of
    all; None for the usual one. Raises `StoreInUse` and `StoreFailed`.
    """
    folder = folder or database.log_folder
    for number in count(1):
        with suppress(*([StoreInUse] if database.shared else [])):
            return RunLog.open(folder / str(number) if database.shared else folder)
    raise AssertionError


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    """A database for a command, with all that a gateway has acknowledged by now; where none lives, the log is read
    here. Raises `BadConfig`, and `StoreFailed` where a gateway lives whose database does not keep up.
    """
    database = await Database.open(url)
    try:
        folder = database.log_folder
        if not database.shared and segments(folder):
            try:
                with RunLog.open(folder):
                    await recover(database, folder, SQLITE)
            except StoreInUse:
                await _followed(database, folder)
        yield database
    finally:
        await database.close()


async def _followed(database: Database, folder: Path) -> None:
    """Wait until the database has what the log in `folder` has now. Raises `StoreFailed`."""

    def changes() -> list[Position]:
        frames = (frame for segment in read_all(folder) for frame in segment.frames)
        return [frame.end for frame in frames if isinstance(decode(frame.payload), Begun | Ended | Forgotten)]

    wanted = max(await asyncio.to_thread(changes), default=Position())
    try:
        async with asyncio.timeout(_WAIT_S):
            while await database.read(partial(place_of, log=SQLITE)) < wanted:  # noqa: ASYNC110 - it is elsewhere
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise StoreFailed("The gateway's database is behind its log; try again.") from None
