"""Reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009)."""

from collections.abc import Sequence

from serving.retrieval.hit import Hit

DEPTH = 100
"""How much of each ranking counts: fixed, so that the order of the first hits is the same for every `top_k`."""


def fuse(rankings: Sequence[Sequence[Hit]], top_k: int, k: int = 60) -> list[Hit]:
    """One ranking from several: a row scores the sum of 1 / (k + rank), ranks from 1; ties go to the lower row."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking[:DEPTH], 1):
            scores[hit.row] = scores.get(hit.row, 0.0) + 1 / (k + rank)
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return [Hit(row, score) for row, score in best[:top_k]]
