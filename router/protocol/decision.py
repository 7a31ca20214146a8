"""Parsing of the delegator's decision from its output: sub-queries to dispatch, or a stop (TBSS
3.1).

Parsing never raises: every text gives a decision, in time that is linear in the text.
"""

import re
from collections.abc import (
    Callable,
    Iterable,
    Sequence,
)
from itertools import takewhile

from router.frozen import Frozen
from router.models.thoughts import Thoughts
from router.protocol.sub_queries import (
    normal_question,
    own_text,
    search_blocks,
)
from router.protocol.tags import Malformed

_STOP = re.compile(r"<\s*+/?\s*+stop\s*+/?\s*+>", re.IGNORECASE)


class Dispatch(Frozen):
    """Decision to let executors work on sub-queries. The sub-queries are distinct, in the order in
    which the delegator wrote them.
    """

    sub_queries: tuple[str, ...]
    """Sub-queries to work on in parallel."""
    over_limit: tuple[str, ...]
    """Sub-queries beyond the limit. They are not dispatched; the next message to the delegator
    lists them.
    """
    managers: tuple[str, ...] = ()
    """For each of `sub_queries`, the name of the manager that should work on it, or an empty string
    for the default manager. The tuple is empty if no block names a manager.
    """


class Stop(Frozen):
    """Decision to end the search, because the evidence suffices."""


Decision = Dispatch | Stop | Malformed


def parse_decision(
    text: str,
    *,
    limit: int,
    cut: bool = False,
    managed: bool = False,
) -> Decision:
    """Parse the delegator's decision.

    `limit`: max sub-queries that are dispatched. `cut`: whether the length limit ended `text`.
    `managed`: whether a block may name a manager: `<search manager="browser">`.

    If the text contains both questions and a stop, the stop is ignored. If no block has a question,
    a stop counts only if each block is empty or begins before the last stop tag.
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
    """Return the distinct pairs of a question and its manager. Questions that differ only in case,
    space and closing punctuation count as the same question, in its first spelling.
    """
    first = dict[tuple[str, str], tuple[str, str]]()
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
"""`_LONGEST_BLOCK`: max characters of a block that is read early. `_MAX_READ`: max characters of
all readings of the block together. Beyond these limits, `EarlyReader` stops, so that its time is
linear in the length of any text.
"""


class EarlyReader:
    """Reads the delegator's output piece by piece while it is written, and reports the sub-queries
    that are certain to be dispatched.

    The idea: a sub-query is certain if `parse_decision` reads it from the block, no matter how the
    text continues. So the unfinished block is parsed twice: once unchanged, and once with a made-up
    continuation. The first sub-queries count as certain as far as both results agree.

    To save time, this is done only where a question may have just ended:

    - In a list or an object, at a closing quote after a question mark. Without the question mark,
      the quote may be part of the string, so the reader waits for the character after the quote.
    - In numbered or bulleted questions, at the end of the line.
    - In all other blocks, at the closing tag.

    Only the first block outside of reasoning is read, and it is ignored if it names a manager. In
    the end, only the result of `parse_decision` on the complete output decides what is dispatched.
    """

    def __init__(
        self,
        limit: int,
        on_sub_queries: Callable[[tuple[str, ...]], None],
    ) -> None:
        """`limit`: max sub-queries that are dispatched. `on_sub_queries`: called with all certain
        sub-queries each time that their number grows.
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
        """Read the next piece of the output, and report sub-queries that have become certain."""
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
        """Return the text from the opening tag of the first block on. Return an empty string while
        the tag has not arrived.
        """
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
        """Return the questions of an unclosed block that are certain, however the block continues.
        Return an empty tuple if there are no more of them than at the last call.
        """
        before = _BEFORE_BODY.match(block)
        start = before.end() if before else 0
        if block[start : start + 1] in ("[", "{"):
            # Each question needs two quotes, so with fewer quotes there is no further question.
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
    """Return the number of leading items in which two sequences are equal."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
