"""Quotes: each has a maximum length, holds its point, and is a part of its passage."""

import pytest

from router.protocol import Passage
from router.table.support import Shown
from router.trace.citation import cite
from router.trace.table import Column

_BEFORE, _AFTER = (
    " ".join(f"{word}{number}" for number in range(1500)) for word in ("word", "tail")
)
SENTENCES = {
    "words": f"{_BEFORE} Krurou was founded by Ana Ruiz in 1,321,000 days {_AFTER}.",
    "no spaces": f"{'漢' * 4000}Krurou由Ana Ruiz建，1,321,000日{'字' * 4000}",
    "no spaces in one half": f"{'x' * 5000} Krurou was founded by Ana Ruiz in 1,321,000 days {'漢' * 4000}",
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_quote_of_a_long_sentence_is_cut_between_words(sentence: str) -> None:
    """The cut is marked. Text without words is cut anywhere."""
    passage = Passage("1", "Annals", SENTENCES[sentence])
    by_value = Shown([passage]).support(
        Column("days", "number"), "1321000", "1321000", [" krurou "]
    )
    by_words = cite(["Krurou Ana Ruiz 1,321,000"], [passage])[0]
    for (citation,), held in (
        (by_words, "Ana Ruiz"),
        (by_value[1], "1,321,000"),
    ):
        assert len(citation.quote) <= 300
        assert held in citation.quote
        assert citation.quote[0] == citation.quote[-1] == "…"
        assert citation.quote.strip("…") in passage.text


def test_a_short_sentence_is_quoted_whole() -> None:
    """It has no mark."""
    passage = Passage("1", "Annals", "It rains. Krurou was founded by Ana Ruiz.")
    ((citation,),) = cite(["Krurou Ana Ruiz"], [passage])
    assert citation.quote == "Krurou was founded by Ana Ruiz."


def test_a_point_in_many_passages_is_quoted_from_the_first() -> None:
    passages = [
        Passage(str(number), "Annals", "Krurou was founded by Ana Ruiz.") for number in range(50)
    ]
    cited = cite(["Krurou was founded by Ana Ruiz"], passages)[0]
    assert [at.passage_id for at in cited] == [str(number) for number in range(8)]
    column = Column("founder")
    assert len(Shown(passages).support(column, "Ana Ruiz", "ana ruiz", [" krurou "])[1]) == 8
