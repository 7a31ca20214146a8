"""Check whether an answer is supported: whether its names and numbers occur in evidence that the
retrieved passages contain.
"""

import re

from router.folding import apart, fold
from router.table.cell_value import values_in
from router.trace import Trajectory
from router.trace.citation import sentences
from router.trace.table import Column

_SHORT_WORDS = 4
"""In an answer of at most this many words, every word is checked. In a longer answer, only names,
numbers, and words of scripts without spaces are checked.
"""
_STRANGE_SHARE = 0.25
"""An answer is unsupported if at least this share of its words is checked and does not occur in the
evidence. A name or number that does not occur makes it unsupported in any case.
"""
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
"""Words that need no support: verdicts such as "yes", and function words."""


def is_supported(question: str, trajectory: Trajectory) -> bool:
    """Return whether the names and numbers of the trajectory's answer occur in the question, or in
    evidence that a retrieved passage contains.

    A verdict such as "yes" is supported if there is any such evidence. An answer such as "not
    known" needs no support.
    """
    grounds = list[str]()
    for execution in trajectory.executions:
        points = execution.report.evidence
        for point, cited in zip(points, execution.citations(points), strict=True):
            grounds += [f"{citation.title} {citation.quote} {point}" for citation in cited]
    if _NOTHING_KNOWN.search(trajectory.answer):
        return True
    claims = [trajectory.answer]
    if trajectory.style and trajectory.style.length == "paragraph":
        claims = sentences(trajectory.answer)
    ground = " ".join([_PLAIN, question, *grounds])
    return bool(grounds) and all(_stands(claim, ground) for claim in claims)


def _stands(answer: str, ground: str) -> bool:
    """Return whether the words, numbers and dates of an answer occur in the text `ground`."""
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
