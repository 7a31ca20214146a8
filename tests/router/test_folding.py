"""Folding of any text."""

from hypothesis import given
from hypothesis import strategies as st

from router.folding import fold, legible, sought, terms


@given(st.text(st.characters(codec="utf-8")))
def test_folding_any_text_twice_changes_nothing_more(text: str) -> None:
    """The text may have characters of a newer Unicode version than Python's."""
    folded = fold(text)
    assert fold(folded) == folded
    assert terms(folded) == terms(fold(legible(text)))
    assert sought(text) in ("", sought(sought(text)))


def test_digits_unknown_to_python_stay() -> None:
    assert legible("\U00010d40 ٣ ३ ３") == "\U00010d40 3 3 3"
