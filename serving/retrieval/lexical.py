"""Search by words with BM25 (package bm25s, Lucene's variant). `fold` normalizes texts, which are
then split into words. English stop words, such as "the", are removed.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from router.errors import BadCorpus, BadIndex
from router.folding import fold, terms
from serving.retrieval.dense import Hit
from serving.retrieval.manifest import Manifest

LEXICAL = "lexical-2"
"""Name of the folder with the word statistics, inside the folder of a generation. Queries must be
split into words in the same way as the passages of an index. So when a change of this module splits
texts differently, increase the number in the name.
"""
OUTDATED = (
    "the word statistics were written by another version of rolegate; run `rolegate index build` "
    "again, which keeps the vectors."
)
_ARTICLE = re.compile(r"\b(?:a|(?<![^.!?\n] )A)(?= \w)")
"""Matches the article "a", but not the letter "a" as in "Vitamin A" and "Article 5 (a)"."""


class LexicalIndex:
    """The word statistics of an index, held in memory, and a search in them with BM25."""

    def __init__(self, scores: Any) -> None:
        self._scores = scores

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read the word statistics in `folder`, the folder of a generation (one build of the
        index). Raises `BadIndex` if they are missing or damaged.
        """
        import bm25s

        if not (folder / LEXICAL).is_dir():
            raise BadIndex(f"{folder}: {OUTDATED}")
        try:
            return cls(bm25s.BM25.load(str(folder / LEXICAL), show_progress=False))
        except (OSError, ValueError, KeyError) as error:
            raise BadIndex(
                f"{folder / LEXICAL}: cannot be read by bm25s; run `rolegate index build` again."
            ) from error

    def search(
        self,
        queries: Sequence[str],
        top_k: int,
        among: range | NDArray[np.int64] | None = None,
    ) -> list[list[Hit]]:
        """Return the `top_k` best rows for each query, best first. Rows without any word of the
        query are left out.

        `among`: numbers of the rows to search; None for all rows.
        """
        words = _words(queries, return_ids=False)
        size = self._scores.scores["num_docs"]
        mask = None
        if among is not None:
            mask = np.zeros(size, dtype=np.float32)
            mask[among] = 1
        rows, scores = self._scores.retrieve(
            words, k=min(top_k, size), show_progress=False, weight_mask=mask
        )
        ranked = zip(rows.tolist(), scores.tolist(), strict=True)
        return [[hit for hit in map(Hit, *ranking) if hit.score > 0] for ranking in ranked]


def has_words(manifest: Manifest) -> bool:
    """Return True if an index has word statistics that this version of rolegate can use."""
    return any(name.startswith(f"{LEXICAL}/") for name in manifest.files)


def write_lexical(folder: Path, texts: Iterable[str]) -> None:
    """Compute the word statistics of `texts`, and write them to `folder`. `texts`: a text for each
    row of the index, in order. Raises `BadCorpus` if the texts contain only stop words.
    """
    import bm25s

    words = _words(texts, return_ids=True)
    if not any(words.ids):
        raise BadCorpus(
            "The documents contain only stop words, such as `the`, which BM25 ignores; set "
            "retrieval.lexical to false, or leave out --lexical."
        )
    scores = bm25s.BM25()
    scores.index(words, show_progress=False)
    scores.save(str(folder / LEXICAL), show_progress=False)


def _words(texts: Iterable[str], *, return_ids: bool) -> Any:
    """Return the words of each text without stop words, in the form that bm25s expects. With
    `return_ids`, words are represented by ids, and a vocabulary is returned too; otherwise, the
    result is a list of words for each text.
    """
    import bm25s
    from bm25s.stopwords import STOPWORDS_EN

    joined = [" ".join(terms(fold(_ARTICLE.sub(" ", text)))) for text in texts]
    stopwords = [word for word in STOPWORDS_EN if word != "a"]
    options = {
        "lower": False,
        "token_pattern": r"\S+",
        "stopwords": stopwords,
        "show_progress": False,
    }
    return bm25s.tokenize(joined, return_ids=return_ids, **options)
