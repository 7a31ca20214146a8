"""Support: a value is supported by the sentence that states it, and names are tied by a sentence
that says so.
"""

import pytest

from router.folding import sought
from router.table.cell_value import canonical
from router.table.support import Shown, tied, ties
from router.trace.table import Column
from tests.router.table.reports import shown


def _support(
    column: Column, value: str, *passages: str, name: str = "krurou"
) -> tuple[str, list[str]]:
    support, citations = Shown(shown(passages)).support(
        column, value, canonical(column, value), [sought(name)]
    )
    return support, [citation.quote for citation in citations]


FOUNDED = Column("founded", "date")
FOUNDER = Column("founder")


@pytest.mark.parametrize(
    ("passage", "support"),
    [
        ("Annals: Krurou was founded by Ana Ruiz.", "stated"),
        ("Krurou: It was founded by Ana Ruiz in 1321.", "stated"),
        ("Annals: Krurou lies on the sea. It was founded by “Ana Ruiz”.", "stated"),
        ("Annals: Krurou lies on the sea. It rains there. Ana Ruiz’s hand built it.", "value_only"),
        ("Annals: Bel was founded by Ana Ruiz.", "value_only"),
        ("Annals: Krurou was founded by Ana Ruizen.", "unsupported"),
        ("Krurou: Nobody knows.", "unsupported"),
    ],
)
def test_a_value_is_stated_if_its_row_is_named_nearby(passage: str, support: str) -> None:
    """The row is named in the sentence, in the one next to it, or by the title."""
    assert _support(FOUNDER, "Ana Ruiz", passage)[0] == support


def test_one_sentence_of_a_passage_that_names_both_is_cited() -> None:
    passages = [
        "Annals: Ana Ruiz was born. Krurou is old. Krurou was founded by Ana Ruiz.",
        "Bel: Ana Ruiz died.",
    ]
    assert _support(FOUNDER, "Ana Ruiz", *passages) == (
        "stated",
        ["Krurou was founded by Ana Ruiz."],
    )


@pytest.mark.parametrize(
    ("column", "value", "sentence", "held"),
    [
        (FOUNDED, "1321-05-01", "It was founded on 1 May 1321.", True),
        (FOUNDED, "1321", "It was founded on 1 May 1321.", True),
        (FOUNDED, "1321-05-02", "It was founded on 1 May 1321.", False),
        (Column("people", "integer"), "12,000", "It has 12000 people.", True),
        (Column("people", "number"), "3200000", "It has 3.2 million people.", True),
        (Column("people", "integer"), "12", "It has 12,000 people.", False),
        (Column("area", "number"), "1.5 km²", "It covers 1.5 km².", True),
        (Column("名", "text"), "莫言", "作家莫言生于高密。", True),
        (Column("名", "text"), "莫言", "莫先生言。", False),
        (FOUNDER, "+", "A + B.", False),
        (FOUNDER, "กรุงเทพ", "เมืองหลวงคือกรุงเทพมหานคร", True),
        (FOUNDER, "세종대왕", "세종대왕이 창제하였다.", True),
        (FOUNDER, "湯川秀樹", "ﾉｰﾍﾞﾙ賞の湯川秀樹は", True),
        (FOUNDER, "Rene\u0301", "It was founded by René.", True),
        (FOUNDER, "O'Neill", "It was founded by O’Neill.", True),
        (FOUNDER, "office", "It is an o\ufb03ce.", True),
        (FOUNDER, "Plan A", "It was founded by Plan B.", False),
        (FOUNDER, "का", "कि", False),
    ],
)
def test_values_are_compared_by_their_type(
    column: Column, value: str, sentence: str, held: bool
) -> None:
    """The notation of a number or a date makes no difference."""
    assert (_support(column, value, f"Krurou: {sentence}")[0] == "stated") == held


@pytest.mark.parametrize(
    "sentence",
    [
        "Krurou is the former name of New Bel.",
        "The city of New Bel was once called Krurou.",
        "Krurou is now called New Bel.",
        "New Bel, also known as “Krurou”, lies on the sea.",
        "New Bel (formerly Krurou) lies on the sea.",
        "Krurou was the working title of New Bel.",
        "New Bel was first called Krurou.",
        "Krurou later became known as New Bel.",
        "New Bel writes under the pen name Krurou.",
        "Krurou was renamed New Bel in 1321.",
        "New Bel又称Krurou。",
        "New Bel，曾用名：Krurou。",
        "New Bel（原名Krurou）",
    ],
)
def test_a_sentence_ties_two_names_in_either_order(sentence: str) -> None:
    names = {sought("Krurou"), sought("New Bel"), sought("Bel")}
    assert {frozenset(pair) for pair in tied(ties(sought(sentence)), names, 1)} == {
        frozenset((" krurou ", " new bel "))
    }


@pytest.mark.parametrize(
    "sentence",
    [
        "Krurou and New Bel are cities of Vor.",
        "Krurou, like New Bel, is also known as a port.",
        "Krurou lies near New Bel.",
        "Krurou is larger than what is now called New Bel.",
        "Krurou (New Bel) is a port.",
        "Krurou was known to New Bel.",
    ],
)
def test_a_sentence_that_mentions_two_names_does_not_tie_them(sentence: str) -> None:
    assert not list(tied(ties(sought(sentence)), {" krurou ", " new bel "}, 1))


def test_a_row_is_named_by_the_title_of_its_other_name() -> None:
    """The executor was shown that both names are the same."""
    passages = shown(
        ["Annals: Krurou is the former name of Bel.", "Bel: It was founded by Ana Ruiz."]
    )
    names = Shown(passages).also_named([" krurou "])
    assert Shown(passages).support(FOUNDER, "Ana Ruiz", "ana ruiz", names)[0] == "stated"


def test_floods_of_ties_are_found_in_time() -> None:
    for piece in ("now ", "is ", "also known as ", "krurou now ", "is x x name of "):
        assert sum(1 for _ in ties(sought(piece * 2_000))) <= 6_000
