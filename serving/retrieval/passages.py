"""The passages of an index: JSON lines on disk, looked up by row through an array of offsets, both memory-mapped."""

import json
import mmap
import os
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from router.errors import JSON_ERRORS, BadIndex, SameId
from router.protocol.evidence import Passage
from serving.documents.document import batches
from serving.documents.source import Source

PASSAGES = "passages.jsonl"
OFFSETS = "offsets.npy"


class PassageStore:
    """Rows count from 0. The files stay mapped as long as the object lives."""

    def __init__(self, folder: Path) -> None:
        """Raises `BadIndex` where the offsets are not those of the passages, as does each look at a damaged one."""
        self._path = folder / PASSAGES
        try:
            self._offsets = np.load(folder / OFFSETS, mmap_mode="r")
            with self._path.open("rb") as file:
                self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise BadIndex(f"{folder}: the passages cannot be read ({error}); build the index again.") from error
        if self._offsets.ndim != 1 or len(self._offsets) < 2 or self._offsets[-1] != len(self._lines):
            raise BadIndex(f"{folder / OFFSETS}: does not belong to {PASSAGES}; build the index again.")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> Passage:
        if not 0 <= row < len(self):
            raise IndexError(row)
        return _decoded(self._lines[self._offsets[row] : self._offsets[row + 1]], self._path)


class PassageWriter:
    """Writes both files, without holding the passages in memory; the offsets come last, when it is closed in peace."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / PASSAGES).open("w+b")
        self._encoder = msgspec.json.Encoder()
        self._offsets = array("q", [0])
        self._ids = array("q")
        self._sorted: list[NDArray[np.int64]] = []
        """The hashes of all ids but the last batch's, in sorted parts, each more than twice as long as the next."""

    def __len__(self) -> int:
        return len(self._ids)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self._file.close()
        if kind is None:
            np.save(self._folder / OFFSETS, np.frombuffer(self._offsets, dtype=np.int64))

    def write(self, placed: Iterable[tuple[str, Passage]]) -> None:
        """Add passages, each with the place that an error names: all of them, or, where reading them fails, none.

        Raises `SameId` where one has the id of another, and what reading them raises.
        """
        before, parts = len(self), list(self._sorted)
        try:
            for batch in batches(placed, lambda one: len(one[1].text)):
                for _, passage in batch:
                    self._file.write(self._encoder.encode(passage) + b"\n")
                    self._offsets.append(self._file.tell())
                    self._ids.append(hash(passage.id))
                self._check_ids(batch)
        except BaseException:
            del self._ids[before:], self._offsets[before + 1 :]
            self._sorted = parts
            self._file.seek(self._offsets[-1])
            self._file.truncate()
            raise

    def _check_ids(self, batch: Sequence[tuple[str, Passage]]) -> None:
        """Raise `SameId` where one of the last passages has the id of another; 16 bytes a passage are kept for that."""
        hashes = np.array(self._ids[-len(batch) :], dtype=np.int64)
        fresh = np.unique(hashes)
        if len(fresh) < len(batch) or any(_share(part, fresh) for part in self._sorted):
            self._compare(batch, hashes)
        while self._sorted and len(self._sorted[-1]) <= 2 * len(fresh):
            fresh = np.sort(np.concatenate([self._sorted.pop(), fresh]), kind="stable")
        self._sorted.append(fresh)

    def _compare(self, batch: Sequence[tuple[str, Passage]], hashes: NDArray[np.int64]) -> None:
        """Look at the ids themselves, as two may have one hash."""
        earlier = np.array(self._ids[: -len(batch)], dtype=np.int64)
        same_hash = map(self._written, np.flatnonzero(np.isin(earlier, hashes)).tolist())
        given_to = {passage.id: passage.document for passage in same_hash}
        for where, passage in batch:
            if (other := given_to.setdefault(passage.id, where)) != where:
                raise SameId(f"{where}: the id {passage.id!r} is given to {other} too; give each row an id of its own.")

    def _written(self, row: int) -> Passage:
        self._file.seek(self._offsets[row])
        line = self._file.readline()
        self._file.seek(0, os.SEEK_END)
        return _decoded(line, self._folder / PASSAGES)


def _decoded(line: bytes, path: Path) -> Passage:
    try:
        return msgspec.json.decode(line, type=Passage)
    except JSON_ERRORS as error:
        raise BadIndex(f"{path}: damaged ({error}); build the index again.") from error


def _share(numbers: NDArray[np.int64], others: NDArray[np.int64]) -> bool:
    """Tell whether two sorted lists, neither empty, have a number in common."""
    found = numbers[np.searchsorted(numbers, others).clip(max=len(numbers) - 1)]
    return bool((found == others).any())


def embedded_text(passage: Passage) -> str:
    """The text by which a passage is found."""
    return f"{passage.title}\n{passage.text}"


DOCUMENTS = "documents.jsonl"


class DocumentEntry(msgspec.Struct, frozen=True):
    """One source as it was when it was read."""

    source: Source
    first_row: int
    """Its passages are the rows from here on."""
    passages: int
    error: str = ""
    """Why it could not be read; then it has no passages."""
    settled: bool = False
    """Whether it cannot be read as long as no file changes."""


def write_table(folder: Path, entries: Sequence[DocumentEntry]) -> None:
    """Write one line for each source."""
    lines = (json.dumps(msgspec.to_builtins(entry)) + "\n" for entry in entries)  # paths need not be UTF-8
    (folder / DOCUMENTS).write_text("".join(lines), "ascii")


def read_table(folder: Path) -> list[DocumentEntry]:
    """The entries in the order of their passages. Raises `OSError`, `ValueError` and `msgspec.ValidationError`."""
    lines = (folder / DOCUMENTS).read_bytes().split(b"\n")
    return [msgspec.convert(json.loads(line), DocumentEntry) for line in lines if line]


def same_sources(entries: Iterable[DocumentEntry], sources: Sequence[Source]) -> bool:
    """Whether the very same files were read, by name, size and time of change."""
    return [entry.source for entry in entries] == list(sources)
