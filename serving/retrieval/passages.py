"""The passages of an index: JSON lines on disk, looked up by row through an array of offsets, both memory-mapped."""

import mmap
from array import array
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

from router.errors import BadIndex
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


def write_passages(folder: Path, passages: Iterable[Passage]) -> None:
    """Write both files, without holding the passages in memory."""
    encoder = msgspec.json.Encoder()
    offsets = array("q", [0])
    with (folder / PASSAGES).open("wb") as file:
        for passage in passages:
            file.write(encoder.encode(passage) + b"\n")
            offsets.append(file.tell())
    np.save(folder / OFFSETS, np.frombuffer(offsets, dtype=np.int64))


def embedded_text(passage: Passage) -> str:
    """The text by which a passage is found."""
    return f"{passage.title}\n{passage.text}"
