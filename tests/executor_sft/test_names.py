import random

import pytest

from executor_sft.miniworld.world import Names, Side, side_of

SIDES: tuple[Side, Side] = ("train", "test")


@pytest.mark.parametrize("side", SIDES)
def test_a_word_is_drawn_once_and_is_of_its_side(side: Side) -> None:
    """5,000 words: all different, all capitalised, 4 to 11 letters, none from the other side."""
    names = Names(random.Random(1), side)
    words = [names.word() for _ in range(5000)]

    assert len(set(words)) == 5000
    assert {side_of(word) for word in words} == {side}
    assert all(word.isalpha() and word.istitle() and 4 <= len(word) <= 11 for word in words)


def test_the_same_seed_draws_the_same_words() -> None:
    """The order counts too; another seed draws others."""
    one, same, other = (Names(random.Random(seed), "test") for seed in (1, 1, 2))
    drawn = [one.word() for _ in range(50)]

    assert drawn == [same.word() for _ in range(50)]
    assert drawn != [other.word() for _ in range(50)]


def test_a_word_stays_on_its_side_however_it_is_written() -> None:
    """Case makes no difference."""
    names = Names(random.Random(3), "train")

    for word in (names.word() for _ in range(100)):
        assert side_of(word.lower()) == side_of(word.upper()) == "train"


def test_both_sides_have_words_enough() -> None:
    """Of 10,000 made-up words about half are of either side."""
    share = sum(side_of(f"word{number}") == "test" for number in range(10_000)) / 10_000

    assert 0.45 < share < 0.55
