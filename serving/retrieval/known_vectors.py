"""Vectors that were computed before, by the text that they stand for."""

from collections.abc import Callable, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from serving.retrieval.embedder import Vectors
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
