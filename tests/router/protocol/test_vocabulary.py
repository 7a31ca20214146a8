"""Scopes: the words of a question that a small world knows."""

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
def test_words_and_names_of_the_scope_are_inside(question: str) -> None:
    """Case and punctuation around them make no difference."""
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
        ("Who wrote Newbury Works, Hamlet?", ["Works", "Hamlet"]),
        ("Is Old Newbury in The Salt Road?", ["Old"]),
        ("", []),
        ("???", []),
    ],
)
def test_strange_words_are_outside_and_listed_once(question: str, outside: list[str]) -> None:
    """If a question names nothing of the scope, all its words are."""
    assert SCOPE.outside(question) == outside


def test_the_longest_name_wins() -> None:
    """A name within a name does not hide the rest of the longer one."""
    scope = Vocabulary(["is"], ["New", "New Bury Cross"])
    assert scope.outside("Is New Bury Cross New?") == []
    assert scope.outside("Is New Bury?") == ["Bury"]


def test_an_empty_scope_knows_nothing() -> None:
    assert Vocabulary([], []).outside("Who is it?") == ["Who", "is", "it"]


@given(st.text())
def test_outside_words_of_any_text_are_in_the_question(question: str) -> None:
    outside = SCOPE.outside(question)
    assert len(set(outside)) == len(outside)
    assert all(word in question for word in outside)
