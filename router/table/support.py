"""The support of a value in the very passages that its executor was shown, and names that these tie together."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from router.protocol import Passage
from router.table.cell_value import values_in
from router.trace.citation import Citation, citation, sentences
from router.trace.table import Column, Support

"""`stated`: a sentence says the value, and it, one beside it or the title names the row; `value_only`: none does; best
first.
"""

_IN_NUMBER = re.compile(r"(?<=\d)[,'’](?=\d{3})|['’]s\b|['’]|\.(?!\d)")
_SIGNS = re.compile(r"[^\w.]+|_+|\b(?:a|an|the)\b")
_CHARACTER = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff]")
"""Of the scripts that put no spaces between words; each counts as a word."""


def comparable(text: str) -> str:
    """The words of a text between spaces, case folded, without signs and articles."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    words = _SIGNS.sub(" ", _IN_NUMBER.sub("", _CHARACTER.sub(r" \g<0> ", folded)))
    return f" {' '.join(words.split())} "


_BE = r"(?:is|was|are|were|has been|had been)"
_OFTEN = r"(?:also|formerly|previously|originally|officially|commonly|better|once|first|now|later|then)"
_TIE = re.compile(
    rf"(?<= )(?:(?:{_BE} )?(?:{_OFTEN} ){{0,3}}(?:became )?(?:known|abbreviated|written|spelled|spelt) as"
    rf"|(?:{_BE} (?:{_OFTEN} ){{0,3}}|(?:{_OFTEN} ){{1,3}})(?:called|named|renamed)(?: as| to)?"
    rf"|(?:{_BE} )?(?:formerly|previously|originally|officially|now|alias|aka|née|nee)"
    rf"|{_BE} (?:\w+ ){{0,2}}(?:name|title|alias|pseudonym|abbreviation) (?:of|for)"
    r"|(?:writes|wrote|published) (?:as|under (?:pen )?name(?: of)?)|changed its name to"
    r"|(?:又|亦|也|旧|古|原|简|全|别|俗|曾|现|更|改) (?:称|名|叫)(?: (?:为|是|作))?|即)(?= )"
)
_MOST_WORDS, _MOST_CHARS = 12, 200
"""Of a name."""


class Tie(NamedTuple):
    """Words that say that what stands before them and what follows are names of the same."""

    before: tuple[str, ...]
    """All that may be the name, the longest first, as `comparable`."""
    after: tuple[str, ...]


def ties(sentence: str) -> Iterator[Tie]:
    """The ties in a comparable sentence."""
    for found in _TIE.finditer(sentence):
        left = sentence[max(0, found.start() - _MOST_CHARS) : found.start()].split()[-_MOST_WORDS:]
        right = sentence[found.end() : found.end() + _MOST_CHARS].split()[:_MOST_WORDS]
        if left and right:
            before = tuple(f" {' '.join(left[at:])} " for at in range(len(left)))
            yield Tie(before, tuple(f" {' '.join(right[:end])} " for end in range(len(right), 0, -1)))


def tied(found: Iterable[Tie], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """The pairs of known names that ties put together."""
    for tie in found:
        before = next((name for name in tie.before if name in known), None)
        after = next((name for name in tie.after if name in known), None)
        if before and after and before != after:
            yield before, after


class Shown:
    """The passages that an executor was shown, each once."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        self._passages = list({passage.id: passage for passage in passages}.values())
        self._said = [sentences(passage.text) for passage in self._passages]
        self._words = [[comparable(sentence) for sentence in said] for said in self._said]
        self._titles = [comparable(passage.title) for passage in self._passages]
        self._forms: dict[tuple[str, str, int], list[list[str]]] = {}
        self.ties = tuple(tie for words in self._words for sentence in words for tie in ties(sentence))

    def also_named(self, names: Collection[str]) -> set[str]:
        """Comparable names with those titles of passages that passages say are names of the same."""
        known = {*names, *self._titles}
        return {*names, *(name for pair in tied(self.ties, known) if set(pair) & set(names) for name in pair)}

    def support(
        self, column: Column, value: str, form: str, names: Collection[str]
    ) -> tuple[Support, tuple[Citation, ...]]:
        """The support of a value, with a sentence of each passage that gives it. `form`: its canonical form; `names`:
        comparable names of its row.
        """
        wanted = comparable(value)
        stated, held = list[Citation](), list[Citation]()
        for number, passage in enumerate(self._passages):
            said, titled = self._words[number], any(name in self._titles[number] for name in names)
            places = [at for at, forms in enumerate(self._typed(column, number)) if _within(column, form, forms)]
            places += [at for at, words in enumerate(said) if wanted in words and wanted.strip()]
            near = [
                at for at in places if titled or any(name in "".join(said[max(0, at - 1) : at + 2]) for name in names)
            ]
            if near:
                best = next((at for at in near if any(name in said[at] for name in names)), near[0])
                stated.append(citation(passage, self._said[number][best]))
            elif places:
                held.append(citation(passage, self._said[number][places[0]]))
        if stated or not held:
            return ("stated", tuple(stated)) if stated else ("unsupported", ())
        return "value_only", tuple(held)

    def _typed(self, column: Column, number: int) -> list[list[str]]:
        """The canonical numbers or dates of each sentence of a passage."""
        if column.type not in ("integer", "number", "date"):
            return []
        key = (column.type, column.unit, number)
        if key not in self._forms:
            self._forms[key] = [values_in(column, sentence) for sentence in self._said[number]]
        return self._forms[key]


def _within(column: Column, form: str, forms: Collection[str]) -> bool:
    """True where one of these is the form or, of a date, more precise."""
    return form in forms or (column.type == "date" and any(found.startswith(f"{form}-") for found in forms))
