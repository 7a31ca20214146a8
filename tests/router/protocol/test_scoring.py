"""EM and F1, checked by hand against the rules of the official SQuAD 1.1 and HotpotQA scripts."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.protocol import exact_match, normal_answer
from router.protocol.scoring import token_f1

# answer, golds, exact match, F1
PAIRS: list[tuple[str, list[str], bool, Fraction | int]] = [
    ("Paris", ["Paris"], True, 1),
    ("paris", ["PARIS"], True, 1),
    ("Paris.", ["Paris"], True, 1),
    ("“Paris”", ["Paris"], False, 0),  # Unicode punctuation is not removed
    ("Paris!?", ["(Paris)"], True, 1),
    ("London", ["Paris"], False, 0),
    ("the Beatles", ["Beatles"], True, 1),
    ("The Beatles", ["A Beatles"], True, 1),
    ("Beatles the", ["Beatles"], True, 1),
    ("an apple a day", ["apple day"], True, 1),
    ("Anna", ["An na"], False, 0),
    ("a", ["the"], True, 0),  # both are empty once normalised; the official F1 of nothing is 0
    ("", [""], True, 0),
    ("Paris", [""], False, 0),
    ("Paris", [], False, 0),
    ("U.S.", ["US"], True, 1),
    ("U.S.A.", ["U S A"], False, 0),  # punctuation goes without leaving a space
    ("well-known", ["well known"], False, 0),
    ("AC/DC", ["ACDC"], True, 1),
    ("O’Neill", ["O'Neill"], False, 0),  # a typographic apostrophe stays
    ("1943–1950", ["1943-1950"], False, 0),  # so does an en dash
    ("Beyoncé", ["Beyonce"], False, 0),  # accents are not folded
    ("ÉCOLE", ["école"], True, 1),
    ("Michael Mann", ["Mann"], False, Fraction(2, 3)),
    ("Michael Kenneth Mann", ["Michael Mann"], False, Fraction(4, 5)),
    ("Mann Michael", ["Michael Mann"], False, 1),  # F1 has no order
    ("New York", ["New York City"], False, Fraction(4, 5)),
    ("5 February 1943", ["February 5, 1943"], False, 1),
    ("1943", ["5 February 1943"], False, Fraction(1, 2)),
    ("no no no", ["no no"], False, Fraction(4, 5)),
    # Each repeated token counts once for each occurrence
    ("bora bora", ["bora"], False, Fraction(2, 3)),
    ("yes", ["yes"], True, 1),
    ("yes", ["no"], False, 0),
    ("yes it is", ["yes"], False, 0),  # HotpotQA: yes and no count whole or not
    ("no", ["no idea"], False, 0),
    ("The no", ["no"], True, 1),
    ("noanswer", ["no answer"], False, 0),
    ("no answer", ["answer"], False, Fraction(2, 3)),
    ("Mann", ["Michael", "Mann"], True, 1),
    # The best of several golds
    ("Michael Mann", ["Mann", "Michael Kenneth Mann"], False, Fraction(4, 5)),
    ("a b c d", ["c d e f"], False, Fraction(4, 7)),  # b c d against c d e f
    ("tab\tnew\nline", ["tab new line"], True, 1),
    ("non\u00a0breaking", ["non breaking"], True, 1),
]


@pytest.mark.parametrize(("answer", "golds", "exact", "f1"), PAIRS)
def test_pairs_are_scored_like_the_official_scripts(
    answer: str, golds: list[str], exact: bool, f1: Fraction | int
) -> None:
    assert exact_match(answer, golds) is exact
    assert token_f1(answer, golds) == pytest.approx(float(f1))


def test_an_answer_is_normalised_in_the_official_order() -> None:
    """Lower case first, then punctuation, then articles, then space."""
    assert normal_answer(" The  Quick-Brown, Fox! ") == "quickbrown fox"
    assert normal_answer("a.n apple") == "apple"  # the point goes first, and leaves an article
    assert normal_answer("the-end") == "theend"


@given(st.text(), st.text())
def test_scores_are_symmetric(answer: str, gold: str) -> None:
    assert exact_match(answer, [gold]) == exact_match(gold, [answer])
    assert token_f1(answer, [gold]) == pytest.approx(token_f1(gold, [answer]))


@given(st.text(), st.lists(st.text(), max_size=4))
def test_f1_is_a_share_and_1_for_an_exact_match(answer: str, golds: list[str]) -> None:
    """With nothing to match it is 0."""
    assert 0.0 <= token_f1(answer, golds) <= 1.0
    if exact_match(answer, golds) and normal_answer(answer):
        assert token_f1(answer, golds) == 1.0


@given(st.text())
def test_a_normalised_answer_has_no_surplus_space(text: str) -> None:
    normal = normal_answer(text)
    assert normal == " ".join(normal.split())
