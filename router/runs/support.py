"""Whether an answer is supported: its names and numbers stand in evidence that retrieved
passages hold.
"""

import re

from router.folding import apart, fold
from router.table.cell_value import values_in
from router.trace import Trajectory
from router.trace.table import Column

_SHORT_WORDS = 4
"""Of an answer that has no more words, all count; of a longer one, names and numbers, and words
of unspaced scripts.
"""
_STRANGE_SHARE = 0.25
"""Share of other words that stand nowhere, from which on an answer is unsupported."""
_DATE = Column("", "date")
_NUMBER = Column("", "number")
_FIGURE = re.compile(
    r"\d|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|[mb]illion|thousand)", re.IGNORECASE
)
_NOTHING_KNOWN = re.compile(
    r"\bnot (?:found|stated|mentioned|known|enough|available|specified|possible|contain|"
    r"provide|say)"
    r"|\b(?:insufficient|unknown|unclear|cannot be|unable to|no (?:evidence|information))\b"
    r"|无法|不足|未知|未提及|没有提到|找不到|不明",
    re.IGNORECASE,
)
_PLAIN = (
    " yes no both neither none all same equal true false former latter"
    " 是 的 否 不 对 都 没 有 相 同"
    " 在 和 与 了 为 于 年 月 日 it in on at by"
    " of for from and or as to a he she they his her its their"
    " this that these those there according based since while because however therefore "
    "thus so when where which what "
)
"""Words that claim nothing: verdicts, and such as open sentences."""


def is_supported(question: str, found: Trajectory) -> bool:
    """Return whether the names and numbers of an answer stand in evidence that a passage holds, or
    in the question. A verdict needs any evidence; an answer that nothing is known needs none.
    """
    grounds = [
        f"{passage.title} {passage.text}" for search in found.searches for passage in search.shown
    ]
    for execution in found.executions:
        points = execution.report.evidence
        for point, cited in zip(points, execution.citations(points), strict=True):
            grounds += [f"{at.title} {at.quote} {point}" for at in cited]
    if _NOTHING_KNOWN.search(found.answer):
        return True
    return bool(grounds) and _stands(found.answer, " ".join([_PLAIN, question, *grounds]))


def _stands(answer: str, ground: str) -> bool:
    known = set(fold(ground).split())
    words = apart(answer).split()
    strange = [word for word in words if not known.issuperset(fold(word).split())]

    # Numbers and dates may be written in another way.
    dates = values_in(_DATE, ground)
    figures = {
        *values_in(_NUMBER, ground),
        *dates,
        *(date[:7] for date in dates),
        *(date[:4] for date in dates),
    }
    claimed = values_in(_DATE, answer) or values_in(_NUMBER, answer)
    if claimed and figures.issuperset(claimed):
        strange = [word for word in strange if not _FIGURE.search(word)]

    if any(word != word.lower() or re.search(r"\d", word) for word in strange):
        return False
    if len(words) > _SHORT_WORDS:
        strange = [word for word in strange if not word.isascii()]
    return not strange or len(strange) < _STRANGE_SHARE * len(words)
