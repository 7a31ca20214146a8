"""Name words from syllables. A hash puts each word on the training or the test side, so the two share none."""

import hashlib
import random
from typing import Literal

Side = Literal["train", "test"]

_ONSETS = "b br ch d dr f fl g gr h j k kr l m n p pr r s sh sk st t th tr v w z".split()
_VOWELS = "a e i o u ae ei ia oa ou".split()
_CODAS = ["", "", "", "l", "m", "n", "nd", "r", "rk", "s", "sk", "st", "th", "v", "x"]


def side_of(word: str) -> Side:
    """The side that `word` belongs to, whatever world it stands in."""
    return "test" if hashlib.sha256(word.lower().encode()).digest()[0] % 2 else "train"


class Names:
    """Draws name words of one side, each at most once."""

    def __init__(self, rng: random.Random, side: Side) -> None:
        self._rng = rng
        self._side = side
        self._taken: set[str] = set()

    def word(self) -> str:
        """A fresh capitalised word of two or three syllables."""
        while True:
            syllables = self._rng.choice((2, 2, 3))
            word = "".join(self._syllable(last=number == syllables - 1) for number in range(syllables)).capitalize()
            if word not in self._taken and side_of(word) == self._side and 4 <= len(word) <= 11:
                self._taken.add(word)
                return word

    def _syllable(self, last: bool) -> str:
        coda = self._rng.choice(_CODAS) if last else self._rng.choice(("", "", "", "l", "n", "r"))
        return self._rng.choice(_ONSETS) + self._rng.choice(_VOWELS) + coda
