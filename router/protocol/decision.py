"""The delegator's decision, parsed from its output: sub-queries to dispatch, or a stop (TBSS 3.1).

Parsing is total: any text gives a decision, none raises, and the time is linear in the text.
"""

import re
from collections.abc import (
    Callable,
    Iterable,
    Sequence,
)
from dataclasses import dataclass
from itertools import takewhile

from router.models.thoughts import Thoughts
from router.protocol.sub_queries import (
    normal_question,
    own_text,
    search_blocks,
)
from router.protocol.tags import Malformed

_STOP = re.compile(r"<\s*+/?\s*+stop\s*+/?\s*+>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Distinct sub-queries, in the order in which they were written."""

    sub_queries: tuple[str, ...]
    """To be worked on in parallel."""
    over_limit: tuple[str, ...]
    """Sub-queries beyond the limit, which are reported back as not dispatched."""
    managers: tuple[str, ...] = ()
    """For each of `sub_queries`, its manager or empty; no items if no block names one."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The evidence suffices."""


Decision = Dispatch | Stop | Malformed


def parse_decision(
    text: str,
    *,
    limit: int,
    cut: bool = False,
    managed: bool = False,
) -> Decision:
    """Parse the delegator's decision. `limit`: max sub-queries that are dispatched. `cut`: the
    length limit ended `text`. `managed`: blocks may name a manager, as in `<search
    manager="browser">`.

    A search wins over a stop. If no block holds a question, the stop counts if it comes after the
    blocks or if every block is empty.
    """
    attribute = "manager" if managed else ""
    own, cut = own_text(text, cut=cut, attribute=attribute)
    found_blocks = search_blocks(own, cut=cut, attribute=attribute)
    asked = _distinct(
        (question, block.manager) for block in found_blocks for question in block.questions
    )
    if asked:
        questions, managers = zip(*asked, strict=True)
        named = managers[:limit] if any(managers[:limit]) else ()
        return Dispatch(questions[:limit], questions[limit:], named)
    stop = max((mark.start() for mark in _STOP.finditer(own)), default=-1)
    if stop != -1 and all(block.empty or block.start < stop for block in found_blocks):
        return Stop()
    if not found_blocks:
        return Malformed("neither a search block nor a stop")
    if all(block.empty for block in found_blocks):
        return Malformed("the search block is empty")
    return Malformed("no complete question in the search block")


def _distinct(asked: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the first spelling of each question, with its manager; case and closing punctuation
    are ignored.
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
_MAX_READ = 50_000
"""Max characters of a block that is read early, and of all readings of it together. Beyond that,
the end of the turn is awaited, so that the time is linear in any text.
"""


class EarlyReader:
    """Reads an output piece by piece, and reports the sub-queries that are certain to be
    dispatched.

    The idea: a sub-query is certain if `parse_decision` reads it first from the block, however the
    text continues. So the unfinished block is parsed twice, as it is and with a made-up
    continuation, and the common beginning is certain. That is tried only where a question may have
    just ended: in a list or an object at the closing quote (or at what follows it, if no question
    mark precedes the quote, which may then be part of the string), in numbered or bulleted
    questions at the end of the line, and otherwise at the closing tag. Only the first block outside
    of reasoning is read, and none that names a manager. `parse_decision` on the complete output has
    the last word.
    """

    def __init__(
        self,
        limit: int,
        on_sub_queries: Callable[[tuple[str, ...]], None],
    ) -> None:
        """`limit`: as for `parse_decision`. `on_sub_queries`: called with all certain sub-queries
        whenever there are more.
        """
        self._limit = limit
        self._on_sub_queries = on_sub_queries
        self._tail = ""
        self._block = ""
        self._thoughts = Thoughts()
        self._over = False
        self._known = 0
        self._read = 0

    def feed(self, piece: str) -> None:
        """Read the next piece of the output."""
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
        """Return the text from the opening tag of the first block on; empty before it."""
        window = self._tail + piece
        if tag := _TAG.search(window):
            self._over = not tag[0].endswith(">")
            return "" if self._over else window[tag.start() :]
        self._tail = window[1 - _LONGEST_TAG :]
        return ""

    def _look(self) -> None:
        """Report the sub-queries that have become certain."""
        closing = _CLOSING.search(self._block)
        block = self._block[: closing.end()] if closing else self._block
        self._read += len(block)
        if self._over or self._read > _MAX_READ:
            self._over = True
            return
        questions = self._questions(block) if closing else self._certain(block)
        self._over = closing is not None or len(questions) == self._limit
        if len(questions) > self._known:
            self._known = len(questions)
            self._on_sub_queries(questions)

    def _certain(self, block: str) -> tuple[str, ...]:
        """Return the questions of an unclosed block that are certain however it continues."""
        before = _BEFORE_BODY.match(block)
        start = before.end() if before else 0
        if block[start : start + 1] in ("[", "{"):
            # Each question has two quotes.
            if sum(map(block.count, "\"'“”")) < 2 * (self._known + 1):
                return ()
            questions = self._questions(block if _ASKED.search(block) else block + _MORE)
            continuation = _IN_A_LIST
        elif _ITEM.match(block, start):
            questions = self._questions(block + _MORE)
            questions = tuple(takewhile(lambda question: question.endswith("?"), questions))
            continuation = _IN_LINES
        else:
            return ()
        if len(questions) <= self._known:
            return ()
        return questions[: agreeing(questions, self._questions(block + continuation))]

    def _questions(self, block: str) -> tuple[str, ...]:
        decision = parse_decision(block, limit=self._limit, cut=True)
        return decision.sub_queries if isinstance(decision, Dispatch) else ()


def agreeing(first: Sequence[object], second: Sequence[object]) -> int:
    """Return the length of the common beginning of two sequences."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
