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
    r"|(?:又|亦|也|旧|古|原|简|全|别|俗|曾|现|更|改) (?:用 )?(?:称|名|叫)(?: (?:为|是|作))?|即)(?= )"
)
_MOST_WORDS, _MOST_CHARS = 12, 200
"""Of a name."""


class Tie(NamedTuple):
    """Words that say that what stands before them and what follows are names of the same."""

    before: tuple[str, ...]
    """All that may be the name, the longest first, as `comparable`."""
    after: tuple[str, ...]
    document: str
    sentence: str


def ties(sentence: str, document: str = "") -> Iterator[Tie]:
    """Return the ties in a comparable sentence of a document."""
    for found in _TIE.finditer(sentence):
        left = sentence[max(0, found.start() - _MOST_CHARS) : found.start()].split()[-_MOST_WORDS:]
        right = sentence[found.end() : found.end() + _MOST_CHARS].split()[:_MOST_WORDS]
        if left and right:
            before = tuple(f" {' '.join(left[at:])} " for at in range(len(left)))
            after = tuple(f" {' '.join(right[:end])} " for end in range(len(right), 0, -1))
            yield Tie(before, after, document, sentence)


def tied(found: Iterable[Tie], known: Collection[str], documents: int = 2) -> Iterator[tuple[str, str]]:
    """Return the pairs of known names that so many documents tie, each in a sentence of its own.

    A sentence that two documents have in common counts once, as one of them is a copy.
    """
    said: dict[tuple[str, str], list[Tie]] = {}
    for tie in found:
        before = next((name for name in tie.before if name in known), None)
        after = next((name for name in tie.after if name in known), None)
        if before and after and before != after:
            said.setdefault((min(before, after), max(before, after)), []).append(tie)
    for pair, saying in said.items():
        if min(len({tie.document for tie in saying}), len({tie.sentence for tie in saying})) >= documents:
            yield pair


class Shown:
    """The passages that an executor was shown, each once."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        self._passages = list({passage.id: passage for passage in passages}.values())
        self._said = [sentences(passage.text) for passage in self._passages]
        self._words = [[comparable(sentence) for sentence in said] for said in self._said]
        self._titles = [comparable(passage.title) for passage in self._passages]
        self.ties = tuple(
            tie
            for passage, words in zip(self._passages, self._words, strict=True)
            for sentence in words
            for tie in ties(sentence, passage.document or passage.title)
        )

    def also_named(self, names: Collection[str]) -> set[str]:
        """Comparable names with those titles of passages that passages say are names of the same."""
        known = {*names, *self._titles}
        return {*names, *(name for pair in tied(self.ties, known, 1) if set(pair) & set(names) for name in pair)}

    def support(
        self, column: Column, value: str, form: str, names: Collection[str]
    ) -> tuple[Support, tuple[Citation, ...]]:
        """The support of a value, with a sentence of each passage that gives it. `form`: its canonical form; `names`:
        comparable names of its row.
        """
        wanted = comparable(value)
        stated, held = list[Citation](), list[Citation]()
        for passage, said, words, title in zip(self._passages, self._said, self._words, self._titles, strict=True):
            places = [at for at, sentence in enumerate(words) if wanted in sentence and wanted.strip()]
            if column.type in ("integer", "number", "date"):
                places += [at for at, sentence in enumerate(said) if _holds(column, form, sentence)]
            by_itself = [at for at in places if any(name in words[at] for name in names)]
            beside = (
                at for at in places if any(name in title + "".join(words[max(0, at - 1) : at + 2]) for name in names)
            )
            at = next(iter(by_itself), next(beside, None))
            if at is not None:
                stated.append(citation(passage, said[at]))
            elif places:
                held.append(citation(passage, said[places[0]]))
        if stated or not held:
            return ("stated", tuple(stated)) if stated else ("unsupported", ())
        return "value_only", tuple(held)


def _holds(column: Column, form: str, sentence: str) -> bool:
    """True where a number in a sentence has this form, or where a date is this one or within it."""
    return any(found == form or found.startswith(f"{form}-") for found in values_in(column, sentence))
