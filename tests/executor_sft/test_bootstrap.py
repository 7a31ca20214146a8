import numpy as np
import pytest

from executor_sft.evaluate import paired_difference


def test_the_interval_holds_the_true_difference_as_often_as_it_says() -> None:
    """Over 200 samples of 80 questions with a true difference of 0.2, about 95 % of the intervals hold it."""
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        old = rng.random(80) < 0.4
        new = old | (rng.random(80) < 1 / 3)
        found = paired_difference(list(new.astype(float)), list(old.astype(float)))
        held += found.low <= 0.2 <= found.high
    assert 178 <= held <= 199


def test_pairs_that_agree_leave_no_doubt() -> None:
    """Where both are the same question by question, the difference is 0, however much questions differ."""
    scores = [0.0, 1.0, 0.5, 0.25]
    assert (found := paired_difference(scores, scores)).low == found.mean == found.high == 0


def test_an_interval_is_reproducible() -> None:
    """The same scores give the same interval."""
    new, old = [1.0, 1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0, 1.0]
    assert paired_difference(new, old) == paired_difference(new, old)


@pytest.mark.parametrize(("new", "old"), [([], []), ([1.0], [1.0, 0.0])])
def test_what_cannot_be_paired_is_refused(new: list[float], old: list[float]) -> None:
    """There must be scores, and as many on both sides."""
    with pytest.raises(ValueError):
        paired_difference(new, old)
