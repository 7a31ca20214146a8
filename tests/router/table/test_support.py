"""A value is supported by the sentence that says it."""

import pytest

from router.folding import sought
from router.table.cell_value import canonical
from router.table.support import Shown
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
def test_a_name(passage: str, support: str) -> None:
    """It is stated where the row is named in its sentence, beside it, or by the title."""
    assert _support(FOUNDER, "Ana Ruiz", passage)[0] == support


def test_the_sentence_that_names_both_is_cited() -> None:
    """Of each passage one."""
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
def test_values_by_their_types(column: Column, value: str, sentence: str, held: bool) -> None:
    """A number or a date counts however it is written."""
    assert (_support(column, value, f"Krurou: {sentence}")[0] == "stated") == held
