"""Whether an index and an embedder belong together."""

from collections.abc import Sequence

import numpy as np

from serving.retrieval.dense import DenseIndex
from serving.retrieval.embedder import Embedder
from serving.retrieval.passages import PassageStore, embedded_text

SAME_EMBEDDER = 0.98
"""The agreement above which both are of one embedder, computed in another precision perhaps."""


def agreement(passages: PassageStore, dense: DenseIndex, embedder: Embedder, rows: Sequence[int]) -> float:
    """The median cosine of stored vectors with the same passages embedded now; NaN where a vector is damaged.

    Blocks. Raises `RuntimeError` where the index keeps no vectors, and what `embedder` raises.
    """
    stored = np.stack([dense.vector(row) for row in rows])
    now = embedder.embed([embedded_text(passages[row]) for row in rows], queries=False)
    return float(np.median(np.einsum("ij,ij->i", stored, now) / np.linalg.norm(stored, axis=1)))
