"""Vectors as they are embedded: raw rows on disk, so that an interrupted build goes on where it was."""

from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from serving.retrieval.embedder import Embedder, Vectors
from serving.retrieval.passages import PassageStore

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
