"""The delegator's decision, read from its output: sub-queries to dispatch, or a stop (TBSS 3.1).

Reading is total: any text gives a decision, none raises, and the time is linear in the text.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from router.malformed import Malformed
from router.same_question import normal_question
from router.search_block import own_text, search_blocks

__all__ = ["Decision", "Dispatch", "Malformed", "Stop", "parse_decision"]

_STOP = re.compile(r"<\s*+/?\s*+stop\s*+/?\s*+>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Sub-queries, all different, in the order in which they were written."""

    sub_queries: tuple[str, ...]
    """To be run in parallel."""
    over_limit: tuple[str, ...]
    """Too many for one block: to be reported back as not dispatched."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The evidence suffices."""


Decision = Dispatch | Stop | Malformed


def parse_decision(text: str, *, limit: int, cut: bool = False) -> Decision:
    """What the delegator decided. At most `limit` sub-queries are dispatched; `cut`: the length limit ended `text`.

    A search wins over a stop. Where its block holds no question, the stop counts if it is the later of the two or if
    every block is empty.
    """
    own, cut = own_text(text, cut=cut)
    found = search_blocks(own, cut=cut)
    questions = _distinct(question for block in found for question in block.questions)
    if questions:
        return Dispatch(questions[:limit], questions[limit:])
    stop = max((mark.start() for mark in _STOP.finditer(own)), default=-1)
    if stop != -1 and all(block.empty or block.start < stop for block in found):
        return Stop()
    if not found:
        return Malformed("neither a search block nor a stop")
    if all(block.empty for block in found):
        return Malformed("the search block is empty")
    return Malformed("no complete question in the search block")


def _distinct(questions: Iterable[str]) -> tuple[str, ...]:
    """The first spelling of each; case and closing punctuation make no difference."""
    first: dict[str, str] = {}
    for question in questions:
        first.setdefault(normal_question(question), question)
    return tuple(first.values())
