"""The words that a deployment's models know, if the models understand only one small language, as
in the demo. The gateway refuses questions with other words, because the models would only guess.
"""

import re
from collections.abc import Iterable

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


class Vocabulary:
    """A closed set of words and names. A name may have several words. Case is ignored."""

    def __init__(self, words: Iterable[str], names: Iterable[str]) -> None:
        self._words = frozenset(word.casefold() for word in words)
        self._names = frozenset(_folded(name) for name in names)
        self._longest = max((len(name) for name in self._names), default=0)

    @classmethod
    def parse(cls, text: str) -> "Vocabulary":
        """Return the vocabulary in the text of a file: words, then a blank line, then names, one
        per line.
        """
        words, _, names = text.partition("\n\n")
        return cls(words.split(), names.splitlines())

    def outside(self, question: str, *, named: bool = True) -> list[str]:
        """Return the distinct words of `question` that are neither words of the vocabulary nor part
        of one of its names. If all words are known, but the question contains no name, return all
        its words. `named`: False to accept questions without a name.
        """
        written = _WORD.findall(question)
        folded = _folded(question)
        unknown = list[str]()
        named = not named
        at = 0
        while at < len(folded):
            length = self._name_at(folded, at)
            if length:
                named = True
            elif folded[at] not in self._words:
                unknown.append(written[at])
            at += length or 1

        return list(dict.fromkeys(unknown if named or unknown else written))

    def _name_at(self, folded: tuple[str, ...], at: int) -> int:
        """Return the number of words of the longest name that begins at position `at`; 0 if no name
        does.
        """
        lengths = range(min(self._longest, len(folded) - at), 0, -1)
        return next((length for length in lengths if folded[at : at + length] in self._names), 0)


def words(text: str) -> set[str]:
    """Return the set of words in `text`, case folded."""
    return set(_folded(text))


def _folded(text: str) -> tuple[str, ...]:
    return tuple(word.casefold() for word in _WORD.findall(text))
