"""Lexical search: BM25 (bm25s, Lucene's variant, English stop words left out)."""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from router.errors import BadCorpus, BadIndex
from serving.retrieval.dense import Hit

LEXICAL = "lexical"
"""The folder of its files, inside the index folder."""
_UNSPACED = re.compile("[\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]{2,}")
"""Runs of Chinese and Japanese letters, which have no spaces between words."""


class LexicalIndex:
    """The word statistics of a corpus, in memory."""

    def __init__(self, scores: Any) -> None:
        self._scores = scores

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read the statistics. Raises `BadIndex`."""
        import bm25s

        try:
            return cls(bm25s.BM25.load(str(folder / LEXICAL), show_progress=False))
        except (OSError, ValueError, KeyError) as error:
            raise BadIndex(f"{folder / LEXICAL}: bm25s cannot read it; build the index again.") from error

    def search(self, queries: Sequence[str], top_k: int, among: range | None = None) -> list[list[Hit]]:
        """The `top_k` best rows of each query, best first; rows that share no word with it are left out. `among`: the
        rows to search; None for all.
        """
        words = _words(queries, return_ids=False)
        size, mask = self._scores.scores["num_docs"], None
        if among is not None:
            mask = np.zeros(size, dtype=np.float32)
            mask[among.start : among.stop] = 1
        rows, scores = self._scores.retrieve(words, k=min(top_k, size), show_progress=False, weight_mask=mask)
        return [
            [Hit(row, score) for row, score in zip(*found, strict=True) if score > 0]
            for found in zip(rows.tolist(), scores.tolist(), strict=True)
        ]


def write_lexical(folder: Path, texts: Iterable[str]) -> None:
    """Count the words of the texts, in order. Raises `BadCorpus` where there is nothing to count."""
    import bm25s

    words = _words(texts, return_ids=True)
    if not any(words.ids):
        raise BadCorpus("The corpus has no words but stop words; build its index without word statistics.")
    scores = bm25s.BM25()
    scores.index(words, show_progress=False)
    scores.save(str(folder / LEXICAL), show_progress=False)


def _words(texts: Iterable[str], *, return_ids: bool) -> Any:
    """The words of each text; of letters without spaces every two neighbours are one."""
    import bm25s

    spaced = [_UNSPACED.sub(_pairs, text) for text in texts]
    return bm25s.tokenize(spaced, stopwords="en", return_ids=return_ids, show_progress=False)


def _pairs(run: re.Match[str]) -> str:
    return f" {' '.join(map(''.join, pairwise(run[0])))} "
