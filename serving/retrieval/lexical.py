"""Lexical search: BM25 (bm25s, Lucene's variant) over folded terms, without English stop words."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from router.errors import BadCorpus, BadIndex
from router.folding import fold, terms
from serving.retrieval.dense import Hit
from serving.retrieval.manifest import Manifest

LEXICAL = "lexical-2"
"""Folder of the statistics inside the index folder. Its number changes when texts are split into
terms in another way, because queries must be split in the same way.
"""
OUTDATED = (
    "its word statistics are of another version of rolegate; run `rolegate index build` again, "
    "which keeps the vectors."
)
_ARTICLE = re.compile(r"\b(?:a|(?<![^.!?\n] )A)(?= \w)")
"""The article "a", but not the letter, as in "Vitamin A" and "Article 5 (a)"."""


class LexicalIndex:
    """The word statistics of a corpus, in memory."""

    def __init__(self, scores: Any) -> None:
        self._scores = scores

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read the statistics. Raises `BadIndex`."""
        import bm25s

        if not (folder / LEXICAL).is_dir():
            raise BadIndex(f"{folder}: {OUTDATED}")
        try:
            return cls(bm25s.BM25.load(str(folder / LEXICAL), show_progress=False))
        except (OSError, ValueError, KeyError) as error:
            raise BadIndex(
                f"{folder / LEXICAL}: bm25s cannot read it; build the index again."
            ) from error

    def search(
        self, queries: Sequence[str], top_k: int, among: range | None = None
    ) -> list[list[Hit]]:
        """Return the `top_k` best rows of each query that share a word with it, best first.

        `among`: the rows to search; None for all.
        """
        words = _words(queries, return_ids=False)
        size = self._scores.scores["num_docs"]
        mask = None
        if among is not None:
            mask = np.zeros(size, dtype=np.float32)
            mask[among.start : among.stop] = 1
        rows, scores = self._scores.retrieve(
            words, k=min(top_k, size), show_progress=False, weight_mask=mask
        )
        ranked = zip(rows.tolist(), scores.tolist(), strict=True)
        return [[hit for hit in map(Hit, *ranking) if hit.score > 0] for ranking in ranked]


def has_words(manifest: Manifest) -> bool:
    """Return whether an index has word statistics of this version."""
    return any(name.startswith(f"{LEXICAL}/") for name in manifest.files)


def write_lexical(folder: Path, texts: Iterable[str]) -> None:
    """Write the statistics of texts, in order. Raises `BadCorpus` if there are no words."""
    import bm25s

    words = _words(texts, return_ids=True)
    if not any(words.ids):
        raise BadCorpus("The corpus has only stop words; build its index without word statistics.")
    scores = bm25s.BM25()
    scores.index(words, show_progress=False)
    scores.save(str(folder / LEXICAL), show_progress=False)


def _words(texts: Iterable[str], *, return_ids: bool) -> Any:
    """Return the terms of each text without stop words."""
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
