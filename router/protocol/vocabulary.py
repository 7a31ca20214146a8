"""The words that a deployment's models know. A question beyond it is refused instead of guessed
at.
"""

import re
from collections.abc import Iterable

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


class Vocabulary:
    """A closed set of words and names, case folded; for models that speak one small language
    only.
    """

    def __init__(self, words: Iterable[str], names: Iterable[str]) -> None:
        self._words = frozenset(word.casefold() for word in words)
        self._names = frozenset(_folded(name) for name in names)
        self._longest = max((len(name) for name in self._names), default=0)

    @classmethod
    def parse(cls, text: str) -> "Vocabulary":
        """A vocabulary from a file: words, a blank line, then names, one on each line."""
        words, _, names = text.partition("\n\n")
        return cls(words.split(), names.splitlines())

    def outside(self, question: str) -> list[str]:
        """The words of `question` that are neither words nor part of a name in the set, each once;
        and where it names nothing at all, every word of it.
        """
        written = _WORD.findall(question)
        folded = [word.casefold() for word in written]
        strange: list[str] = []
        named = False
        at = 0
        while at < len(folded):
            length = self._name_at(folded, at)
            if length:
                named = True
            elif folded[at] not in self._words:
                strange.append(written[at])
            at += length or 1
        return list(dict.fromkeys(strange if named or strange else written))

    def _name_at(self, folded: list[str], at: int) -> int:
        """The number of words of the longest name at this place; 0 where none begins."""
        lengths = range(min(self._longest, len(folded) - at), 0, -1)
        return next(
            (length for length in lengths if tuple(folded[at : at + length]) in self._names), 0
        )


def words(text: str) -> set[str]:
    """The words of a text, case folded."""
    return {word.casefold() for word in _WORD.findall(text)}


def _folded(name: str) -> tuple[str, ...]:
    return tuple(word.casefold() for word in _WORD.findall(name))
