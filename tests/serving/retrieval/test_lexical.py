from pathlib import Path

import pytest

from router.errors import BadCorpus, BadIndex
from serving.retrieval.lexical import LexicalIndex, write_lexical


def test_only_rows_that_share_a_word_are_found(tmp_path: Path) -> None:
    """Best first; stop words and unknown words find nothing, also where every query is of that kind."""
    write_lexical(tmp_path, ["red planet", "the honey of bees", "red red honey"])
    index = LexicalIndex.open(tmp_path)

    found = index.search(["bees honey", "planet", "the of", "qqq", ""], 5)
    assert [[hit.row for hit in hits] for hits in found] == [[1, 2], [0], [], [], []]
    assert index.search(["", "the"], 5) == [[], []]


def test_a_corpus_of_stop_words_is_refused(tmp_path: Path) -> None:
    """There is nothing to count in it."""
    with pytest.raises(BadCorpus, match="no words but stop words"):
        write_lexical(tmp_path, ["the", "of a"])


def test_missing_statistics_are_refused(tmp_path: Path) -> None:
    """A folder without them is named."""
    with pytest.raises(BadIndex, match="lexical: bm25s cannot read it"):
        LexicalIndex.open(tmp_path)
