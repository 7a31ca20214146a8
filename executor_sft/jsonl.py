"""Read JSON files, and append to JSON lines files that stay usable when the process is killed."""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from router.errors import JSON_ERRORS, BadConfig, StoreFailed, explained
from serving.files import write_atomically

_Line = TypeVar("_Line")


class JsonlFile(Generic[_Line]):
    """An append-only file of JSON lines, open in one process at a time.

    If the process is killed or the disk is full, the last line may be incomplete. Opening the file
    removes such a line.
    """

    def __init__(self, path: Path, kind: type[_Line], advice: str) -> None:
        """Open the file `path`, or create it. `kind`: type of a line's value. `advice`: what the
        user should do about an invalid line, as the end of the error message.

        Raises `BadConfig` if another process has the file open.
        """
        self.path = path
        self._file = path.open("a+b", buffering=0)
        self._kind = kind
        self._advice = advice
        # The file may exist already, and be readable for all users
        os.fchmod(self._file.fileno(), 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise BadConfig(
                f"{path}: another command uses this file; wait until it has ended, or stop it."
            ) from None
        with path.open("rb") as file:
            self._end = sum(len(line) for line in file if line.endswith(b"\n"))
        self._file.truncate(self._end)

    def __iter__(self) -> Iterator[_Line]:
        """Yield every line of the file, decoded. Raises `BadConfig` for an invalid line."""
        return read_jsonl(self.path, self._kind, self._advice)

    def append(self, line: _Line) -> None:
        """Append a line without buffering, so that it is kept if the process is killed. If the
        write fails, leave the file unchanged and raise `StoreFailed`.
        """
        content = msgspec.json.encode(line) + b"\n"
        try:
            written = self._file.write(content)
            if written < len(content):
                # The disk is full: writing the remaining bytes raises the error with the reason
                self._file.write(content[written:])
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._end)
            raise StoreFailed(
                f"{self.path}: cannot be written ({error.strerror}); free some disk space, and "
                "start the same command again."
            ) from error
        self._end += len(content)

    def close(self) -> None:
        """Sync the file to disk, close it and release the lock."""
        with self._file:
            os.fsync(self._file.fileno())


def read_json(
    path: Path,
    kind: type[_Line],
    advice: str,
    decode: Callable[..., Any] = msgspec.json.decode,
) -> _Line:
    """Return the content of the file `path` as a value of the type `kind`.

    `decode`: decodes the bytes, as JSON by default. `advice`: what the user should do about an
    error, as the end of its message. Raises `BadConfig` if the file cannot be read, or if its
    content does not have the type `kind`.
    """
    try:
        content: _Line = decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read ({error.strerror}); {advice}.") from None
    except JSON_ERRORS as error:
        raise BadConfig(f"{path}: {explained(error)}; {advice}.") from None
    return content


def read_jsonl(
    path: Path, kind: type[_Line], advice: str, name: str = "", *, growing: bool = False
) -> Iterator[_Line]:
    """Yield the value of each line of a file of JSON lines. For parameters and errors, see
    `numbered_jsonl`.
    """
    return (line for _, line in numbered_jsonl(path, kind, advice, name, growing=growing))


def numbered_jsonl(
    path: Path,
    kind: type[_Line],
    advice: str,
    name: str = "",
    *,
    growing: bool = False,
) -> Iterator[tuple[int, _Line]]:
    """Yield (line number, value) for each line of a file of JSON lines. The first line has the
    number 1. Empty lines are skipped.

    `path`: the file, or a folder that contains the file `name`. `kind`: type of a line's value.
    `advice`: what the user should do about an invalid line, as the end of the error message.
    `growing`: True if another process may still be writing the file; an incomplete last line is
    then skipped.

    Raises `BadConfig`, with file and line number, for an invalid line, and if the file cannot be
    read.
    """
    file = path / name if path.is_dir() else path
    decoder = msgspec.json.Decoder(kind)
    number = 0
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if growing and not line.endswith(b"\n"):
                    return
                if line := line.removeprefix(b"\xef\xbb\xbf").strip():
                    yield number, decoder.decode(line)
    except JSON_ERRORS as error:
        raise BadConfig(f"{file}:{number}: {explained(error)}; {advice}.") from None
    except OSError as error:
        raise BadConfig(
            f"{file}: cannot be read ({error.strerror}); correct the path, or make it readable."
        ) from None


def write_jsonl(path: Path, rows: Iterable[object]) -> None:
    """Write rows to the file `path`, one on each line; the file is replaced atomically."""
    write_atomically(path, msgspec.json.Encoder().encode_lines(rows))
