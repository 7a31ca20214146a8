"""A file of JSON lines that grows while a step runs, and that a kill at any time leaves usable."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from router.errors import BadConfig, StoreFailed


class LineFile:
    """Lines are whole or not there: what a kill or a full disk has torn is cut off. One process at a time."""

    def __init__(self, path: Path) -> None:
        """Open, or make. Raises `BadConfig` where another process has it open."""
        self.path = path
        self._file = path.open("a+b", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise BadConfig(f"{path}: another command is at work there; wait for it, or end it.") from None
        self._end = self._whole()
        self._file.truncate(self._end)

    def lines(self) -> Iterator[bytes]:
        """Every line, without its end."""
        with self.path.open("rb") as file:
            for line in file:
                yield line.removesuffix(b"\n")

    def append(self, line: bytes) -> None:
        """Add a line, and hand it to the system. Raises `StoreFailed`, and leaves the file as it was."""
        content = line + b"\n"
        try:
            written = self._file.write(content)
            if written < len(content):
                self._file.write(content[written:])  # says why not all of it was
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._end)
            why = f"{self.path}: cannot be written ({error.strerror}); make room, and start the same command again."
            raise StoreFailed(why) from error
        self._end += len(content)

    def close(self) -> None:
        """Put everything on disk, and let others have the file."""
        with self._file:
            os.fsync(self._file.fileno())

    def _whole(self) -> int:
        """Where the last whole line ends, in bytes."""
        with self.path.open("rb") as file:
            return sum(len(line) for line in file if line.endswith(b"\n"))


_Line = TypeVar("_Line")


def decoded_lines(path: Path, name: str, kind: type[_Line], maker: str) -> Iterator[_Line]:
    """The lines of the file `path`, or of `name` in the folder `path`.

    Raises `BadConfig` naming a line that is not of this kind, and `maker`, the command that writes such a file.
    """
    file = path / name if path.is_dir() else path
    decoder = msgspec.json.Decoder(kind)
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    yield decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise BadConfig(
                        f"{file}, line {number}: {error}. It was cut off, or another release wrote it; remove the "
                        f"line, or run `{maker}` again into another folder."
                    ) from None
    except OSError as error:
        raise BadConfig(f"{file}: cannot be read ({error.strerror}); name the folder of `{maker}`.") from None
