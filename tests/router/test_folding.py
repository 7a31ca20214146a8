"""The one folding of text, for any text there is."""

from hypothesis import given
from hypothesis import strategies as st

from router.folding import fold, legible, sought, terms


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_is_folded(text: str) -> None:
    """Also characters of newer versions of Unicode than Python's, and folding again changes
    nothing.
    """
    folded = fold(text)
    assert fold(folded) == folded
    assert terms(folded) == terms(fold(legible(text)))
    assert sought(text) in ("", sought(sought(text)))


def test_digits_that_python_does_not_know_stay() -> None:
    assert legible("\U00010d40 ٣ ३ ３") == "\U00010d40 3 3 3"
