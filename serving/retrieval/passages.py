"""The passages of an index: memory-mapped JSON lines, and an array with the offsets of the rows."""

import json
import mmap
from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np

from router.errors import JSON_ERRORS, BadIndex, DuplicateId
from router.protocol import Passage
from serving.documents.document import batches
from serving.documents.source import SourceFile

PASSAGES = "passages.jsonl"
OFFSETS = "offsets.npy"
DOCUMENTS = "documents.jsonl"


def embedded_text(passage: Passage) -> str:
    """Return the text of a passage that is embedded and counted for BM25."""
    return f"{passage.title}\n{passage.text}"


class PassageStore:
    """A sequence of passages by row. The files are mapped as long as the object exists."""

    def __init__(self, folder: Path) -> None:
        """Raises `BadIndex` if the files do not belong together, as later for a damaged row."""
        self._path = folder / PASSAGES
        try:
            self._offsets = np.load(folder / OFFSETS, mmap_mode="r")
            with self._path.open("rb") as file:
                self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise BadIndex(
                f"{folder}: the passages cannot be read ({error}); build the index again."
            ) from error
        if (
            self._offsets.ndim != 1
            or len(self._offsets) < 2
            or self._offsets[-1] != len(self._lines)
        ):
            raise BadIndex(
                f"{folder / OFFSETS}: does not belong to {PASSAGES}; build the index again."
            )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> Passage:
        if not 0 <= row < len(self):
            raise IndexError(row)
        try:
            return msgspec.json.decode(self._line(row), type=Passage)
        except JSON_ERRORS as error:
            raise BadIndex(f"{self._path}: damaged ({error}); build the index again.") from error

    @cached_property
    def documents(self) -> dict[str, range]:
        """The rows of each document. The first access reads all passages."""
        rows: dict[str, range] = {}
        decoder = msgspec.json.Decoder(_Named)
        for row in range(len(self)):
            name = decoder.decode(self._line(row)).document
            rows[name] = range(rows[name].start if name in rows else row, row + 1)
        rows.pop("", None)
        return rows

    def _line(self, row: int) -> bytes:
        return self._lines[self._offsets[row] : self._offsets[row + 1]]


class _Named(msgspec.Struct, frozen=True):
    document: str = ""


class PassageWriter:
    """Writes both files, the offsets when the context is left without an error.

    Only the ids of the passages are in memory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / PASSAGES).open("w+b")
        self._encoder = msgspec.json.Encoder()
        self._offsets = array("q", [0])
        self._rows: dict[str, int] = {}
        """Rows by id, in order."""

    def __len__(self) -> int:
        return len(self._rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None:
            np.save(self._folder / OFFSETS, np.frombuffer(self._offsets, dtype=np.int64))

    def write(self, placed: Iterable[tuple[str, Passage]]) -> None:
        """Add passages, each with its place for error messages; if one fails, add none.

        Raises `DuplicateId`, and what reading the passages raises.
        """
        before = len(self)
        try:
            for batch in batches(placed, lambda item: len(item[1].text)):
                for where, passage in batch:
                    if passage.id in self._rows:
                        other = self._document(self._rows[passage.id])
                        raise DuplicateId(
                            f"{where}: the id {passage.id!r} is given to {other} too; give each "
                            "row its own id."
                        )
                    self._rows[passage.id] = len(self)
                    self._offsets.append(
                        self._offsets[-1] + self._file.write(self._encoder.encode(passage) + b"\n")
                    )
        except BaseException:
            while len(self) > before:
                self._rows.popitem()
            del self._offsets[before + 1 :]
            self._file.seek(self._offsets[-1])
            self._file.truncate()
            raise

    def _document(self, row: int) -> str:
        self._file.seek(self._offsets[row])
        return msgspec.json.decode(self._file.readline(), type=Passage).document


class DocumentEntry(msgspec.Struct, frozen=True):
    """One source and its passages."""

    source: SourceFile
    first_row: int
    """Row of its first passage."""
    passages: int
    """Number of passages."""
    error: str = ""
    """Reason why it could not be read; then it has no passages."""
    unread: str = ""
    """Parts that were not read."""


def write_table(folder: Path, entries: Sequence[DocumentEntry]) -> None:
    """Write one line for each source."""
    # JSON of the standard library, because paths may contain surrogates
    lines = (json.dumps(msgspec.to_builtins(entry)) + "\n" for entry in entries)
    (folder / DOCUMENTS).write_text("".join(lines), "ascii")


def read_table(folder: Path) -> list[DocumentEntry]:
    """Read the entries in the order of their passages.

    Raises `OSError`, `ValueError` and `msgspec.ValidationError`.
    """
    lines = (folder / DOCUMENTS).read_bytes().splitlines()
    return [msgspec.convert(json.loads(line), DocumentEntry) for line in lines]
