"""The passages of an index: JSON lines on disk, looked up by row through an array of offsets,
both memory-mapped.
"""

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
from serving.documents.source import Source

PASSAGES = "passages.jsonl"
OFFSETS = "offsets.npy"
DOCUMENTS = "documents.jsonl"


def embedded_text(passage: Passage) -> str:
    """The text by which a passage is found."""
    return f"{passage.title}\n{passage.text}"


class PassageStore:
    """Rows count from 0. The files stay mapped as long as the object lives."""

    def __init__(self, folder: Path) -> None:
        """Raises `BadIndex` where the offsets are not those of the passages, as does each look
        at a damaged one.
        """
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
            return msgspec.json.decode(
                self._lines[self._offsets[row] : self._offsets[row + 1]], type=Passage
            )
        except JSON_ERRORS as error:
            raise BadIndex(f"{self._path}: damaged ({error}); build the index again.") from error

    @cached_property
    def documents(self) -> dict[str, range]:
        """The rows of each document that passages name. All passages are read for it, once."""
        rows: dict[str, range] = {}
        decoder = msgspec.json.Decoder(_Named)
        for row in range(len(self)):
            name = decoder.decode(self._lines[self._offsets[row] : self._offsets[row + 1]]).document
            rows[name] = range(rows[name].start if name in rows else row, row + 1)
        rows.pop("", None)
        return rows


class _Named(msgspec.Struct, frozen=True):
    document: str = ""


class PassageWriter:
    """Writes both files; of the passages it holds the ids only. The offsets come last, when it
    is closed in peace.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / PASSAGES).open("w+b")
        self._encoder = msgspec.json.Encoder()
        self._offsets = array("q", [0])
        self._rows: dict[str, int] = {}
        """By id, in the order of the rows."""

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
        """Add passages, each with the place that an error names: all of them, or, where reading
        them fails, none.

        Raises `DuplicateId` where one has the id of another, and what reading them raises.
        """
        before = len(self)
        try:
            for batch in batches(placed, lambda one: len(one[1].text)):
                for where, passage in batch:
                    if passage.id in self._rows:
                        other = self._document(self._rows[passage.id])
                        raise DuplicateId(
                            f"{where}: the id {passage.id!r} is given to {other} too; "
                            "give each row an id of its own."
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
    """One source as it was when it was read."""

    source: Source
    first_row: int
    """Its passages are the rows from here on."""
    passages: int
    error: str = ""
    """Why it could not be read; then it has no passages."""
    unread: str = ""
    """The parts of it that were not read."""


def write_table(folder: Path, entries: Sequence[DocumentEntry]) -> None:
    """Write one line for each source."""
    # Paths need not be UTF-8
    lines = (json.dumps(msgspec.to_builtins(entry)) + "\n" for entry in entries)
    (folder / DOCUMENTS).write_text("".join(lines), "ascii")


def read_table(folder: Path) -> list[DocumentEntry]:
    """The entries in the order of their passages. Raises `OSError`, `ValueError` and
    `msgspec.ValidationError`.
    """
    lines = (folder / DOCUMENTS).read_bytes().splitlines()
    return [msgspec.convert(json.loads(line), DocumentEntry) for line in lines]
