"""The follower writes the changes in the log to the database: continuously while a gateway runs,
and once more when the log of an ended gateway is opened.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count, islice, takewhile
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from router.background import at_most, errors_logged
from router.errors import BadConfig, StoreFailed, StoreInUse
from router.store.database import COPY, Database, unwritable
from router.store.group_commit import GroupCommit
from router.store.log import Position, RunLog, give_back_room, number_of, read_all, segments
from router.store.projection import (
    cancelled_among,
    ended_among,
    keep_place,
    left_over,
    place_of,
    project,
)
from router.store.records import (
    Begun,
    Change,
    Fold,
    Forgotten,
    RecordedRun,
    RunEnded,
    decode,
    encode,
)
from router.trace import Run

_log = structlog.get_logger("store")
_SQLITE = "log"
"""Name of the only log of a SQLite database."""
_START = Position()
_LEISURE_S = 0.5
"""Seconds for which changes are collected before they are written. If a reader waits for these
changes, they are written immediately.
"""
_MAX_BATCH = 256
"""Max number of changes in one transaction."""
_READING_S = 5.0
"""Max seconds for which a reader waits until the database has all runs whose results were sent to
clients.
"""
_BACKLOG = 64 << 20
"""Max bytes by which the database may lag behind the log. If it lags further behind, no run may
begin.
"""
_WAIT_S = 10.0
"""Max seconds for which a command waits until a running gateway has written its log to the
database.
"""
_LOOK_S = 0.05


class Follower:
    """Writes the beginnings and ends of runs from a log to a database, in batches and in the order
    of the log.
    """

    def __init__(self, database: Database, log: RunLog, commits: GroupCommit | None = None) -> None:
        """`commits`: the group commit, if gateways share the database; None if they do not."""
        self._database = database
        self._log = log
        self._commits = commits
        self.name = log.name if database.shared else _SQLITE
        """Name of the log in the database."""
        self._changes = deque[Change]()
        """Changes that are not in the database yet."""
        self._news = commits.news if commits else asyncio.Event()
        self._hurry = asyncio.Event()
        self._written = asyncio.Condition()
        self._refused = set[str]()
        """Identifiers of runs whose answers must not be delivered: another gateway has closed the
        run, or the database refuses the run's data.
        """

    def take(self, run: RecordedRun, ended: Run | None = None, *, forgotten: bool = False) -> None:
        """Queue a change of a run. The record of the change must be in the log already. `ended`:
        the complete run, if the change is the end of the run. `forgotten`: True if the change
        undoes the run, because the run never began. Without both, the change is the beginning of
        the run.
        """
        self._changes.append(
            Change(
                run.start,
                run.redact,
                ended,
                forgotten,
                self._log.end,
                run.segment,
                time.monotonic(),
            )
        )
        self._news.set()

    def has(self, place: Position) -> bool:
        """Return True if the database has all changes up to the position `place` in the log."""
        return not self._changes or self._changes[0].position > place

    @property
    def lag_s(self) -> float:
        """Seconds since the oldest queued change was queued; 0 if none is queued."""
        if not self._changes:
            return 0.0
        return time.monotonic() - self._changes[0].queued_at

    @property
    def behind(self) -> bool:
        """True if the database lacks too large a part of the log. Then no run may begin."""
        end = self._log.end
        first = self._changes[0].position if self._changes else end
        return end.segment > first.segment + 1 or end.offset - first.offset > _BACKLOG

    async def caught_up(self) -> None:
        """Wait until the database has all runs whose results were sent to clients so far. Raises
        `StoreFailed` if that takes too long.
        """
        if not (ready := self._ready(len(self._changes))):
            return
        self._hurry.set()
        try:
            async with asyncio.timeout(_READING_S), self._written:
                await self._written.wait_for(lambda: self.has(ready[-1].position))
        except TimeoutError:
            raise StoreFailed(
                "The gateway has not yet copied all finished runs from its log to the database; "
                "try again in a few seconds."
            ) from None

    async def committed(self, run_id: str) -> None:
        """Wait until the end of a run is in the shared database. Raises `StoreFailed` if that takes
        too long, or if the run's answer must not be delivered, because another gateway has closed
        the run or the database refuses the run's data.
        """
        await self.caught_up()
        if run_id in self._refused:
            self._refused.remove(run_id)
            raise StoreFailed(
                f"Run {run_id} has no answer, because another gateway closed the run, or because "
                "the database refused its data; ask again."
            )

    async def keep_following(self) -> None:
        """Write queued changes to the database until cancelled. Errors are logged, and the changes
        are written again.
        """
        while True:
            await self._news.wait()
            async with at_most(0 if self._commits else _LEISURE_S):
                await self._hurry.wait()
            with errors_logged(_log, "store.behind"):
                await self._follow()
                continue
            await asyncio.sleep(_LEISURE_S)

    async def finish(self) -> bool:
        """Write the remaining changes, and wait until the database has them on disk. Return True if
        no change is left. Raises `StoreFailed`.
        """
        await self._follow()

        # If no change is left, store a place in the next segment, which does not exist yet. It
        # shows that no existing segment is needed, so `missing_segments` accepts an empty folder.
        min_place = Position() if self._changes else Position(self._log.end.segment + 1)
        await self._keep_place(on_disk=True, min_place=min_place)
        return not self._changes

    async def delete_segments(self, needed: int) -> None:
        """Write the log's place to the database: the position up to which the database has all
        changes. Then delete the log's segments with numbers below `needed`, but keep those with
        changes that the database does not have on disk. Raises `StoreFailed`.
        """
        needed = min([needed, *(change.segment for change in self._changes)])
        obsolete = any(number_of(path) < needed for path in segments(self._log.folder))
        await self._keep_place(on_disk=obsolete, min_place=Position(needed))
        if obsolete:
            self._log.delete(needed)

    async def recover(self) -> tuple[list[RecordedRun], bool]:
        """Recover the log of a process that has ended: write its changes to the database, begin a
        new segment, and end the runs that were still running, with the status `interrupted`.

        Return two values: the interrupted runs in the log, without cancelled runs; and a bool,
        False if a part of the log is missing or damaged. Raises `StoreFailed`, and `BadConfig` if
        the log cannot be read at all.
        """
        missing = await missing_segments(self._database, self.name, self._log.folder)
        if missing:
            _log.error(
                "log.segments_missing",
                folder=str(self._log.folder),
                numbers=missing,
                advice="runs that were only in these segments are lost",
            )

        fold = await self.read()
        place = await self._database.read(place_of, self.name)
        self._log.start(after=place.segment)
        logged = {run.start.id: run for run in fold.left().values()}
        left = await self._database.read(left_over, self.name) | logged
        for run_id in await self._database.read(ended_among, list(left)):
            del left[run_id]  # the log's record of its end is lost
            logged.pop(run_id, None)

        changes = []
        for run in left.values():
            closed = run.interrupted()
            self._log.append(run.key, run.records, encode(RunEnded(replace(closed, calls=()))))
            changes.append(Change(run.start, run.redact, closed, position=self._log.end))
            _log.warning(
                "store.run_interrupted",
                run_id=closed.id,
                tenant=closed.tenant,
                calls_in_flight=[call.request_id for call in run.open.values()],
            )
        await self._log.synced()
        await self._write_all(changes)
        # The changes so far may not be on disk. This transaction waits for the disk, which puts
        # them on disk, too. Otherwise, readers could see rows that a power cut removes.
        await self._keep_place(on_disk=True)
        # Runs that are only in the database cannot be resumed, because the log has no record of
        # their calls. For most of them, the gateway was killed while the run began.
        interrupted = fold.interrupted | logged
        for run_id in await self._database.read(cancelled_among, list(interrupted)):
            del interrupted[run_id]
        return [*interrupted.values()], fold.complete and not missing

    async def read(self) -> Fold:
        """Read the whole log, and write the changes that the database lacks. Return the state of
        the runs in the log, including runs that have not ended. Raises `StoreFailed`, and
        `BadConfig` if the log cannot be read.
        """
        place = await self._database.read(place_of, self.name)
        fold = Fold()
        unread = read_all(self._log.folder)
        try:
            while segment := await asyncio.to_thread(next, unread, None):
                if segment.damaged:
                    _log.error(
                        "log.damaged",
                        file=str(segment.path),
                        bytes=segment.damaged,
                        holes=len(segment.holes),
                    )
                await self._write_all(
                    [change for change in fold.read(segment) if change.position > place]
                )
                give_back_room(segment)
        except (OSError, msgspec.DecodeError) as error:
            advice = (
                "if another release of rolegate wrote it, start and stop the gateway of that "
                "release; or move the log away, which loses its last runs"
            )
            raise BadConfig(
                f"server.store: the log {self._log.folder} cannot be read ({error}); {advice}."
            ) from error
        return fold

    async def _follow(self) -> None:
        """Write all waiting changes. Raises `StoreFailed`."""
        self._hurry.clear()
        while (batch := self._ready(_MAX_BATCH)) or (self._commits and self._commits.waiting):
            await self._write(batch)
            for _ in batch:
                self._changes.popleft()
            async with self._written:
                self._written.notify_all()
        if not self._changes:
            self._news.clear()

    def _ready(self, limit: int) -> list[Change]:
        """Return the first queued changes, at most `limit`, up to the first change that may not be
        written yet. In a database that is not shared, the end of a run may be written only when its
        record in the log is on disk. So readers never see a run that a power cut can remove.
        """

        def ready(change: Change) -> bool:
            return bool(self._commits or not change.run or change.position <= self._log.durable)

        return list(takewhile(ready, islice(self._changes, limit)))

    async def _write_all(self, changes: Sequence[Change]) -> None:
        for first in range(0, len(changes), _MAX_BATCH):
            await self._write(changes[first : first + _MAX_BATCH])

    async def _write(self, batch: Sequence[Change]) -> None:
        """Write changes in one transaction. If the database refuses the data, write each change in
        its own transaction. A run with refused data is written as failed, without its result, calls
        and events.
        """
        try:
            if self._commits:
                self._refused |= await self._commits.commit(batch)
            else:
                await self._database.write(project, self.name, batch, on_disk=False, behind=True)
        except StoreFailed as error:
            if not batch or not unwritable(error):
                raise
            if len(batch) > 1:
                for change in batch:
                    await self._write([change])
                return
            change = batch[0]
            run_id = change.start.id
            run = change.run
            why = type(error.__cause__).__name__
            _log.error("store.refused", run_id=run_id, error=why)
            self._refused.add(run_id)
            if run and (run.calls or run.events):
                bare = replace(run, status="failed", error=why, result=None, calls=(), events=())
                await self._write([change._replace(run=bare)])

    async def _keep_place(self, *, on_disk: bool, min_place: Position = _START) -> None:
        place = min_place if self._changes else max(min_place, self._log.end)
        await self._database.write(keep_place, self.name, place, on_disk=on_disk, behind=True)


async def missing_segments(database: Database, name: str, folder: Path) -> list[int]:
    """Return the numbers of segments that are missing in a log's folder, although they are still
    needed: the database does not have all of their runs. `name`: name of the log in the database.
    Raises `StoreFailed`.
    """
    # List the folder before reading the place: a gateway may meanwhile advance the place and then
    # delete segments.
    numbers = {number_of(path) for path in segments(folder)}
    place = await database.read(place_of, name, behind=True)
    copied = await database.read(place_of, COPY, behind=True)
    if not numbers and place == copied:
        return []
    first = place.segment + (place.offset == 0)
    last = max(numbers, default=place.segment)
    return sorted(set(range(first, last + 1)) - numbers)


def own_log(database: Database, log_folder: str | None = None) -> RunLog:
    """Open and lock a log for a gateway of this database. With PostgreSQL, take the first log that
    no other process has locked.

    `log_folder`: the folder of the log, or for PostgreSQL, the folder that contains the logs'
    folders; None for the database's `log_folder`. Raises `StoreInUse` and `StoreFailed`.
    """
    folder = Path(log_folder or database.log_folder)
    for number in count(1):
        with suppress(*([StoreInUse] if database.shared else [])):
            return RunLog.open(folder / str(number) if database.shared else folder)
    raise AssertionError


@asynccontextmanager
async def opened(
    url: str,
    on_missing: Callable[[list[int]], None] = lambda _numbers: None,
    log_folder: str | None = None,
) -> AsyncIterator[Database]:
    """Open a database for a command. First, make sure that a SQLite database has all runs whose
    results its gateway has sent to clients: wait for the gateway, or read its log here if no
    gateway is running.

    `on_missing`: called with the numbers of missing segments of a SQLite database's log.
    `log_folder`: folder of that log; None for the database's `log_folder`. Raises `BadConfig`, and
    `StoreFailed` if a running gateway does not write its log to the database in time.
    """
    database = await Database.open(url)
    try:
        folder = Path(log_folder or database.log_folder)
        if not database.shared:
            on_missing(await missing_segments(database, _SQLITE, folder))
            if segments(folder):
                try:
                    with RunLog.open(folder) as log:
                        await Follower(database, log).read()
                except StoreInUse:
                    await _followed(database, folder)
        yield database
    finally:
        await database.close()


async def _followed(database: Database, folder: Path) -> None:
    """Wait until a running gateway has written the present contents of its log in `folder` to the
    database. Raises `StoreFailed` if that takes too long.
    """

    def changes() -> Iterator[Position]:
        for segment in read_all(folder):
            for frame in segment.frames:
                if isinstance(decode(frame.payload), Begun | RunEnded | Forgotten):
                    yield frame.end

    wanted = await asyncio.to_thread(lambda: max(changes(), default=Position()))
    try:
        async with asyncio.timeout(_WAIT_S):
            # Another process writes to the database, so it can only be polled.
            while await database.read(place_of, _SQLITE) < wanted:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise StoreFailed(
            "A gateway has not yet copied its whole log to the database; try again in a minute."
        ) from None
