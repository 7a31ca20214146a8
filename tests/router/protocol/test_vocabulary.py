"""Scopes: which words of a question a small world knows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.protocol import Vocabulary

SCOPE = Vocabulary.parse(
    "who wrote the of is city\nborn in what which\n\nThe Salt Road\nIlse Varnholt\n"
    "Newbury\nSt. Ives-le-Bas\n"
)


@pytest.mark.parametrize(
    "question",
    [
        "Who wrote The Salt Road?",
        "who WROTE the salt road",
        "Is Ilse  Varnholt born in Newbury?",
        "Newbury",
        "Which city is Ilse Varnholt's?".replace("'s", ""),
        "What of St. Ives-le-Bas?",
        "Who wrote “The Salt Road”?!",
    ],
)
def test_inside(question: str) -> None:
    """Words and names of the scope, in any case and with any punctuation around them."""
    assert SCOPE.outside(question) == []


@pytest.mark.parametrize(
    ("question", "outside"),
    [
        ("Who wrote Hamlet?", ["Hamlet"]),
        ("Who directed The Salt Road?", ["directed"]),
        ("Who is Ilse?", ["Ilse"]),
        ("Is Newbury in France or in Spain, or in France?", ["France", "or", "Spain"]),
        ("What is the city?", ["What", "is", "the", "city"]),
        ("Who wrote the Salt?", ["Salt"]),
        ("42 Newbury", ["42"]),
        ("", []),
        ("???", []),
    ],
)
def test_outside(question: str, outside: list[str]) -> None:
    """Strange words, as written and each once; and all the words of a question that names
    nothing.
    """
    assert SCOPE.outside(question) == outside


def test_the_longest_name_wins() -> None:
    """A name within a name does not hide the rest of the longer one."""
    scope = Vocabulary(["is"], ["New", "New Bury Cross"])
    assert scope.outside("Is New Bury Cross New?") == []
    assert scope.outside("Is New Bury?") == ["Bury"]


def test_an_empty_scope() -> None:
    """A scope of nothing knows nothing."""
    assert Vocabulary([], []).outside("Who is it?") == ["Who", "is", "it"]


@given(st.text())
def test_any_text(question: str) -> None:
    """Any text is read; what is outside stands in the question."""
    outside = SCOPE.outside(question)
    assert len(set(outside)) == len(outside)
    assert all(word in question for word in outside)
