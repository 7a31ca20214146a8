"""The log: an append-only file of records of runs, in order of time.

A log is a folder with one owner, the process that holds its lock. Its files, the segments, are
named by a number and a random salt. A segment is a sequence of frames:

    salt (4 bytes) | payload length (4) | checksum (4) | run (8) | number in the run (4) | payload

Recovery does not stop at the first bad byte. The reader looks for the next salt, and takes what
follows as a frame if its checksum is right: CRC-32 over the frame and the salt. Text from outside
cannot know the salt, so it cannot look like a frame. Pieces between valid frames are holes. A lost
record leaves a gap in its run's numbers.

A hole means damage only if it had been on disk before. So each sync appends a note of the byte up
to which the segment is synced, and the last frame of a finished segment holds its length. A hole
before that byte is damage. A hole after it is a write that a crash cut off, and that was never
acknowledged.
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
"""Max age of a segment. Texts stay in the log no longer than their runs plus this."""
_STEP = 4 << 20
"""Disk space is allocated in steps of this many bytes."""
_KEPT = 1 << 20
_KEPT_A_RUN = 48 << 10
"""Bytes allocated for the ends of runs, in total and per run, before another run may begin."""
_MIN_FREE = 64 << 20
"""Free bytes below which a disk counts as full."""
_LAST = 1
"""Number of the record that ends a segment; the notes of syncs have 0."""
_SEGMENT_NAME = re.compile(r"\d{8,18}-[0-9a-f]{8}\.log")
_OWN_FILES = ("owner", "name")
NOBODY = 0
"""Run of the records about the log itself, which say how far it was synced."""


class Position(NamedTuple):
    """Position in the log: segment number and byte offset."""

    segment: int = 0
    offset: int = 0


class LogFrame(NamedTuple):
    """One record in the log."""

    run: int
    number: int
    payload: bytes
    end: Position


class Owner(msgspec.Struct, frozen=True):
    """The process that owns the log."""

    pid: int
    address: str = ""
    """Address of its gRPC server; empty while it starts, and for commands."""


@dataclass(slots=True)
class Segment:
    """Contents of a segment."""

    number: int
    path: Path
    frames: list[LogFrame] = field(default_factory=list)
    holes: list[tuple[int, int]] = field(default_factory=list)
    """Byte ranges that are not valid frames: start and end."""
    synced: int = 0
    """Everything before this byte was on disk, so that a hole there is damage."""
    final_length: int = 0
    """Length of the segment when the next one was begun; 0 if there is no next one, or unknown."""
    unwritten: bool = False
    """True if only zeros follow the last frame: space that was allocated and not used."""

    @property
    def damaged(self) -> int:
        """Number of bytes that were on disk and cannot be read."""
        return sum(max(0, min(end, self.synced) - start) for start, end in self.holes)


def read_segment(path: Path) -> Segment:
    """Read a segment. Raises `OSError`."""
    segment = Segment(number_of(path), path)
    data = path.read_bytes()
    salt = bytes.fromhex(path.stem.split("-")[1])

    read_to = 0
    start = 0
    while (start := data.find(salt, start)) != -1:
        frame = _frame(data, start, salt, segment.number)
        if frame is None:
            start += 1
            continue

        if start > read_to:
            segment.holes.append((read_to, start))
        read_to = start = frame.end.offset

        if frame.run != NOBODY:
            segment.frames.append(frame)
            continue
        (offset,) = _SYNCED.unpack(frame.payload)
        if frame.number == _LAST:
            segment.final_length = offset
        else:
            segment.synced = max(segment.synced, offset)

    if read_to < len(data):
        segment.holes.append((read_to, len(data)))
        segment.unwritten = len(data.rstrip(b"\0")) <= read_to
    return segment


def give_back_room(segment: Segment) -> None:
    """Truncate the unused end of a segment. Only for the log's next owner."""
    if segment.unwritten:
        with suppress(OSError), segment.path.open("r+b", buffering=0) as file:
            file.truncate(segment.holes[-1][0])


def _frame(
    data: bytes,
    start: int,
    salt: bytes,
    segment: int,
) -> LogFrame | None:
    """Return the frame that begins at `start`; None if there is no valid one."""
    payload_start = start + _HEADER.size
    if payload_start > len(data):
        return None

    _, length, checksum, run, number = _HEADER.unpack_from(data, start)
    end = payload_start + length
    payload = data[payload_start:end]
    if end > len(data) or checksum != _checksum(
        salt,
        length,
        run,
        number,
        payload,
    ):
        return None
    return LogFrame(run, number, payload, Position(segment, end))


def _checksum(
    salt: bytes,
    length: int,
    run: int,
    number: int,
    payload: bytes,
) -> int:
    return crc32(
        payload,
        crc32(
            _HEADER.pack(
                salt,
                length,
                0,
                run,
                number,
            )
        ),
    )


def segments(folder: Path) -> list[Path]:
    """Return the segments in a folder, oldest first. Other files are ignored."""
    named = (path for path in folder.glob("*.log") if _SEGMENT_NAME.fullmatch(path.name))
    return sorted((path for path in named if path.is_file()), key=number_of)


def number_of(segment: Path) -> int:
    """Return the number of a segment."""
    return int(segment.stem.split("-")[0])


class RunLog:
    """The log of a process. Only `open` may be called outside the event loop's thread."""

    def __init__(self, folder: Path, lock: int) -> None:
        """`lock`: descriptor of the locked `owner` file. Use `open` to make a log."""
        self.folder = folder
        self._lock = lock
        self.failed: str | None = None
        """The reason why nothing can be written any more; None while the log works."""
        last = segments(folder)
        self._number = number_of(last[-1]) if last else 0
        self._file = -1
        self._path = folder
        self._offset = 0
        self._room = 0
        self._salt = b""
        self._begun = 0.0
        self.durable = Position()
        """Position up to which the log is on disk."""
        self._buffer: list[bytes] = []
        """Frames that are not written yet."""
        self._flushing = False
        self._unsynced: list[int] = []
        """Descriptors of finished segments that are not synced to their ends."""
        self._new = True
        """True if the folder must be synced, as a file was created in it."""
        self._thread = ThreadPoolExecutor(1, "log")
        self._waiting: list[asyncio.Future[None]] = []
        self._syncing = False

    @classmethod
    def open(cls, folder: Path) -> "RunLog":
        """Lock a folder. Raises `StoreInUse` if another process owns it, and `StoreFailed`."""
        with _explained(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(folder / "owner", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                known = {*_OWN_FILES, *(path.name for path in segments(folder))}
                if strays := sorted({path.name for path in folder.iterdir()} - known):
                    _log.warning("log.stray_files", folder=str(folder), ignored=strays)
                log = cls(folder, lock)
                log.write_address("")
            except OSError as error:
                os.close(lock)
                raise _in_use(folder) if isinstance(error, BlockingIOError) else error from None
        return log

    @property
    def name(self) -> str:
        """Name of the log in a shared database; created on first use. Raises `StoreFailed`."""
        with _explained(self.folder), (self.folder / "name").open("a+", encoding="ascii") as file:
            file.seek(0)
            if not (name := file.read()):  # new, or its writer was killed before it wrote one
                file.write(name := secrets.token_hex(8))
                file.flush()
                os.fsync(file.fileno())
        return name

    def write_address(self, address: str) -> None:
        """Write the owner's address to the `owner` file."""
        owner = msgspec.json.encode(Owner(os.getpid(), address))
        os.pwrite(self._lock, owner, 0)
        os.ftruncate(self._lock, len(owner))

    @property
    def end(self) -> Position:
        """Position after the last record."""
        return Position(self._number, self._offset + sum(map(len, self._buffer)))

    def start(self, *, after: int = 0) -> None:
        """Begin a segment whose number is above `after`. Raises `StoreFailed`."""
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
                os.ftruncate(self._file, self._offset)  # give back unused space
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
        """Begin the next segment if this one is large or old enough."""
        if self._offset >= SEGMENT_BYTES or (
            self._offset and time.monotonic() - self._begun >= SEGMENT_S
        ):
            with suppress(StoreFailed):  # then this one is continued
                self.start()

    def admit(self, running: int) -> None:
        """Allocate space for one more run. `running`: number of runs now. Raises `StoreFailed`."""
        self._see_open()
        self.rotate()
        self._see_room(self._offset + _KEPT + _KEPT_A_RUN * (running + 1))

    def append(
        self,
        run: int,
        number: int,
        payload: bytes,
        *,
        later: bool = False,
    ) -> None:
        """Write a record. Raises `StoreFailed`; then the record is not in the log.

        `later`: write it together with the next record, or at the end of the event loop's turn. If
        that fails, it is kept until it can be written.
        """
        self._see_open()
        length = len(payload)
        checksum = _checksum(
            self._salt,
            length,
            run,
            number,
            payload,
        )
        self._buffer.append(
            _HEADER.pack(
                self._salt,
                length,
                checksum,
                run,
                number,
            )
            + payload
        )
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
        """Write all buffered records. Raises `StoreFailed`; then they stay buffered."""
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
        """Return a future that is done once everything written so far is on disk. One sync serves
        all that wait. Fails with `StoreFailed`.
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
        """Return the reason why no run may begin, such as a disk that is almost full; None if
        runs may. A log that was deleted or replaced fails permanently.
        """
        if self.failed:
            return self.failed

        for file, path in ((self._lock, self.folder / "owner"), (self._file, self._path)):
            if identity(file) != identity(path):
                self.failed = (
                    f"{path} was deleted or replaced while the gateway ran, so nothing can be "
                    "acknowledged; restart the gateway"
                )
                _log.error("log.gone", file=str(path), advice="restart the gateway")
                return self.failed

        disk = os.statvfs(self.folder)
        free = disk.f_bavail * disk.f_frsize
        if free < _MIN_FREE:
            return f"The disk of the log {self.folder} is full: {free >> 20} MiB are free."

        wanted = self._offset + _KEPT + _KEPT_A_RUN
        longest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if longest != resource.RLIM_INFINITY and longest < wanted:
            return _full(OSError(errno.EFBIG, "File too large"), self.folder)

        # A quota of the file system shows only when space is allocated.
        try:
            self._see_room(wanted)
        except StoreFailed as error:
            return str(error)
        return None

    def delete(self, before: int) -> None:
        """Delete the segments whose numbers are below `before`."""
        for path in segments(self.folder):
            if number_of(path) < before:
                path.unlink(missing_ok=True)

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self, *, empty: bool = False) -> None:
        """Release the folder. `empty`: delete its segments, as the database has all runs."""
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
        """Allocate disk space up to byte `wanted`, and up to the next step if that works. Raises
        `StoreFailed`.
        """
        if wanted <= self._room:
            return
        for room in (-(-wanted // _STEP) * _STEP, wanted):
            try:
                os.posix_fallocate(self._file, 0, room)
            except OSError as error:
                if room == wanted:
                    raise StoreFailed(_full(error, self.folder)) from error
            else:
                self._room = room
                return

    def _cut_back(self) -> None:
        """Undo a partial write. Raises `StoreFailed`."""
        try:
            os.ftruncate(self._file, self._offset)
        except OSError as error:
            self.failed = f"The log {self._path} cannot be written: {error.strerror}."
        self._room = self._offset
        raise StoreFailed(
            self.failed or _full(OSError(errno.ENOSPC, "No space left on device"), self.folder)
        )

    def _sync(self) -> None:
        """Sync everything written so far in the thread, then serve all that wait."""
        with suppress(StoreFailed):
            self._flush()
        waiting = self._waiting
        self._waiting = []
        synced_to = Position(self._number, self._offset)
        work = asyncio.get_running_loop().run_in_executor(
            self._thread,
            self._sync_files,
            self._unsynced,
            self._file,
            self._new,
        )
        self._unsynced = []
        self._new = False
        self._syncing = True

        def done(work: "asyncio.Future[None]") -> None:
            self._syncing = False
            if error := work.exception():
                self._not_synced(error)
            else:
                self._note_synced(synced_to)

            served = waiting
            if self.failed:  # a later sync would prove nothing, so nothing waits for one
                served = waiting + self._waiting
                self._waiting = []
            for future in served:
                if future.done():
                    continue
                if self.failed:
                    future.set_exception(StoreFailed(self.failed))
                else:
                    future.set_result(None)

            if self._waiting:
                self._sync()

        work.add_done_callback(done)

    def _not_synced(self, error: BaseException) -> None:
        self.failed = f"The log {self.folder} cannot be synced ({error}); nothing is acknowledged."
        advice = "see to the disk, and restart the gateway"
        _log.error("log.not_synced", error=str(error), advice=advice)

    def _note_synced(self, position: Position) -> None:
        self.durable = position
        # The notes of a later segment cover a segment that has ended.
        if not self.failed and position.segment == self._number:
            with suppress(StoreFailed):
                self.append(NOBODY, 0, _SYNCED.pack(position.offset), later=True)

    def _sync_files(self, finished: list[int], current: int, folder: bool) -> None:
        # The folder itself may be as new as its files, so its parent is synced, too.
        for path in (self.folder, self.folder.parent) if folder else ():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        for file in finished:
            os.fdatasync(file)
            os.close(file)
        os.fdatasync(current)


def _in_use(folder: Path) -> StoreInUse:
    user = "another process"
    address = ""
    advice = "try again soon"
    with suppress(OSError, msgspec.DecodeError):
        owner = msgspec.json.decode((folder / "owner").read_bytes(), type=Owner)
        user = f"process {owner.pid}, a gateway that starts or a command"
        address = owner.address
    if address:
        user = f"the gateway at {address}"
        advice = "ask that one"
    message = f"server.store: is in use by {user} ({folder}); {advice}, or name another store."
    return StoreInUse(message, address=address)


def identity(file: int | Path) -> tuple[int, int] | None:
    """Return device and inode, which identify a file; None if there is no file."""
    try:
        status = file.stat() if isinstance(file, Path) else os.fstat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Translate an `OSError` of the log's files to `StoreFailed`, with advice."""
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
    """Yield every segment, oldest first. A segment that its owner deletes meanwhile is left out.
    Raises `OSError`.
    """
    previous: Segment | None = None
    for path in segments(folder):
        try:
            segment = read_segment(path)
        except FileNotFoundError:
            continue
        if previous:
            if segment.synced:  # each sync covers all earlier segments
                previous.synced = max(previous.synced, previous.final_length)
            yield previous
        previous = segment
    if previous:
        yield previous
