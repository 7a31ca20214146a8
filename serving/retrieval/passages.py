"""The passages of an index: JSON lines on disk, looked up by row through an array of offsets, both memory-mapped."""

import mmap
from array import array
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np

from router.errors import BadCorpus, BadIndex
from router.passage import Passage

PASSAGES = "passages.jsonl"
OFFSETS = "offsets.npy"


class PassageStore:
    """Rows count from 0. The files stay mapped as long as the object lives."""

    def __init__(self, folder: Path) -> None:
        """Raises `BadIndex` where the offsets are not those of the passages."""
        try:
            self._offsets = np.load(folder / OFFSETS, mmap_mode="r")
            with (folder / PASSAGES).open("rb") as file:
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
        return msgspec.json.decode(self._lines[self._offsets[row] : self._offsets[row + 1]], type=Passage)


class PassageWriter:
    """Writes both files, without holding the passages in memory; the offsets come last, when it is closed in peace."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / PASSAGES).open("wb")
        self._encoder = msgspec.json.Encoder()
        self._offsets = array("q", [0])
        self._ids = array("q")

    def __len__(self) -> int:
        return len(self._ids)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self._file.close()
        if kind is None:
            self._check_ids()
            np.save(self._folder / OFFSETS, np.frombuffer(self._offsets, dtype=np.int64))

    def write(self, passages: Iterable[Passage]) -> None:
        """Add passages: all of them, or, where reading them fails, none. Raises what reading them raises."""
        before = len(self)
        try:
            for passage in passages:
                self._file.write(self._encoder.encode(passage) + b"\n")
                self._offsets.append(self._file.tell())
                self._ids.append(hash(passage.id))
        except BaseException:
            del self._ids[before:], self._offsets[before + 1 :]
            self._file.seek(self._offsets[-1])
            self._file.truncate()
            raise

    def _check_ids(self) -> None:
        """Raise `BadCorpus` where two passages have one id; 8 bytes a passage are kept to find that out."""
        hashes, counts = np.unique(np.frombuffer(self._ids, dtype=np.int64), return_counts=True)
        suspects, seen = set(hashes[counts > 1].tolist()), dict[str, int]()
        if not suspects:
            return
        with (self._folder / PASSAGES).open("rb") as file:
            for number, (line, hashed) in enumerate(zip(file, self._ids, strict=True), 1):
                if hashed not in suspects:
                    continue
                passage_id = msgspec.json.decode(line, type=Passage).id
                if (first := seen.setdefault(passage_id, number)) != number:
                    raise BadCorpus(
                        f"the id {passage_id!r} is given to two passages, the {first}. and the {number}. of all; "
                        "ids must be unique."
                    )


def embedded_text(passage: Passage) -> str:
    """The text by which a passage is found."""
    return f"{passage.title}\n{passage.text}"
