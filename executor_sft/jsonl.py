"""Read JSON files, and append to JSON lines files that stay usable when the process is killed."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from router.errors import BadConfig, StoreFailed

_Line = TypeVar("_Line")


class JsonlFile(Generic[_Line]):
    """An append-only file of JSON lines. A partial last line, after a kill or a full disk, is cut
    off. The file is locked by one process at a time.
    """

    def __init__(self, path: Path, kind: type[_Line], advice: str) -> None:
        """Open or create the file. `kind`, `advice`: see `read_jsonl`. Raises `BadConfig` if
        another process has it open.
        """
        self.path = path
        self._file = path.open("a+b", buffering=0)
        self._kind = kind
        self._advice = advice
        os.fchmod(self._file.fileno(), 0o600)  # earlier releases created it readable
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise BadConfig(
                f"{path}: another command is using it; wait for it, or end it."
            ) from None
        with path.open("rb") as file:
            self._end = sum(len(line) for line in file if line.endswith(b"\n"))
        self._file.truncate(self._end)

    def __iter__(self) -> Iterator[_Line]:
        """Yield every line, decoded. Raises `BadConfig` for an invalid line."""
        return (line for _, line in read_jsonl(self.path, self._kind, self._advice))

    def append(self, line: _Line) -> None:
        """Write a line to the operating system. On failure, leave the file as it was and raise
        `StoreFailed`.
        """
        content = msgspec.json.encode(line) + b"\n"
        try:
            written = self._file.write(content)
            if written < len(content):
                self._file.write(content[written:])  # raises the reason for the short write
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._end)
            raise StoreFailed(
                f"{self.path}: cannot be written ({error.strerror}); make room, and start "
                "the same command again."
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
    """Return the content of a file, read by `decode`. Raises `BadConfig`, with `advice`, if it
    cannot be read or is not of this kind.
    """
    try:
        content: _Line = decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read ({error.strerror}); {advice}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: {error}; {advice}.") from None
    return content


def read_jsonl(
    path: Path,
    kind: type[_Line],
    advice: str,
    name: str = "",
    *,
    growing: bool = False,
) -> Iterator[tuple[int, _Line]]:
    """Yield the lines of a file with their numbers, from 1; empty lines are skipped.

    `path`: the file, or a folder with the file `name`. `growing`: skip an incomplete last line,
    which is still being written. Raises `BadConfig`, with file, line and `advice`, for a line that
    is not of this kind.
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
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{file}:{number}: {error}; {advice}.") from None
    except OSError as error:
        raise BadConfig(f"{file}: cannot be read ({error.strerror}); {advice}.") from None
