"""The log: records of runs in the order in which they happened, in files that are only ever added
to.

A folder has one owner. Its files, the segments, are named by a number and a salt; each holds
frames:

    salt (4 bytes) | length of the payload (4) | checksum (4) | run (8) | number within the run (4)
    | payload

The checksum is CRC-32 over the rest of the frame and the salt, which no text that comes from
outside can know. So reading can go on at the next valid frame after damage, and a record that is
missing leaves a gap in its run's numbers.
"""

import asyncio
import errno
import fcntl
import os
import re
import resource
import secrets
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgspec
import structlog

from router.errors import StoreFailed, StoreInUse

_log = structlog.get_logger("store")
_HEADER = struct.Struct("<4sIIQI")
_SYNCED = struct.Struct("<Q")
SEGMENT_BYTES = 64 << 20
SEGMENT_S = 3600.0
"""When the next segment is begun: texts stay in the log no longer than their runs, and this."""
_STEP = 4 << 20
"""Room is taken from the disk in such pieces."""
_KEPT = 1 << 20
_KEPT_A_RUN = 48 << 10
"""Room that is kept for the ends of runs, in all and for each, before another one may begin."""
_LEAST_FREE = 64 << 20
"""Bytes below which a disk counts as full before it is."""
_LAST = 1
"""The number of the record that ends a segment; others of nobody have 0."""
_SEGMENT_NAME = re.compile(r"\d{8,18}-[0-9a-f]{8}\.log")
_OWN_FILES = ("owner", "name")
NOBODY = 0
"""The run of records that are about the log itself: how far it was on disk."""


class Position(NamedTuple):
    """A place in the log: a segment's number and the bytes before it."""

    segment: int = 0
    offset: int = 0


class Frame(NamedTuple):
    """One record as it stands in the log."""

    run: int
    number: int
    payload: bytes
    end: Position


class Owner(msgspec.Struct, frozen=True):
    """The process that has the log."""

    pid: int
    address: str = ""
    """Its gRPC server; empty while it starts, and for commands."""


@dataclass(slots=True)
class Segment:
    """One segment as it was read."""

    number: int
    path: Path
    frames: list[Frame] = field(default_factory=list)
    holes: list[tuple[int, int]] = field(default_factory=list)
    """Pieces that are no frames, from byte to byte."""
    synced: int = 0
    """All before this byte was on disk, so that a hole there is damage. Behind it, the end of a
    process or of the machine may have cut something off.
    """

    whole: int = 0
    """Where it ended when the next one was begun; 0 where none was, or where it cannot be told."""
    unwritten: bool = False
    """Whether all behind its last frame is zeros: room that its owner has taken, and not used."""

    @property
    def damaged(self) -> int:
        """The number of bytes that were on disk and cannot be read."""
        return sum(max(0, min(end, self.synced) - start) for start, end in self.holes)


def read_segment(path: Path) -> Segment:
    """Read a segment. Raises `OSError`."""
    segment = Segment(number_of(path), path)
    data = path.read_bytes()
    salt = bytes.fromhex(path.stem.split("-")[1])
    at = 0
    start = 0
    while (start := data.find(salt, start)) != -1:
        if (frame := _frame(data, start, salt, segment.number)) is None:
            start += 1
            continue
        if start > at:
            segment.holes.append((at, start))
        at = start = frame.end.offset
        if frame.run != NOBODY:
            segment.frames.append(frame)
            continue
        (place,) = _SYNCED.unpack(frame.payload)
        if frame.number == _LAST:
            segment.whole = place
        else:
            segment.synced = max(segment.synced, place)
    if at < len(data):
        segment.holes.append((at, len(data)))
        segment.unwritten = len(data.rstrip(b"\0")) <= at
    return segment


def give_back_room(segment: Segment) -> None:
    """Cut off what of a segment that was read is unwritten; for the next owner alone."""
    if segment.unwritten:
        with suppress(OSError), segment.path.open("r+b", buffering=0) as file:
            file.truncate(segment.holes[-1][0])


def _frame(data: bytes, start: int, salt: bytes, segment: int) -> Frame | None:
    """The frame that begins there; None where none does."""
    if (begins := start + _HEADER.size) > len(data):
        return None
    _, length, checksum, run, number = _HEADER.unpack_from(data, start)
    payload = data[begins : begins + length]
    end = begins + length
    if end > len(data) or checksum != _checksum(salt, length, run, number, payload):
        return None
    return Frame(run, number, payload, Position(segment, end))


def _checksum(salt: bytes, length: int, run: int, number: int, payload: bytes) -> int:
    return crc32(payload, crc32(_HEADER.pack(salt, length, 0, run, number)))


def segments(folder: Path) -> list[Path]:
    """Return the segments in a folder, oldest first. Anything else in the folder is ignored."""
    named = (path for path in folder.glob("*.log") if _SEGMENT_NAME.fullmatch(path.name))
    return sorted((path for path in named if path.is_file()), key=number_of)


def number_of(segment: Path) -> int:
    """The number of a segment."""
    return int(segment.stem.split("-")[0])


class RunLog:
    """The log of one process. All but `open` is for the thread of its event loop."""

    def __init__(self, folder: Path, lock: int) -> None:
        """`lock`: the descriptor of the file whose lock says who owns the folder. `open` makes
        one.
        """
        self.folder = folder
        self._lock = lock
        self.failed: str | None = None
        """The reason why nothing is taken any more; None while all is well."""
        last = segments(folder)
        self._number = number_of(last[-1]) if last else 0
        self._file = -1
        self._path = folder
        self._offset = 0
        self._room = 0
        self._salt = b""
        self._begun = 0.0
        self.durable = Position()
        """The place up to which it is on disk."""
        self._buffer: list[bytes] = []
        """Frames that wait to be written."""
        self._flushing = False
        self._unsynced: list[int] = []
        """Descriptors of earlier segments that have not been synced to their ends."""
        self._new = True
        """Whether the folder was not synced since a file was made in it."""
        self._thread = ThreadPoolExecutor(1, "log")
        self._waiting: list[asyncio.Future[None]] = []
        self._syncing = False

    @classmethod
    def open(cls, folder: Path) -> "RunLog":
        """Take the folder. Raises `StoreInUse` where it has another owner, and `StoreFailed`."""
        with _explained(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(folder / "owner", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                known = {*_OWN_FILES, *(path.name for path in segments(folder))}
                if strays := sorted({path.name for path in folder.iterdir()} - known):
                    _log.warning("log.stray_files", folder=str(folder), ignored=strays)
                log = cls(folder, lock)
                log.tell("")
            except OSError as error:
                os.close(lock)
                raise _in_use(folder) if isinstance(error, BlockingIOError) else error from None
        return log

    @property
    def name(self) -> str:
        """The name of the log among those of other folders; made, on disk, when it is first asked
        for. Raises `StoreFailed`.
        """
        with _explained(self.folder), (self.folder / "name").open("a+", encoding="ascii") as file:
            file.seek(0)
            if not (name := file.read()):  # new, or its writer was killed before it had one
                file.write(name := secrets.token_hex(8))
                file.flush()
                os.fsync(file.fileno())
        return name

    def tell(self, address: str) -> None:
        """Say where the owner is to be asked."""
        words = msgspec.json.encode(Owner(os.getpid(), address))
        os.pwrite(self._lock, words, 0)
        os.ftruncate(self._lock, len(words))

    @property
    def end(self) -> Position:
        """The place behind the last record."""
        return Position(self._number, self._offset + sum(map(len, self._buffer)))

    def start(self, *, after: int = 0) -> None:
        """Begin a segment, with a number above `after`, too. Raises `StoreFailed`."""
        if self._file != -1:
            self.append(NOBODY, _LAST, _SYNCED.pack(self.end.offset))
        number = max(self._number, after) + 1
        salt = secrets.token_bytes(4)
        path = self.folder / f"{number:08}-{salt.hex()}.log"
        with _explained(self.folder):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.posix_fallocate(file, 0, _STEP)
            except OSError:
                os.close(file)
                path.unlink()
                raise
        if self._file != -1:
            with suppress(OSError):
                os.ftruncate(self._file, self._offset)  # the rest of its room is not needed
            self._unsynced.append(self._file)
        self._number = number
        self._salt = salt
        self._file = file
        self._path = path
        self._new = True
        self._offset = 0
        self._room = _STEP
        self._begun = time.monotonic()

    def rotate(self) -> None:
        """Begin the next segment where this one is large or old enough."""
        if self._offset >= SEGMENT_BYTES or (
            self._offset and time.monotonic() - self._begun >= SEGMENT_S
        ):
            with suppress(StoreFailed):  # then this one goes on
                self.start()

    def admit(self, running: int) -> None:
        """See to it that there is room for another run beside so many. Raises `StoreFailed`."""
        self._see_open()
        self.rotate()
        self._see_room(self._offset + _KEPT + _KEPT_A_RUN * (running + 1))

    def append(self, run: int, number: int, payload: bytes, *, later: bool = False) -> None:
        """Write a record. `later`: with the next one that is not for later, or at the end of the
        event loop's turn; one that cannot be written then waits until it can. Raises `StoreFailed`;
        then there is no such record.
        """
        self._see_open()
        length = len(payload)
        checksum = _checksum(self._salt, length, run, number, payload)
        self._buffer.append(_HEADER.pack(self._salt, length, checksum, run, number) + payload)
        if not later:
            try:
                self._flush()
            except StoreFailed:
                self._buffer.pop()
                raise
        elif not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._flushing = False
        with suppress(StoreFailed):
            self._flush()

    def _flush(self) -> None:
        """Write all records that wait. Raises `StoreFailed`; then they go on waiting."""
        if not self._buffer:
            return
        data = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
        end = self._offset + len(data)
        self._see_room(end)
        with _explained(self.folder):
            written = os.pwrite(self._file, data, self._offset)
        if written != len(data):
            self._cut_back()
        self._offset = end
        self._buffer.clear()

    def synced(self) -> "asyncio.Future[None]":
        """Done once all that is written by now is on disk; one sync serves all who wait. Fails
        with `StoreFailed`.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.failed:
            future.set_exception(StoreFailed(self.failed))
            return future
        self._waiting.append(future)
        if not self._syncing:
            self._sync()
        return future

    def watch(self) -> str | None:
        """The reason why nothing more is to be admitted, such as a disk that is almost full; None
        where there is none. A log that was deleted or replaced takes nothing any more.
        """
        if self.failed:
            return self.failed
        for file, path in ((self._lock, self.folder / "owner"), (self._file, self._path)):
            if identity(file) != identity(path):
                self.failed = (
                    f"{path} was deleted or replaced while the gateway ran, so nothing is "
                    "acknowledged any more"
                )
                _log.error("log.gone", file=str(path), advice="restart the gateway")
                return self.failed
        room = os.statvfs(self.folder)
        free = room.f_bavail * room.f_frsize
        if free < _LEAST_FREE:
            return f"The disk of the log {self.folder} is full: {free >> 20} MiB are free."

        wanted = self._offset + _KEPT + _KEPT_A_RUN
        longest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if longest != resource.RLIM_INFINITY and longest < wanted:
            return _full(OSError(errno.EFBIG, "File too large"), self.folder)

        # A quota of the file system shows only when room is taken.
        try:
            self._see_room(wanted)
        except StoreFailed as error:
            return str(error)
        return None

    def delete(self, before: int) -> None:
        """Delete the segments with numbers below this."""
        for path in segments(self.folder):
            if number_of(path) < before:
                path.unlink(missing_ok=True)

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self, *, empty: bool = False) -> None:
        """Leave the folder; with nothing in it where all is elsewhere."""
        if self._lock == -1:
            return
        self._thread.shutdown()
        with suppress(StoreFailed):
            self._flush()
        self.failed = self.failed or "The log is closed."
        for file in (*self._unsynced, self._file):
            if file != -1:
                os.close(file)
        self._buffer.clear()
        if empty:
            self.delete(self._number + 1)
        os.close(self._lock)
        self._lock = -1

    def _see_open(self) -> None:
        if self.failed:
            raise StoreFailed(self.failed)

    def _see_room(self, wanted: int) -> None:
        """Take room from the disk up to that byte, and some more where there is some. Raises
        `StoreFailed`.
        """
        if wanted <= self._room:
            return
        for room in -(-wanted // _STEP) * _STEP, wanted:
            try:
                os.posix_fallocate(self._file, 0, room)
            except OSError as error:
                if room == wanted:
                    raise StoreFailed(_full(error, self.folder)) from error
            else:
                self._room = room
                return

    def _cut_back(self) -> None:
        """Undo a write that was not whole. Raises `StoreFailed`."""
        try:
            os.ftruncate(self._file, self._offset)
        except OSError as error:
            self.failed = f"The log {self._path} cannot be written: {error.strerror}."
        self._room = self._offset
        raise StoreFailed(
            self.failed or _full(OSError(errno.ENOSPC, "No space left on device"), self.folder)
        )

    def _sync(self) -> None:
        with suppress(StoreFailed):
            self._flush()
        waiting = self._waiting
        self._waiting = []
        earlier = self._unsynced
        self._unsynced = []
        folder = self._new
        self._new = False
        number = self._number
        end = self._offset
        self._syncing = True
        work = asyncio.get_running_loop().run_in_executor(
            self._thread, self._sync_files, earlier, self._file, folder
        )

        def done(work: "asyncio.Future[None]") -> None:
            self._syncing = False
            if error := work.exception():
                self.failed = (
                    f"The log {self.folder} could not be put on disk ({error}); nothing is "
                    "acknowledged."
                )
                _log.error(
                    "log.not_synced",
                    error=str(error),
                    advice="see to the disk, and restart the gateway",
                )
            else:
                self.durable = Position(number, end)
            # A later one says it of a segment that has ended
            if not self.failed and number == self._number:
                with suppress(StoreFailed):
                    self.append(NOBODY, 0, _SYNCED.pack(end), later=True)
            for future in (*waiting, *(self._waiting if self.failed else ())):
                if not future.done():
                    future.set_exception(
                        StoreFailed(self.failed)
                    ) if self.failed else future.set_result(None)
            if self.failed:
                self._waiting = []
            elif self._waiting:
                self._sync()

        work.add_done_callback(done)

    def _sync_files(self, earlier: list[int], current: int, folder: bool) -> None:
        # Which may be as new as its files
        for parent in (self.folder, self.folder.parent) if folder else ():
            descriptor = os.open(parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        for file in earlier:
            os.fdatasync(file)
            os.close(file)
        os.fdatasync(current)


def _in_use(folder: Path) -> StoreInUse:
    who = "another process"
    address = ""
    advice = "try again soon"
    with suppress(OSError, msgspec.DecodeError):
        owner = msgspec.json.decode((folder / "owner").read_bytes(), type=Owner)
        who = f"process {owner.pid}, a gateway that starts or a command"
        address = owner.address
    if address:
        who = f"the gateway at {address}"
        advice = "ask that one"
    said = f"server.store: is in use by {who} ({folder}); {advice}, or name another store."
    return StoreInUse(said, address=address)


def identity(file: int | Path) -> tuple[int, int] | None:
    """Device and inode, which tell a file from all others; None where there is none."""
    try:
        found = file.stat() if isinstance(file, Path) else os.fstat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Raise `StoreFailed` for what goes wrong with a log's files, saying what to do."""
    try:
        yield
    except OSError as error:
        raise StoreFailed(_full(error, folder)) from error


def _full(error: OSError, folder: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk of the log {folder} is full; make room there, or move it."
    if error.errno == errno.EFBIG:
        return (
            f"The log {folder} cannot be written: it reached the limit on the size of files "
            "(ulimit -f); raise it."
        )
    return f"The log {folder} cannot be written: {error.strerror}."


def read_all(folder: Path) -> Iterator[Segment]:
    """Every segment, oldest first, but for those that their owner deletes meanwhile. Raises
    `OSError`.
    """
    earlier: Segment | None = None
    for path in segments(folder):
        try:
            segment = read_segment(path)
        except FileNotFoundError:
            continue
        if earlier:
            if segment.synced:  # by then, so was the one before
                earlier.synced = max(earlier.synced, earlier.whole)
            yield earlier
        earlier = segment
    if earlier:
        yield earlier
