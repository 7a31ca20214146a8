"""The place where a point of evidence stands: passage, document, page, and the sentence that says it."""

import re
from collections.abc import Iterable

import msgspec

from router.protocol import Passage, normal_answer
from router.protocol.vocabulary import words

_END = re.compile(
    r"[.!?…][\"'”’)\]]*(?=\s+[\"'“‘(\[]*(?:[^\W_a-z]|$))"  # a full stop, and then no small letter
    r"|[。！？]+[」』”’）]*"
    r"|(?<=\S)(?=\s*\n\s*\n)"
)
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:[^\W\d_]|Mrs?|Ms|Dr|St|Prof|Jr|vs|e\.g|i\.e|cf|Fig|No|approx)\.\Z")


def sentences(text: str) -> list[str]:
    """The sentences of a text, in order, without the white space between them; blank lines end one too."""
    found: list[str] = []
    start = 0
    for end in _END.finditer(text):
        if not _ABBREVIATION.search(text, max(start, end.start() - 8), end.start() + 1):
            found.append(text[start : end.end()].strip())
            start = end.end()
    return [sentence for sentence in (*found, text[start:].strip()) if sentence]


_CITED_SHARE = 0.75
"""Executors copy or closely reword; a point with fewer of its words in a passage does not rest on it."""


class Citation(msgspec.Struct, frozen=True):
    """One sentence of one retrieved passage."""

    passage_id: str
    title: str
    document: str
    page: int | None
    quote: str
    """Word for word; lines are joined."""


def cite(points: Iterable[str], passages: Iterable[Passage]) -> list[list[Citation]]:
    """The sentences that each of `points` may rest on: one of each passage that holds its names and numbers and the
    most of its words, if that is most of them; in the order of the passages, each passage once.
    """
    shown = [(passage, words(f"{passage.title} {passage.text}")) for passage in _different(passages)]
    return [_cited(point, shown) for point in points]


def cite_answer(answer: str, passages: Iterable[Passage]) -> list[Citation]:
    """The first sentence of each passage that holds `answer` as the official scripts compare answers; in the order of
    the passages, each passage once.
    """
    wanted = f" {normal_answer(answer)} "
    found = []
    for passage in _different(passages) if wanted.strip() else ():
        held = next((said for said in sentences(passage.text) if wanted in f" {normal_answer(said)} "), None)
        if held is not None:
            found.append(citation(passage, held))
    return found


def _different(passages: Iterable[Passage]) -> Iterable[Passage]:
    return {passage.id: passage for passage in passages}.values()


def _cited(point: str, shown: Iterable[tuple[Passage, set[str]]]) -> list[Citation]:
    wanted = words(point)
    # Names and numbers; the first word has its capital for its place.
    named = words(" ".join(word for word in point.split()[1:] if word[0].isupper() or word[0].isdigit()))
    shares = [(passage, len(wanted & held)) for passage, held in shown if wanted and named <= held]
    best = max((share for _, share in shares), default=0)
    if not wanted or best < _CITED_SHARE * len(wanted):
        return []
    return [
        citation(passage, max(sentences(passage.text), key=lambda said: len(wanted & words(said)), default=""))
        for passage, share in shares
        if share == best
    ]


def citation(passage: Passage, sentence: str) -> Citation:
    """The citation of a sentence of a passage."""
    return Citation(passage.id, passage.title, passage.document, passage.page, " ".join(sentence.split()))
