"""Read documents in a child process with limits on time, memory and size.

The child process is `python -m serving.documents.reader SOCKET SECONDS`. It receives paths of files
from the parent process, and sends back the results of `read_parts`.
"""

import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self

from msgspec import msgpack

from router.errors import BadConfig, BadCorpus, BadDocument, DocumentTooLarge, RolegateError
from router.frozen import Frozen
from serving.dependencies import missing_extra
from serving.documents.cells import read_delimited, read_workbook
from serving.documents.document import (
    CorpusRow,
    Document,
    Kind,
    Part,
    TextBlock,
    Title,
    Unread,
    batches,
    escaped,
    kind_of,
)
from serving.documents.docx import read_docx
from serving.documents.mail import ReadFile, read_eml, read_msg
from serving.documents.markup import read_html, read_markdown
from serving.documents.ocr import MODEL_BYTES, read_image
from serving.documents.packed import read_epub, read_odt
from serving.documents.pdf import read_pdf
from serving.documents.records import read_records
from serving.documents.rows import has_rows, read_rows
from serving.documents.slides import read_pptx
from serving.documents.text import read_text


def _attachment(path: Path, levels: int = 3) -> Document | None:
    """Return the content of an attachment; None if files of its kind are not supported. `levels`:
    max depth of messages that are attached to messages.
    """
    kind = kind_of(path)
    if read_message := _MESSAGES.get(kind):
        inner = partial(_attachment, levels=levels - 1)
        return read_message(path, inner) if levels else None
    return _READERS[kind](path) if kind in _READERS else None


_MESSAGES: dict[Kind | None, Callable[[Path, ReadFile], Document]] = {
    "EML": read_eml,
    "MSG": read_msg,
}


_READERS: dict[Kind | None, Callable[[Path], Document]] = {
    "text": read_text,
    "Markdown": read_markdown,
    "HTML": read_html,
    "PDF": read_pdf,
    "DOCX": read_docx,
    "ODT": read_odt,
    "PPTX": read_pptx,
    "EPUB": read_epub,
    "EML": partial(read_eml, read_file=_attachment),
    "MSG": partial(read_msg, read_file=_attachment),
    "CSV": read_delimited,
    "workbook": read_workbook,
    "JSON": read_records,
    "image": read_image,
}
_MEMORY_BYTES = 1 << 30
"""Max memory of the child process in bytes; not enforced on macOS."""
_MAX_CHARS = 256 << 20
"""Max characters of a document."""
_MIN_UNPACKED_CHARS = 16 << 20
_CHARS_PER_BYTE = 100
"""Max unpacked characters per byte of a file, because text that compresses better is not useful. A
file may always have `_MIN_UNPACKED_CHARS` characters.
"""
_PART_CHARS = 100
"""When the size of a document is checked, this number of characters is added for each of its parts.
Most parts become passages, and the ids of passages stay in memory.
"""
_ENVIRONMENT = (
    "PATH",
    "HOME",
    "PYTHONHOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "TMPDIR",
)
"""Environment variables that the child process inherits. Others, such as those with API keys, are
not passed to it.
"""
_PACKAGES = {
    "docx": "python-docx",
    "oxmsg": "python-oxmsg",
    "pptx": "python-pptx",
    "python_calamine": "python-calamine",
    "yaml": "pyyaml",
}
"""Names of packages whose modules have another name, by the module's name."""
_ERRORS = {error.__name__: error for error in (BadConfig, BadCorpus, BadDocument, DocumentTooLarge)}


def read_parts(path: Path) -> Iterator[Part]:
    """Yield the rows of a corpus file, or the title of a document and then its blocks.

    A file of an unknown kind is read as text. Raises `BadDocument` or `BadCorpus` if the file
    cannot be read, and `BadConfig` if a package is missing.
    """
    with _errors_of(path):
        kind = kind_of(path)
        if kind == "rows" or (kind == "JSON" and has_rows(path)):
            yield from (CorpusRow(escaped(where), row) for where, row in read_rows(path))
            return
        document = _READERS[kind or "text"](path)
        yield Title(document.title, document.metadata)
        replaced = 0
        for part in document.blocks:
            replaced += part.text.count("\ufffd")
            yield part
        if replaced:
            yield Unread(f"{replaced} characters that cannot be decoded")


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Convert exceptions of readers and parsers to `RolegateError`. The messages name `path`."""
    try:
        yield
    except (RolegateError, MemoryError, GeneratorExit, KeyboardInterrupt):
        raise
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        package = _PACKAGES.get(package, package)
        raise BadConfig(
            f"{path}: reading it needs the package {package}; run: {missing_extra(package)}"
        ) from error
    except OSError as error:
        raise BadDocument(
            f"{path}: cannot be read ({error.strerror or error}); make it readable or leave it out."
        ) from error
    except (
        BaseException
    ) as error:  # parsers may raise anything for a damaged file, even Rust panics
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise BadDocument(
            f"{path}: is damaged, or not what its name says ({reason}); repair it, or leave it out."
        ) from error


class _Failed(Frozen):
    """An error that the child process sends."""

    kind: str
    """A key of `_ERRORS`."""
    message: str


_decoder = msgpack.Decoder(list[Part] | _Failed)


class DocumentReader:
    """Reads files in a child process. The process is started for the first file, and again after a
    failure.
    """

    def __init__(self, *, seconds: float = 60.0) -> None:
        """`seconds`: time limit for each document, and for each batch of rows of a corpus file."""
        self._seconds = seconds
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._end()

    def read(self, path: Path) -> Iterator[Part]:
        """Yield the parts of a file, as `read_parts` does. Also raises `DocumentTooLarge`."""
        self._running = process, wire = self._running or self._start()
        is_usable = False
        try:
            wire.send_bytes(os.fsencode(path))
            while batch := _decoder.decode(wire.recv_bytes()):
                if isinstance(batch, _Failed):
                    # After a large file, the child may not have freed its memory
                    is_usable = batch.kind != "DocumentTooLarge"
                    raise _ERRORS[batch.kind](batch.message)
                yield from batch
            is_usable = True
        except (EOFError, OSError):
            raise self._error(path, process.wait()) from None
        finally:
            if not is_usable:
                self._end()

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, theirs = Pipe()
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        # Limit threads of numerical libraries, because they take memory
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        with theirs:
            process = subprocess.Popen(  # noqa: S603
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "serving.documents.reader",
                    str(theirs.fileno()),
                    str(self._seconds),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={
                    **environment,
                    **threads,
                    "PYTHONPATH": os.pathsep.join(sys.path),
                },
                # Ctrl-C must reach only this process, which then ends the child
                start_new_session=True,
            )
        return process, ours

    def _end(self) -> None:
        if self._running:
            process, wire = self._running
            self._running = None
            wire.close()
            process.kill()
            process.wait()

    def _error(self, path: Path, code: int) -> RolegateError:
        """Return the error for a child process that ended with `code` while reading `path`."""
        if code >= 0:
            return BadConfig(
                f"{path}: the process that reads it ended with status {code}; reinstall rolegate."
            )
        if code == -signal.SIGALRM:
            return BadDocument(
                f"{path}: takes more than {self._seconds:g} s to read; split it, or leave it out."
            )
        # SIGKILL and SIGTERM may also have been sent for another reason than the memory limit
        is_ambiguous = code in (-signal.SIGKILL, -signal.SIGTERM)
        return (BadDocument if is_ambiguous else DocumentTooLarge)(
            f"{path}: its reading process got {signal.Signals(-code).name}, probably because the "
            f"file takes more than {_MEMORY_BYTES >> 20} MiB of memory; split it, or leave it out."
        )


def _work(wire: Connection, seconds: float) -> None:
    """Do the work of the child process: receive paths of files, and send their parts, until the
    parent process closes the connection.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for limit, value, most in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_DATA, _MEMORY_BYTES, _MEMORY_BYTES + MODEL_BYTES),
    ):
        with suppress(ValueError, OSError):  # a lower limit is already set
            resource.setrlimit(limit, (value, most))
    Thread(target=_exit_with, args=[wire], daemon=True).start()
    while True:
        path = Path(os.fsdecode(wire.recv_bytes()))
        try:
            with _errors_of(path):
                for batch in _in_time(path, seconds):
                    wire.send_bytes(msgpack.encode(batch))
            last: list[Part] | _Failed = []
        except MemoryError:
            message = (
                f"{path}: takes more than {_MEMORY_BYTES >> 20} MiB of memory to read; split it, "
                "or leave it out."
            )
            last = _Failed("DocumentTooLarge", escaped(message))
        except RolegateError as error:
            last = _Failed(type(error).__name__, escaped(str(error)))
        wire.send_bytes(msgpack.encode(last))


def _in_time(path: Path, seconds: float) -> Iterator[list[Part]]:
    """Yield the parts of a file in batches. If reading takes too long, a timer signal ends this
    process.
    """
    parts = batches(read_parts(path), _chars)
    left = seconds
    chars = 0
    overhead = 0
    while True:
        signal.setitimer(signal.ITIMER_REAL, left)
        try:
            batch = next(parts, None)
        finally:
            left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        if batch is None:
            return
        max_chars = max(_MIN_UNPACKED_CHARS, _CHARS_PER_BYTE * path.stat().st_size)
        chars += sum(map(_chars, batch))
        overhead += _PART_CHARS * len(batch)
        if isinstance(batch[-1], CorpusRow):
            left = seconds
        else:
            max_chars = min(max_chars, _MAX_CHARS + overhead)
        if chars + overhead > max_chars:
            raise DocumentTooLarge(
                f"{path}: unpacks to more than {max_chars >> 20} million characters; split it, or "
                "leave it out."
            )
        yield batch


def _chars(part: Part) -> int:
    if isinstance(part, CorpusRow):
        return len(part.passage.text)
    heading = part.heading if isinstance(part, TextBlock) else None
    return len(part.text) + len(heading or "")


def _exit_with(wire: Connection) -> None:
    """End this process as soon as the parent closes the connection or is killed."""
    poll = select.poll()
    poll.register(wire.fileno(), 0)
    poll.poll()
    os._exit(1)


if __name__ == "__main__":
    with suppress(EOFError):
        _work(Connection(int(sys.argv[1])), float(sys.argv[2]))
