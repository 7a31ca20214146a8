"""The log: append-only files with records of runs, in the order in which they were written.

A log is a folder with one owner, the process that holds its lock. Its files are called segments.
The name of a segment contains a number and a random salt. A segment is a sequence of frames, with
one record each:

    salt (4 bytes) | payload length (4) | checksum (4) | run (8) | number in the run (4) | payload

Reading does not stop at the first damaged byte. The reader searches for the next salt, and accepts
the bytes there as a frame if their checksum is right (CRC-32 over the frame, salt included, with 0
in the place of the checksum). The salt is random and not shown to anybody, so text from outside
does not contain it and cannot look like a frame. The bytes between two valid frames are a *hole*.
The records of a run are numbered, so a missing number shows that a record is lost.

A hole is damage only if its bytes had been synced to disk. So after each sync, a frame is appended
that contains the number of bytes that are synced: a *sync note*. The last frame of a finished
segment contains the length of the segment before that frame. A hole within the synced bytes is
damage. A later hole is the rest of a write that a crash interrupted; the write was never
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
from router.frozen import Frozen

_log = structlog.get_logger("store")
_HEADER = struct.Struct("<4sIIQI")
_SYNCED = struct.Struct("<Q")
SEGMENT_BYTES = 64 << 20
SEGMENT_S = 3600.0
"""Age of a segment, in seconds, at which the next segment is begun. A segment stays in the log
while a run that began in it is running or can be resumed.
"""
_STEP = 4 << 20
"""Number of bytes by which a segment's disk space is extended."""
_ROOM_FOR_ENDS = 1 << 20
"""Bytes of disk space that must be allocated after the last record before a run may begin. The
running runs need them to write their last records, even if the disk gets full.
"""
_ROOM_FOR_AN_END = 48 << 10
"""Bytes that must be allocated in addition to `_ROOM_FOR_ENDS`, for each running run and for the
run that begins.
"""
_MIN_FREE = 64 << 20
"""Number of free bytes below which a disk counts as full."""
_LAST = 1
"""`LogFrame.number` of the last frame of a finished segment. A sync note, a frame that tells how
many bytes are synced, has the number 0. In both frames, `LogFrame.run` is `NOBODY`, because they
belong to no run.
"""
_SEGMENT_NAME = re.compile(r"\d{8,18}-[0-9a-f]{8}\.log")
_OWN_FILES = ("owner", "name")
NOBODY = 0
"""`LogFrame.run` of frames that belong to no run: sync notes, and the last frames of segments."""


class Position(NamedTuple):
    """Position in the log: segment number and byte offset."""

    segment: int = 0
    offset: int = 0


class LogFrame(NamedTuple):
    """A frame that was read from the log."""

    run: int
    """Key of the run, a hash of its identifier (see `records.run_key`)."""
    number: int
    """Number of the record within its run."""
    payload: bytes
    """The encoded record."""
    end: Position
    """Position after the frame."""


class Owner(Frozen):
    """The process that owns the log, as written in the log's file `owner`."""

    pid: int
    address: str = ""
    """Address of the process's gRPC server; empty for a gateway that is starting, and for a
    command.
    """


@dataclass(slots=True)
class Segment:
    """The contents of a segment that was read."""

    number: int
    path: Path
    frames: list[LogFrame] = field(default_factory=list)
    holes: list[tuple[int, int]] = field(default_factory=list)
    """Byte ranges that are not valid frames, as pairs of start and end. The last range may be the
    unused end of the segment.
    """
    synced: int = 0
    """Number of bytes at the start of the segment that were synced to disk. A hole in these bytes
    is damage.
    """
    final_length: int = 0
    """Length of the segment in bytes when the next segment was begun; 0 if this is the last
    segment, or if the length is lost.
    """
    unused_end: bool = False
    """True if only zeros follow the last frame. They are disk space that was allocated and not
    used.
    """

    @property
    def damaged(self) -> int:
        """Number of bytes that had been synced to disk and are not valid frames."""
        return sum(max(0, min(end, self.synced) - start) for start, end in self.holes)


def read_segment(path: Path) -> Segment:
    """Read a segment. Raises `OSError`."""
    segment = Segment(number_of(path), path)
    data = path.read_bytes()
    salt = bytes.fromhex(path.stem.split("-")[1])

    read_to = 0  # end of the last valid frame
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
        segment.unused_end = len(data.rstrip(b"\0")) <= read_to
    return segment


def give_back_room(segment: Segment) -> None:
    """Cut off the unused end of a segment's file. Only the owner of the log may call this function,
    and only for segments that an earlier owner wrote.
    """
    if segment.unused_end:
        with suppress(OSError), segment.path.open("r+b", buffering=0) as file:
            file.truncate(segment.holes[-1][0])


def _frame(
    data: bytes,
    start: int,
    salt: bytes,
    segment: int,
) -> LogFrame | None:
    """Return the frame that begins at `start`; None if no valid frame begins there."""
    payload_start = start + _HEADER.size
    if payload_start > len(data):
        return None

    _, length, _, run, number = _HEADER.unpack_from(data, start)
    end = payload_start + length
    payload = data[payload_start:end]
    if data[start:end] != _encoded(salt, run, number, payload):
        return None
    return LogFrame(run, number, payload, Position(segment, end))


def _encoded(
    salt: bytes,
    run: int,
    number: int,
    payload: bytes,
) -> bytes:
    """Return the bytes of a frame. The checksum covers the whole frame, with 0 in the place of the
    checksum.
    """
    length = len(payload)
    checksum = crc32(payload, crc32(_HEADER.pack(salt, length, 0, run, number)))
    return _HEADER.pack(salt, length, checksum, run, number) + payload


def segments(folder: Path) -> list[Path]:
    """Return the segments in a folder, oldest first. Other files are ignored."""
    named = (path for path in folder.glob("*.log") if _SEGMENT_NAME.fullmatch(path.name))
    return sorted((path for path in named if path.is_file()), key=number_of)


def number_of(segment: Path) -> int:
    """Return the number in the name of a segment's file."""
    return int(segment.stem.split("-")[0])


class RunLog:
    """A log that this process owns and writes to. Only `open` may be called outside the event
    loop's thread.
    """

    def __init__(self, folder: Path, lock: int) -> None:
        """Use `open` instead. `lock`: file descriptor of the locked file `owner`."""
        self.folder = folder
        self._lock = lock
        self.failed: str | None = None
        """The reason why the log cannot be written any more; None if it works."""
        last = segments(folder)
        self._number = number_of(last[-1]) if last else 0
        self._file = -1
        self._path = folder
        self._offset = 0
        self._allocated = 0
        self._salt = b""
        self._segment_begun = 0.0
        self.durable = Position()
        """Position up to which the log is synced to disk."""
        self._buffer = list[bytes]()
        """Frames that are not written to the file yet."""
        self._flushing = False
        self._unsynced = list[int]()
        """File descriptors of finished segments that are not completely synced yet."""
        self._folder_unsynced = True
        """True if the folder must be synced, because a file was created in it."""
        self._thread = ThreadPoolExecutor(1, "log")
        self._waiting = list[asyncio.Future[None]]()
        self._syncing = False

    @classmethod
    def open(cls, folder: Path) -> "RunLog":
        """Create the folder of a log if needed, lock it, and return the log. Raises `StoreInUse` if
        another process owns the log, and `StoreFailed`.
        """
        with _as_store_failed(folder):
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
                if isinstance(error, BlockingIOError):
                    raise _in_use(folder) from None
                raise
        return log

    @property
    def name(self) -> str:
        """Name of the log in a shared database. It is chosen at random on first use, and stored in
        the log's folder. Raises `StoreFailed`.
        """
        with (
            _as_store_failed(self.folder),
            (self.folder / "name").open("a+", encoding="ascii") as file,
        ):
            file.seek(0)
            if not (name := file.read()):  # a new file, or its writer was killed while writing
                file.write(name := secrets.token_hex(8))
                file.flush()
                os.fsync(file.fileno())
        return name

    def write_address(self, address: str) -> None:
        """Write this process's identifier and gRPC address to the file `owner`."""
        owner = msgspec.json.encode(Owner(os.getpid(), address))
        os.pwrite(self._lock, owner, 0)
        os.ftruncate(self._lock, len(owner))

    @property
    def end(self) -> Position:
        """Position after the last record, even if it is not written to the file yet."""
        return Position(self._number, self._offset + sum(map(len, self._buffer)))

    def start(self, *, after: int = 0) -> None:
        """Begin the next segment. Its number is greater than `after`. Nothing can be appended
        before the first call. Raises `StoreFailed`; then the current segment is continued.
        """
        if self._file != -1:
            self.append(NOBODY, _LAST, _SYNCED.pack(self.end.offset))

        number = max(self._number, after) + 1
        salt = secrets.token_bytes(4)
        path = self.folder / f"{number:08}-{salt.hex()}.log"
        with _as_store_failed(self.folder):
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
        self._folder_unsynced = True
        self._offset = 0
        self._allocated = _STEP
        self._segment_begun = time.monotonic()

    def rotate(self) -> None:
        """Begin the next segment if the current segment is too large or too old. If that fails, the
        current segment is continued.
        """
        if self._offset >= SEGMENT_BYTES or (
            self._offset and time.monotonic() - self._segment_begun >= SEGMENT_S
        ):
            with suppress(StoreFailed):
                self.start()

    def admit(self, running: int) -> None:
        """Allocate disk space after the last record, so that one more run can begin and all running
        runs can end. `running`: number of runs that are running now. Raises `StoreFailed` if the
        disk is full or the log does not work.
        """
        self._check_open()
        self.rotate()
        self._ensure_room(self._offset + _ROOM_FOR_ENDS + _ROOM_FOR_AN_END * (running + 1))

    def append(
        self,
        run: int,
        number: int,
        payload: bytes,
        *,
        later: bool = False,
    ) -> None:
        """Write a record to the file, without waiting for the disk. Raises `StoreFailed`; then the
        record is not in the log.

        `run`: key of the record's run. `number`: number of the record within the run. `payload`:
        the encoded record. `later`: True to write the record together with the next record, at the
        latest in the next iteration of the event loop. If that write fails, nothing is raised, and
        the record stays in memory until a write succeeds.
        """
        self._check_open()
        self._buffer.append(_encoded(self._salt, run, number, payload))
        if not later:
            try:
                self._flush()
            except StoreFailed:
                self._buffer.pop()  # a failed flush leaves the buffer as it was
                raise
        elif not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._flushing = False
        with suppress(StoreFailed):
            self._flush()

    def _flush(self) -> None:
        """Write all buffered records to the file. Raises `StoreFailed`; then they stay buffered."""
        if not self._buffer:
            return
        data = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
        end = self._offset + len(data)
        self._ensure_room(end)
        with _as_store_failed(self.folder):
            written = os.pwrite(self._file, data, self._offset)
        if written != len(data):
            raise self._cut_back()
        self._offset = end
        self._buffer.clear()

    def synced(self) -> "asyncio.Future[None]":
        """Return a future that is done when everything written so far is on disk, except `later`
        records whose write failed. One sync serves all calls that were made before the sync began.
        The future raises `StoreFailed` if the sync fails.
        """
        future = asyncio.Future[None]()
        if self.failed:
            future.set_exception(StoreFailed(self.failed))
            return future
        self._waiting.append(future)
        if not self._syncing:
            self._sync()
        return future

    def watch(self) -> str | None:
        """Check the log and its disk. Return the reason why no run may begin, such as a disk that
        is almost full; None if runs may begin. If the file `owner` or the current segment was
        deleted or replaced, the log fails permanently.
        """
        if self.failed:
            return self.failed

        for file, path in ((self._lock, self.folder / "owner"), (self._file, self._path)):
            if identity(file) != identity(path):
                self.failed = (
                    f"{path} was deleted or replaced while the gateway ran, so no run can be "
                    "stored; restart the gateway"
                )
                _log.error("log.gone", file=str(path), advice="restart the gateway")
                return self.failed

        disk = os.statvfs(self.folder)
        free = disk.f_bavail * disk.f_frsize
        if free < _MIN_FREE:
            return (
                f"The disk of the log {self.folder} is full: {free >> 20} MiB are free, and "
                f"{_MIN_FREE >> 20} MiB are needed; make room there, or move the log (server.log)."
            )

        wanted = self._offset + _ROOM_FOR_ENDS + _ROOM_FOR_AN_END
        longest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if longest != resource.RLIM_INFINITY and longest < wanted:
            return _reason(OSError(errno.EFBIG, "File too large"), self.folder)

        # A disk quota of the user only shows when space is allocated.
        try:
            self._ensure_room(wanted)
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
        """Close the log and release its lock. `empty`: True to delete all segments of the log,
        because the database has all runs.
        """
        if self._lock == -1:
            return
        self._thread.shutdown()
        with suppress(StoreFailed):
            self._flush()
        self.failed = self.failed or "The gateway is stopping, so its log is closed; try again."
        for file in (*self._unsynced, self._file):
            if file != -1:
                os.close(file)
        self._buffer.clear()
        if empty:
            self.delete(self._number + 1)
        os.close(self._lock)
        self._lock = -1

    def _check_open(self) -> None:
        if self.failed:
            raise StoreFailed(self.failed)

    def _ensure_room(self, wanted: int) -> None:
        """Allocate the segment's disk space up to the byte `wanted`, rounded up to `_STEP` if the
        disk has room for that. Raises `StoreFailed`.
        """
        if wanted <= self._allocated:
            return
        for length in (-(-wanted // _STEP) * _STEP, wanted):
            try:
                os.posix_fallocate(self._file, 0, length)
            except OSError as error:
                if length == wanted:
                    raise StoreFailed(_reason(error, self.folder)) from error
            else:
                self._allocated = length
                return

    def _cut_back(self) -> StoreFailed:
        """After a write that was only partly done, remove its bytes. Return the error to raise."""
        try:
            os.ftruncate(self._file, self._offset)
        except OSError as error:
            self.failed = (
                f"The log {self._path} cannot be written ({error.strerror}); check its disk, and "
                "restart the gateway."
            )
        self._allocated = self._offset
        return StoreFailed(
            self.failed or _reason(OSError(errno.ENOSPC, "No space left on device"), self.folder)
        )

    def _sync(self) -> None:
        """Start a sync of everything written so far, in the thread. When it is done, resolve the
        futures that wait for it.
        """
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
            self._folder_unsynced,
        )
        self._unsynced = []
        self._folder_unsynced = False
        self._syncing = True

        def done(work: "asyncio.Future[None]") -> None:
            self._syncing = False
            if error := work.exception():
                self._not_synced(error)
            else:
                self._note_synced(synced_to)

            served = waiting
            # After a failed sync, the system may have dropped the data, and a later sync can
            # succeed without it. So the futures that wait for a later sync fail, too.
            if self.failed:
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
        self.failed = (
            f"The log {self.folder} cannot be synced to disk ({error}), so no run can be "
            "stored; check the disk, and restart the gateway."
        )
        advice = "check the disk, and restart the gateway"
        _log.error("log.not_synced", error=str(error), advice=advice)

    def _note_synced(self, position: Position) -> None:
        self.durable = position
        # A finished segment needs no sync note: for `read_all`, a note in a later segment is proof.
        if not self.failed and position.segment == self._number:
            with suppress(StoreFailed):
                self.append(NOBODY, 0, _SYNCED.pack(position.offset), later=True)

    def _sync_files(self, finished: list[int], current: int, sync_folder: bool) -> None:
        # The folder may have been created with its files, so sync its parent, too.
        for path in (self.folder, self.folder.parent) if sync_folder else ():
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
        user = f"process {owner.pid}, a command or a gateway that is starting"
        address = owner.address
    if address:
        user = f"the gateway at {address}"
        advice = "stop that gateway, or use it with --address"
    message = f"server.store: is in use by {user} ({folder}); {advice}, or set another store."
    return StoreInUse(message, address=address)


def identity(file: int | Path) -> tuple[int, int] | None:
    """Return the device and inode numbers of a file, its identity; None if it does not exist."""
    try:
        status = file.stat() if isinstance(file, Path) else os.fstat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextmanager
def _as_store_failed(folder: Path) -> Iterator[None]:
    """Translate an `OSError` in the body of the `with` statement to a `StoreFailed` that says what
    to do.
    """
    try:
        yield
    except OSError as error:
        raise StoreFailed(_reason(error, folder)) from error


def _reason(error: OSError, folder: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk of the log {folder} is full; make room, or move the log (server.log)."
    if error.errno == errno.EFBIG:
        return (
            f"The log {folder} cannot be written, because a file has reached the limit on file "
            "sizes (ulimit -f); raise the limit."
        )
    return f"The log {folder} cannot be written ({error.strerror}); check its disk and permissions."


def read_all(folder: Path) -> Iterator[Segment]:
    """Read and yield the segments of a log, oldest first. A segment that the log's owner deletes
    meanwhile is left out. Raises `OSError`.
    """
    # Segments for which no later segment with a sync note has been read yet. A sync note proves
    # that the owner had synced all earlier segments.
    waiting = list[Segment]()
    for path in segments(folder):
        try:
            segment = read_segment(path)
        except FileNotFoundError:
            continue
        if segment.synced:
            for earlier in waiting:
                earlier.synced = max(earlier.synced, earlier.final_length)
            yield from waiting
            waiting = []
        waiting.append(segment)
    yield from waiting
