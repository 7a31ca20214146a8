"""Vectors that were computed before, by the text that they stand for."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from serving.retrieval.embedder import Embedder, Vectors
from serving.retrieval.passages import PassageStore, embedded_text

VectorOf = Callable[[int], Vectors]
"""From a row to its vector, (dimension,) float32."""


class KnownVectors:
    """Looks vectors up in earlier builds, finished or not; keeps 24 bytes a passage in memory."""

    def __init__(self, builds: Sequence[tuple[PassageStore, int, VectorOf]]) -> None:
        """`builds`: passages, how many of them have vectors, and their vectors."""
        self._builds = builds
        sizes = [rows for _, rows, _ in builds]
        keys = np.fromiter(
            (_key(embedded_text(passages[row])) for passages, rows, _ in builds for row in range(rows)),
            dtype=np.uint64,
            count=sum(sizes),
        )
        order = np.argsort(keys, kind="stable")
        self._keys: NDArray[np.uint64] = keys[order]
        self._build = np.repeat(np.arange(len(sizes)), sizes)[order]
        self._row = np.concatenate([np.arange(size) for size in sizes] or [np.arange(0)])[order]

    def get(self, text: str) -> Vectors | None:
        """The vector of exactly this text, if it is known."""
        key = np.uint64(_key(text))
        at = int(np.searchsorted(self._keys, key))
        while at < len(self._keys) and self._keys[at] == key:
            passages, _, vector_of = self._builds[int(self._build[at])]
            row = int(self._row[at])
            if embedded_text(passages[row]) == text:
                return vector_of(row)
            at += 1
        return None


def _key(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


VECTORS = "vectors.f32"
_MADE_BY = "embedder.json"
_UNIT_WITHIN = 1e-3


def open_vector_file(folder: Path, embedder: Embedder) -> BinaryIO:
    """A new file of vectors, to be written in the order of the passages."""
    (folder / _MADE_BY).write_bytes(msgspec.json.encode((embedder.identity, embedder.dimension)))
    return (folder / VECTORS).open("wb")


def close_vector_file(folder: Path) -> None:
    """Remove what is needed no longer, once the vectors are in an index."""
    for name in (VECTORS, _MADE_BY):
        (folder / name).unlink()


def read_vector_file(folder: Path, dimension: int) -> Vectors:
    """What was written so far, whole rows only, (rows, dimension) float32, memory-mapped."""
    rows = (folder / VECTORS).stat().st_size // (4 * dimension)
    if not rows:
        return np.empty((0, dimension), dtype=np.float32)
    return np.memmap(folder / VECTORS, dtype=np.float32, mode="r", shape=(rows, dimension))


def left_over(folder: Path, embedder: Embedder) -> Vectors:
    """The vectors of a build that did not finish, (rows, dimension) float32; none if another embedder made them."""
    none = np.empty((0, embedder.dimension), dtype=np.float32)
    try:
        if msgspec.json.decode((folder / _MADE_BY).read_bytes()) != [embedder.identity, embedder.dimension]:
            return none
        vectors = read_vector_file(folder, embedder.dimension)[: len(PassageStore(folder))]
        # After a power failure a file may hold blocks of zeros: it counts up to the first that is no unit vector.
        whole = np.abs(np.einsum("ij,ij->i", vectors, vectors) - 1) < _UNIT_WITHIN
        return vectors[: len(whole) if whole.all() else int(whole.argmin())]
    except Exception:  # what a killed build left behind may be anything; without it, more is embedded again
        return none
