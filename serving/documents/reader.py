"""Reading documents in another process, within limits: what unpacks to gigabytes, or takes for ever, is given up.

`python -m serving.documents.reader SOCKET SECONDS` is that process: it hears paths, and tells what `read_parts` gives.
"""

import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self

import msgspec

from router.errors import BadConfig, BadCorpus, BadDocument, RolegateError, TooMuch
from serving.documents.document import Part, Row, batches
from serving.documents.reading import guarded, read_parts
from serving.documents.title import escaped

_MEMORY_BYTES = 1 << 30
"""All that the process may take; not enforced by macOS."""
_CHARS, _CHARS_OF_ROWS = 256 << 20, 16 << 20
"""Of a document, and of a file of rows."""
_CHARS_A_BYTE = 100
"""Rows may have more, up to so many for each byte of their file; no text of any use is packed that well."""
_KEPT = ("PATH", "HOME", "PYTHONHOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TMPDIR")
"""Variables that the process has from this one: no key is among them."""
_ERRORS = {error.__name__: error for error in (BadConfig, BadCorpus, BadDocument, TooMuch)}


class _Failed(msgspec.Struct, frozen=True):
    kind: str
    """A name in `_ERRORS`."""
    said: str


_decoder = msgspec.msgpack.Decoder(list[Part] | _Failed)


class Reader:
    """The other process, as this one sees it; the first file starts it, and so does the next one after its end."""

    def __init__(self, *, seconds: float = 60.0) -> None:
        """`seconds`: how long a document may take, and a batch of rows."""
        self._seconds = seconds
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._end()

    def read(self, path: Path) -> Iterator[Part]:
        """As `read_parts`, one file at a time. Raises what that raises, and `TooMuch`."""
        self._running = process, wire = self._running or self._started()
        usable = False
        try:
            wire.send_bytes(os.fsencode(path))
            while batch := _decoder.decode(wire.recv_bytes()):
                if isinstance(batch, _Failed):
                    usable = batch.kind != "TooMuch"  # the memory that it took may not have come back
                    raise _ERRORS[batch.kind](batch.said)
                yield from batch
            usable = True
        except (EOFError, OSError):
            raise self._why_ended(path, process.wait()) from None
        finally:
            if not usable:
                self._end()

    def _started(self) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, theirs = Pipe()
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")  # each would take its share of memory
        with theirs:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-m", "serving.documents.reader", str(theirs.fileno()), str(self._seconds)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**kept, **threads, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # a terminal's interrupt is for this process, which ends the other
            )
        return process, ours

    def _end(self) -> None:
        if self._running:
            process, wire = self._running
            self._running = None
            wire.close()
            process.kill()
            process.wait()

    def _why_ended(self, path: Path, code: int) -> RolegateError:
        if code >= 0:
            return BadConfig(f"{path}: the process that reads documents ended with status {code}; reinstall rolegate.")
        if code == -signal.SIGALRM:
            return BadDocument(f"{path}: takes more than {self._seconds:g} s to read; split it, or leave it out.")
        by_others = code in (-signal.SIGKILL, -signal.SIGTERM)  # perhaps for want of memory, perhaps not
        return (BadDocument if by_others else TooMuch)(
            f"{path}: reading it ended in {signal.Signals(-code).name}, as where it takes more than "
            f"{_MEMORY_BYTES >> 20} MB of memory; split it, or leave it out."
        )


def _work(wire: Connection, seconds: float) -> None:
    """Read what is asked for, until whoever asks is gone."""
    while True:
        try:
            path = Path(os.fsdecode(wire.recv_bytes()))
        except EOFError:
            return
        try:
            for encoded in guarded(path, map(msgspec.msgpack.encode, _in_time(path, seconds))):
                wire.send_bytes(encoded)
            last: list[Part] | _Failed = []
        except MemoryError:
            said = f"{path}: takes more than {_MEMORY_BYTES >> 20} MB of memory to read; split it, or leave it out."
            last = _Failed("TooMuch", escaped(said))
        except RolegateError as error:
            last = _Failed(type(error).__name__, escaped(str(error)))
        wire.send_bytes(msgspec.msgpack.encode(last))


def _in_time(path: Path, seconds: float) -> Iterator[list[Part]]:
    """Read in batches. The system ends this process where that takes too long, whatever it is doing."""
    parts = batches(read_parts(path), lambda part: part.chars)
    left, chars = seconds, 0
    while True:
        signal.setitimer(signal.ITIMER_REAL, left)
        try:
            batch = next(parts, None)
        finally:
            left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        if batch is None:
            return
        most, chars = _CHARS, chars + sum(part.chars for part in batch)
        if isinstance(batch[-1], Row):
            left = seconds
            most = chars if path.is_dir() else max(_CHARS_OF_ROWS, _CHARS_A_BYTE * path.stat().st_size)
        if chars > most:
            raise TooMuch(f"{path}: unpacks to more than {most >> 20} million characters; split it, or leave it out.")
        yield batch


def _end_with(wire: Connection) -> None:
    """End this process at once when the other side is gone, as after SIGKILL."""
    gone = select.poll()
    gone.register(wire.fileno(), 0)
    gone.poll()
    os._exit(1)


def _main(wire: Connection, seconds: float) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for limit, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, _MEMORY_BYTES)):
        with suppress(ValueError, OSError):  # a lower one is set already
            resource.setrlimit(limit, (value, value))
    Thread(target=_end_with, args=[wire], daemon=True).start()
    _work(wire, seconds)


if __name__ == "__main__":
    _main(Connection(int(sys.argv[1])), float(sys.argv[2]))
