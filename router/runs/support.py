"""Support of answers. An answer is supported if its names and numbers occur in evidence that
retrieved passages contain. The functions here check that, and find the citations that support each
sentence of an answer.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from router.background import in_worker
from router.folding import apart, fold, terms
from router.frozen import Frozen
from router.table.cell_value import values_in
from router.table.numbers import signs_in, signs_of
from router.trace import Execution, Trajectory
from router.trace.citation import MAX_CITED, Citation, sentence_spans
from router.trace.table import Column

T = TypeVar("T")
_SHORT = 4_000
"""Results up to this size, in characters as counted by `_read_chars`, are checked on the event
loop. The check takes some milliseconds. Passing the work to a worker thread would take longer.
"""
_SHORT_WORDS = 4
"""In an answer of at most this many words, every word is checked. In a longer answer, only names,
numbers, and words of scripts without spaces are checked.
"""
_STRANGE_SHARE = 0.25
"""An answer is unsupported if at least this share of its words, from 0 to 1, is checked and does
not occur in the evidence. A single name or number that does not occur there also makes it
unsupported.
"""
_DATE = Column("", "date")
_NUMBER = Column("", "number")
_FIGURE = re.compile(
    r"\d|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|[mb]illion|thousand)", re.IGNORECASE
)
_MARKED = re.compile(r"(?<![\w)])[-−–]\d|\d/\d|\d ?%|[$€£¥]")
"""Matches a number with a minus sign, a fraction, a percent sign or a currency sign. Folding
removes these signs, so such numbers are looked up in the text as it is written.
"""
_AROUND = ".,;:!?()[]\"'"
_SIGNED = re.compile(r"(?<![\w)])[-−–]\d|(?<![\d/])\d{1,2}/\d+(?![\d/])")
"""Matches a number with a sign, or a fraction; neither is a date."""
_NOTHING_KNOWN = re.compile(
    r"\bnot (?:found|stated|mentioned|known|enough|available|specified|possible|contain|"
    r"provide|say)"
    r"|\b(?:insufficient|unknown|unclear|cannot be|unable to|no (?:evidence|information))\b"
    r"|无法|不足|未知|未提及|没有提到|找不到|不明",
    re.IGNORECASE,
)
_PLAIN_WORDS = frozenset(
    " yes no both neither none all same equal true false former latter"
    " 是 的 否 不 对 都 没 有 相 同"
    " 在 和 与 了 为 于 由 他 她 它 年 月 日 it in on at by"
    " of for from and or as to a he she they his her its their"
    " this that these those there according based since while because however therefore "
    "thus so when where which what ".split()
)
"""Words that need no support: verdicts such as "yes", and function words."""
_PLAIN_CHARACTERS = frozenset(word for word in _PLAIN_WORDS if not word.isascii())
MAX_CITATIONS = 500
"""Max citations in the message with an answer: the first citations of the run. Only these can be
listed as support of a sentence.
"""
_MAX_SENTENCES = 100
"""Max sentences into which an answer is split; the last one contains the rest of the answer."""


class AnswerSentence(Frozen):
    """A sentence of an answer, with the citations that support the sentence."""

    start_char: int
    """Position of the sentence's first character in the answer, counted from 0."""
    end_char: int
    """Position after the sentence's last character."""
    supported: bool
    """False if the sentence has names or numbers that no cited evidence contains."""
    citation_indexes: tuple[int, ...] = ()
    """Citations that contain the sentence's names and numbers, as positions in the list of the
    run's first `MAX_CITATIONS` distinct citations.
    """


async def unblocked(result: Trajectory | Execution, work: Callable[..., T], *arguments: Any) -> T:
    """Return the result of `work(*arguments)`. The function `work` searches the passages of
    `result`. Unless the texts are short, it runs in a worker thread, so that it does not block the
    event loop.
    """
    if _read_chars(result) <= _SHORT:
        return work(*arguments)
    return await in_worker(work, *arguments)


def _read_chars(result: Trajectory | Execution) -> int:
    """Return the size of `result` as an estimate of the time for a check: the characters of the
    passages that executors were shown, plus four times the characters of the answer and the
    evidence. Executors of managers are included.
    """
    if isinstance(result, Trajectory):
        return 4 * len(result.answer) + sum(map(_read_chars, result.executions))
    shown = sum(len(passage.text) for search in result.every_search for passage in search.shown)
    # Looking up a word of the evidence takes several times as long as reading it.
    claimed = 4 * sum(map(len, result.report.evidence))
    workers = result.work.executions if result.work else ()
    return shown + claimed + sum(map(_read_chars, workers))


def grounds_of(
    executions: Iterable[Execution], cited: Iterable[Sequence[Sequence[Citation]]]
) -> dict[Citation, list[str]]:
    """Return the distinct citations of a run, each with the texts that may support an answer: the
    title, the quote, and the points (statements of evidence in a report) that have this citation.
    `cited`: for each of `executions`, the citations of each point of its report.
    """
    grounds = dict[Citation, list[str]]()
    for execution, by_point in zip(executions, cited, strict=True):
        for point, citations in zip(execution.report.evidence, by_point, strict=True):
            for citation in citations:
                grounds.setdefault(citation, [citation.title, citation.quote]).append(point)
    return grounds


def is_supported(question: str, trajectory: Trajectory) -> bool:
    """Return True if the names and numbers of the trajectory's answer occur in the question, or in
    evidence that a retrieved passage contains. If the answer is a paragraph, each sentence is
    checked separately.

    An answer such as "yes" is supported if there is any such evidence. An answer such as "not
    known" needs no support.
    """
    executions = trajectory.executions
    cited = [execution.citations(execution.report.evidence) for execution in executions]
    evidence = _Evidence(question, grounds_of(executions, cited).values())
    return all(evidence.supports(trajectory.answer[start:end]) for start, end in _spans(trajectory))


def answer_sentences(
    question: str, trajectory: Trajectory, grounds: Mapping[Citation, Iterable[str]]
) -> list[AnswerSentence]:
    """Return the sentences of an answer. Each has a flag, True if it is supported (see
    `is_supported`), and the positions of the citations in `grounds` that support it. Only a
    paragraph is split; any other answer is one sentence.

    The list is empty for an answer that states nothing, such as a question to the user.
    """
    if trajectory.outcome in ("clarify", "out_of_scope"):
        return []
    evidence = _Evidence(question, grounds.values())
    sentences = list[AnswerSentence]()
    for start, end in _spans(trajectory):
        sentence = trajectory.answer[start:end]
        supported = evidence.supports(sentence)
        indexes = evidence.citations(sentence) if supported else ()
        sentences.append(AnswerSentence(start, end, supported, indexes))
    return sentences


def _spans(trajectory: Trajectory) -> list[tuple[int, int]]:
    """Return the spans of an answer that are checked separately, as pairs of start and end in
    characters: one span for each sentence of a paragraph, or one for the whole answer.
    """
    answer = trajectory.answer
    spans = sentence_spans(answer)
    if trajectory.style and trajectory.style.length == "paragraph":
        unsplit = _MAX_SENTENCES - 1
    else:
        unsplit = 0
    if rest := spans[unsplit:]:
        return [*spans[:unsplit], (rest[0][0], rest[-1][1])]
    return spans


class _Evidence:
    """The texts that may support the sentences of one answer."""

    def __init__(self, question: str, grounds: Iterable[Iterable[str]]) -> None:
        """`grounds`: the texts of each citation that may support an answer (see `grounds_of`)."""
        texts = [" ".join(ground) for ground in grounds]
        self._texts = texts
        self._everything = " ".join([question, *texts])
        self._known = _PLAIN_WORDS.union(fold(self._everything).split())

    def supports(self, claim: str) -> bool:
        """Return True if `claim` says that nothing is known, or if all its names, numbers and dates
        and most of its other checked words occur in the evidence.
        """
        if _NOTHING_KNOWN.search(claim):
            return True
        words = apart(claim).split()
        unsupported = [
            word
            for word in words
            if not self._known.issuperset(fold(word).split())
            or (_MARKED.search(word) and word.strip(_AROUND) not in self._everything)
        ]
        if any(map(_FIGURE.search, unsupported)):
            claimed = values_in(_NUMBER, claim)
            if not any(map(_SIGNED.search, unsupported)):
                claimed = values_in(_DATE, claim) or claimed
            if claimed and signs_of(claim) <= self._signs and self._figures.issuperset(claimed):
                unsupported = [word for word in unsupported if not _FIGURE.search(word)]

        if not self._texts or any(
            word != word.lower() or re.search(r"\d", word) for word in unsupported
        ):
            return False
        if len(words) > _SHORT_WORDS:
            unsupported = [word for word in unsupported if not word.isascii()]
        return not unsupported or len(unsupported) < _STRANGE_SHARE * len(words)

    @cached_property
    def _signs(self) -> frozenset[str]:
        return signs_in(self._everything)

    @cached_property
    def _figures(self) -> set[str]:
        """Numbers and dates of the evidence in canonical form, because a claim may write them
        differently.
        """
        dates = values_in(_DATE, self._everything)
        return {
            *values_in(_NUMBER, self._everything),
            *dates,
            *(date[:7] for date in dates),
            *(date[:4] for date in dates),
        }

    def citations(self, claim: str) -> tuple[int, ...]:
        """Return the positions of a few citations that together contain the names and numbers of a
        text. Each step chooses the citation that contains the most names and numbers that are still
        missing.

        For a text without names and numbers, return the citation that contains the most of its
        words, if these are at least half of the words.
        """
        missing = _content(claim)
        names = missing & _content(" ".join(filter(_is_name, apart(claim).split())))
        chosen = list[int]()
        while len(chosen) < min(MAX_CITED, len(self._contents)):
            shared = [missing & content for content in self._contents]
            best = max(
                range(len(shared)), key=lambda at: (len(shared[at] & names), len(shared[at]))
            )
            is_about = not chosen and 2 * len(shared[best]) >= len(missing) > 0
            if not (shared[best] & names or is_about):
                break
            chosen.append(best)
            missing -= shared[best]
        return tuple(sorted(chosen))

    @cached_property
    def _contents(self) -> list[set[str]]:
        return [_content(text) for text in self._texts[:MAX_CITATIONS]]


def _is_name(word: str) -> bool:
    """Return True if a word is a name or a number, or is written in a script without spaces."""
    return word != word.lower() or not word.isascii() or re.search(r"\d", word) is not None


def _content(text: str) -> set[str]:
    """Return the terms of a text: its words, or in scripts without spaces, its pairs of characters.
    Function words, and pairs that contain a function word, are left out.
    """
    return {
        term
        for term in terms(fold(text))
        if term not in _PLAIN_WORDS and _PLAIN_CHARACTERS.isdisjoint(term)
    }
