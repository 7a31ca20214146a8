"""Storage of an index's passages: a memory-mapped file with a line of JSON for each passage, and an
array with the offset of each line.
"""

import json
import mmap
from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self, TypeVar

import msgspec
import numpy as np
from cachetools import LRUCache, cachedmethod
from msgspec.structs import astuple
from numpy.typing import NDArray

from router.errors import JSON_ERRORS, BadIndex, DuplicateId
from router.frozen import Frozen
from router.protocol import Passage
from router.trace.scope import DocumentFilter
from serving.documents.document import batches
from serving.documents.metadata import Metadata, StoredPassage
from serving.documents.source import SourceFile

PASSAGES = "passages.jsonl"
OFFSETS = "offsets.npy"
DOCUMENTS = "documents.jsonl"
_P = TypeVar("_P", bound=Passage)


def embedded_text(passage: Passage) -> str:
    """Return the title and the text of a passage, joined. The passage's vector and its word
    statistics are computed from this text.
    """
    return f"{passage.title}\n{passage.text}"


class PassageStore:
    """The passages of an index, by row number from 0. The files of passages and offsets stay
    memory-mapped as long as the object exists. Reading a damaged row raises `BadIndex`.
    """

    def __init__(self, folder: Path) -> None:
        """Open the files in `folder`, the folder of a generation (one build of the index). Raises
        `BadIndex` if the files are missing or do not belong together.
        """
        self._path = folder / PASSAGES
        self._admitted: LRUCache[DocumentFilter, NDArray[np.int64]] = LRUCache(64)
        self._lock = Lock()
        try:
            self._offsets = np.load(folder / OFFSETS, mmap_mode="r")
            with self._path.open("rb") as file:
                self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise BadIndex(
                f"{folder}: passages cannot be read ({error}); run `rolegate index build` again."
            ) from error
        if (
            self._offsets.ndim != 1
            or len(self._offsets) < 2
            or self._offsets[-1] != len(self._lines)
        ):
            raise BadIndex(
                f"{folder / OFFSETS}: does not match {PASSAGES}; run `rolegate index build` again."
            )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> Passage:
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self._decoded(row, Passage)

    def stored(self, row: int) -> StoredPassage:
        """Return the passage in a row, with the metadata of its document."""
        return self._decoded(row, StoredPassage)

    def _decoded(self, row: int, kind: type[_P]) -> _P:
        try:
            return msgspec.json.decode(self.line(row), type=kind)
        except JSON_ERRORS as error:
            raise BadIndex(
                f"{self._path}: damaged ({error}); run `rolegate index build` again."
            ) from error

    @cached_property
    def documents(self) -> dict[str, range]:
        """The range of row numbers of each document, by the document's name. The first access reads
        all passages.
        """
        rows = dict[str, range]()
        decoder = msgspec.json.Decoder(_Named)
        for row in range(len(self)):
            name = decoder.decode(self.line(row)).document
            rows[name] = range(rows[name].start if name in rows else row, row + 1)
        rows.pop("", None)
        return rows

    @cachedmethod(attrgetter("_admitted"), lock=attrgetter("_lock"))
    def admitted(self, only: DocumentFilter) -> NDArray[np.int64]:
        """Return the numbers of the rows whose documents pass the filter `only`, sorted. The first
        call with a filter reads all passages. The results for the 64 most recently used filters are
        cached. Thread-safe.
        """
        decoder = msgspec.json.Decoder(_Described)
        known = (decoder.decode(self.line(row)).metadata for row in range(len(self)))
        return np.flatnonzero([only.admits(*astuple(metadata)) for metadata in known])

    def line(self, row: int) -> bytes:
        """Return the JSON line of the passage in a row, with the metadata of its document."""
        return self._lines[self._offsets[row] : self._offsets[row + 1]]


class _Named(Frozen):
    document: str = ""


class _Described(Frozen):
    metadata: Metadata = Metadata()


class PassageWriter:
    """Writes the passages of a new index to a file, and the offset of each passage to another file.
    It is a context manager; on exit, it writes the file of offsets, unless an error was raised.

    Only the ids and offsets of the passages are kept in memory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / PASSAGES).open("w+b")
        self._encoder = msgspec.json.Encoder()
        self._offsets = array("q", [0])
        self._rows = dict[str, int]()
        """Row number of each passage by its id, in the order of the rows."""

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

    def write(self, placed: Iterable[tuple[str, StoredPassage]]) -> None:
        """Add passages. If an error is raised, no passage is added.

        `placed`: pairs of a place, such as `FILE:LINE`, and a passage. The place is only used in
        errors about the passage. Raises `DuplicateId` if an id occurs twice, and the errors that
        iterating over `placed` raises.
        """
        before = len(self)
        try:
            for batch in batches(placed, lambda item: len(item[1].text)):
                for where, passage in batch:
                    if passage.id in self._rows:
                        other = self._document(self._rows[passage.id])
                        raise DuplicateId(
                            f"{where}: the id {passage.id!r} is also the id of {other}; give each "
                            "row a different id."
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


class DocumentEntry(Frozen):
    """A source file of an index, and the rows of its passages."""

    source: SourceFile
    first_row: int
    """Row number of the file's first passage."""
    passages: int
    """Number of passages."""
    error: str = ""
    """Error of reading the file; empty if the file was read. A file with an error has no
    passages.
    """
    unread: str = ""
    """Description of the parts of the file that were not read; empty if there are no such parts."""


def write_table(folder: Path, entries: Sequence[DocumentEntry]) -> None:
    """Write the entries of an index's source files to a file in `folder`, one line per entry."""
    # The standard library's JSON, because paths may contain surrogates, which msgspec refuses
    lines = (json.dumps(msgspec.to_builtins(entry)) + "\n" for entry in entries)
    (folder / DOCUMENTS).write_text("".join(lines), "ascii")


def read_table(folder: Path) -> list[DocumentEntry]:
    """Return the entries that `write_table` wrote to `folder`, in the same order.

    Raises `OSError`, `ValueError` or `msgspec.ValidationError` if the file cannot be read.
    """
    lines = (folder / DOCUMENTS).read_bytes().splitlines()
    return [msgspec.convert(json.loads(line), DocumentEntry) for line in lines]
