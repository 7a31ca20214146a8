"""Files of JSON: lines that grow while a step runs and that a kill at any time leaves usable,
and reading any.
"""

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
    """Lines that are whole or not there: what a kill or a full disk has torn is cut off. One
    process at a time.
    """

    def __init__(self, path: Path, kind: type[_Line], advice: str) -> None:
        """Open, or make. `kind`, `advice`: as of `read_jsonl`. Raises `BadConfig` where another
        process has it open.
        """
        self.path = path
        self._file = path.open("a+b", buffering=0)
        self._kind = kind
        self._advice = advice
        os.fchmod(self._file.fileno(), 0o600)  # of an earlier release, perhaps
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise BadConfig(
                f"{path}: another command is at work there; wait for it, or end it."
            ) from None
        with path.open("rb") as file:
            self._end = sum(len(line) for line in file if line.endswith(b"\n"))
        self._file.truncate(self._end)

    def __iter__(self) -> Iterator[_Line]:
        """Every line, decoded. Raises `BadConfig`, naming one that is not of this kind."""
        return (line for _, line in read_jsonl(self.path, self._kind, self._advice))

    def append(self, line: _Line) -> None:
        """Add a line, and hand it to the system. Raises `StoreFailed`, and leaves the file as
        it was.
        """
        content = msgspec.json.encode(line) + b"\n"
        try:
            written = self._file.write(content)
            if written < len(content):
                self._file.write(content[written:])  # says why not all of it was
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._end)
            why = (
                f"{self.path}: cannot be written ({error.strerror}); make room, and start "
                "the same command again."
            )
            raise StoreFailed(why) from error
        self._end += len(content)

    def close(self) -> None:
        """Put everything on disk, and let others have the file."""
        with self._file:
            os.fsync(self._file.fileno())


def read_json(
    path: Path, kind: type[_Line], advice: str, decode: Callable[..., Any] = msgspec.json.decode
) -> _Line:
    """The content of a file, as `decode` reads it. Raises `BadConfig`, with `advice`, where it
    is not of this kind.
    """
    try:
        content: _Line = decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read ({error.strerror}); {advice}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: {error}; {advice}.") from None
    return content


def read_jsonl(
    path: Path, kind: type[_Line], advice: str, name: str = "", *, growing: bool = False
) -> Iterator[tuple[int, _Line]]:
    """The lines of a file, or of the file `name` in the folder `path`, with their numbers from 1;
    empty ones are left out, and so is the last line of a file that is `growing` while it is torn or
    still being written. Raises `BadConfig` naming file and line of one that is not of this kind,
    with `advice`.
    """
    file = path / name if path.is_dir() else path
    decoder = msgspec.json.Decoder(kind)
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if growing and not line.endswith(b"\n"):
                    return
                try:
                    if line := line.removeprefix(b"\xef\xbb\xbf").strip():
                        yield number, decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise BadConfig(f"{file}:{number}: {error}; {advice}.") from None
    except OSError as error:
        raise BadConfig(f"{file}: cannot be read ({error.strerror}); {advice}.") from None
