"""The delegator's decision, read from its output: sub-queries to dispatch, or a stop (TBSS 3.1).

Reading is total: any text gives a decision, none raises, and the time is linear in the text.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from router.models.thoughts import Thoughts
from router.protocol.sub_queries import normal_question, own_text, search_blocks
from router.protocol.tags import Malformed

_STOP = re.compile(r"<\s*+/?\s*+stop\s*+/?\s*+>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Sub-queries, all different, in the order in which they were written."""

    sub_queries: tuple[str, ...]
    """To be run in parallel."""
    over_limit: tuple[str, ...]
    """Too many for one block: to be reported back as not dispatched."""
    managers: tuple[str, ...] = ()
    """For each of `sub_queries`, the manager that it is for, or empty; none at all where no
    block names one.
    """


@dataclass(frozen=True, slots=True)
class Stop:
    """The evidence suffices."""


Decision = Dispatch | Stop | Malformed


def parse_decision(text: str, *, limit: int, cut: bool = False, managed: bool = False) -> Decision:
    """Read the delegator's decision. At most `limit` sub-queries are dispatched; `cut`: the length
    limit ended `text`; `managed`: whether a block may name a manager, as `<search
    manager="browser">`.

    A search wins over a stop. Where its block holds no question, the stop counts if it is the later
    of the two or if every block is empty.
    """
    attribute = "manager" if managed else ""
    own, cut = own_text(text, cut=cut, attribute=attribute)
    found = search_blocks(own, cut=cut, attribute=attribute)
    asked = _distinct((question, block.manager) for block in found for question in block.questions)
    if asked:
        questions, managers = zip(*asked, strict=True)
        return Dispatch(
            questions[:limit], questions[limit:], managers[:limit] if any(managers[:limit]) else ()
        )
    stop = max((mark.start() for mark in _STOP.finditer(own)), default=-1)
    if stop != -1 and all(block.empty or block.start < stop for block in found):
        return Stop()
    if not found:
        return Malformed("neither a search block nor a stop")
    if all(block.empty for block in found):
        return Malformed("the search block is empty")
    return Malformed("no complete question in the search block")


def _distinct(asked: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The first spelling of each question, with its manager; case and closing punctuation make
    no difference.
    """
    first: dict[tuple[str, str], tuple[str, str]] = {}
    for question, manager in asked:
        first.setdefault((normal_question(question), manager), (question, manager))
    return list(first.values())


_TAG = re.compile(r"<\s{0,4}search(?:\s{0,4}>|\s{1,4}manager)", re.IGNORECASE)
_LONGEST_TAG = 22
_CLOSING = re.compile(r"<\s*+/\s*+search\s*+>", re.IGNORECASE)
_BEFORE_BODY = re.compile(r"<[^>]*+>\s*+(?:```[a-z]*+\s*+)?+", re.IGNORECASE)
_ITEM = re.compile(r"[-*+•–]\s|\(?\d{1,2}[.)]\s")
_MARK = re.compile("""["'”\\]}\n>]""")
_ASKED = re.compile("""[?？؟]["'”]\\s*+\\Z""")
_IN_A_LIST = ', "query": "x y"'
_IN_LINES = "\n- x y?\n"
_MORE = "x"
_LONGEST_BLOCK = 20_000
_MOST_READ = 50_000
"""Characters of a block that is read early, and of all looks at it together: beyond, the end of the
turn is waited for, so that the time is linear in the text whatever it holds.
"""


class EarlyReader:
    """Takes one output piece by piece; `parse_decision`, which reads it whole, stays the judge.

    Only the first search block outside of thinking is read, and none if that names a manager.
    Certain are the sub- queries that `parse_decision` finds first in it in whichever way it may go
    on: in a list or an object from the closing quote on or, where no question mark stands before
    it, so that it may stand within the string, from what follows it; in numbered or bulleted
    questions from the end of the line on; otherwise from the closing tag on.
    """

    def __init__(self, limit: int, tell: Callable[[tuple[str, ...]], None]) -> None:
        """`limit`: as for `parse_decision`. `tell` gets all that are certain whenever there are
        more.
        """
        self._limit = limit
        self._tell = tell
        self._tail = ""
        self._block = ""
        self._thoughts = Thoughts()
        self._over = False
        self._known = self._read = 0

    def feed(self, piece: str) -> None:
        """Take the next piece of the text."""
        if self._over or not piece:
            return
        piece, _ = self._thoughts.feed(piece)
        if not self._block:
            piece = self._opened(piece)
            self._thoughts.revoked = False
        self._over |= self._thoughts.revoked
        self._block += piece
        if len(self._block) > _LONGEST_BLOCK:
            self._over = True
        elif _MARK.search(piece):
            self._look()

    def _opened(self, piece: str) -> str:
        """The text from the opening tag of the first block on; empty while there is none."""
        window = self._tail + piece
        if tag := _TAG.search(window):
            self._over = not tag[0].endswith(">")
            return "" if self._over else window[tag.start() :]
        self._tail = window[1 - _LONGEST_TAG :]
        return ""

    def _look(self) -> None:
        """Tell of what has become certain."""
        closing = _CLOSING.search(self._block)
        block = self._block[: closing.end()] if closing else self._block
        self._read += len(block)
        if self._over or self._read > _MOST_READ:
            self._over = True
            return
        found = self._questions(block) if closing else self._certain(block)
        self._over = closing is not None or len(found) == self._limit
        if len(found) > self._known:
            self._known = len(found)
            self._tell(found)

    def _certain(self, block: str) -> tuple[str, ...]:
        """The questions found in an unclosed block however it goes on."""
        before = _BEFORE_BODY.match(block)
        start = before.end() if before else 0
        if block[start : start + 1] in ("[", "{"):
            # Each has a quote on either side
            if sum(map(block.count, "\"'“”")) < 2 * (self._known + 1):
                return ()
            found = self._questions(block if _ASKED.search(block) else block + _MORE)
            other = _IN_A_LIST
        elif _ITEM.match(block, start):
            found = self._questions(block + _MORE)
            found = found[
                : next((at for at, text in enumerate(found) if not text.endswith("?")), len(found))
            ]
            other = _IN_LINES
        else:
            return ()
        return (
            found[: agreeing(found, self._questions(block + other))]
            if len(found) > self._known
            else ()
        )

    def _questions(self, block: str) -> tuple[str, ...]:
        decision = parse_decision(block, limit=self._limit, cut=True)
        return decision.sub_queries if isinstance(decision, Dispatch) else ()


def agreeing(first: Sequence[object], second: Sequence[object]) -> int:
    """Return the length of the common beginning of two sequences."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
