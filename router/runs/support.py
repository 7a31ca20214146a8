"""Whether an answer is supported: its names and numbers occur in evidence that retrieved passages
contain.
"""

import re

from router.folding import apart, fold
from router.table.cell_value import values_in
from router.trace import Trajectory
from router.trace.table import Column

_SHORT_WORDS = 4
"""In an answer of at most this many words all words are checked; in a longer one, names, numbers,
and words of scripts without spaces.
"""
_STRANGE_SHARE = 0.25
"""An answer is unsupported from this share of other words without support on."""
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
"""Words that claim nothing: verdicts, and words that open sentences."""


def is_supported(question: str, trajectory: Trajectory) -> bool:
    """Return whether the names and numbers of an answer occur in evidence that a passage contains,
    or in the question. A verdict such as yes needs any evidence; "not known" needs none.
    """
    grounds = list[str]()
    for execution in trajectory.executions:
        points = execution.report.evidence
        for point, cited in zip(points, execution.citations(points), strict=True):
            grounds += [f"{citation.title} {citation.quote} {point}" for citation in cited]
    if _NOTHING_KNOWN.search(trajectory.answer):
        return True
    return bool(grounds) and _stands(trajectory.answer, " ".join([_PLAIN, question, *grounds]))


def _stands(answer: str, ground: str) -> bool:
    known = set(fold(ground).split())
    words = apart(answer).split()
    unsupported = [word for word in words if not known.issuperset(fold(word).split())]

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
        unsupported = [word for word in unsupported if not _FIGURE.search(word)]

    if any(word != word.lower() or re.search(r"\d", word) for word in unsupported):
        return False
    if len(words) > _SHORT_WORDS:
        unsupported = [word for word in unsupported if not word.isascii()]
    return not unsupported or len(unsupported) < _STRANGE_SHARE * len(words)
