"""Streaming of the answer while the answerer writes it. Text that may still change is held back."""

import re
from collections.abc import Callable

from router.protocol.decision import agreeing
from router.protocol.tags import unescape
from router.protocol.turns import may_be_markup
from router.trace.declining import may_decline

_OPENING = "<answer>"
_UNCERTAIN = re.compile(r"[<&][^<&]{0,11}\Z|\s+\Z")
"""Matches the end of a text that must not be passed on yet: trailing white space, or characters
that may begin a tag or an HTML entity.
"""

Emit = Callable[[int, str], None]
"""Callback for each change of the answer so far. Arguments: a number n, and a text. The first n
characters of the answer so far stay valid, and the text now follows them. All characters that were
passed on stay valid, unless the answer is written again and differs.
"""


class AnswerStream:
    """Reads the answerer's output piece by piece, and passes the answer on.

    After a failed call, the answerer writes its output again. Nothing is passed on twice while the
    new output is the same as the old one. From the first difference on, the answer is replaced.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._sent = ""

    def attempt(self) -> Callable[[str], None]:
        """Return a function to call with each piece of the output, for one attempt of the call."""
        return _Reader(self.show).feed

    def show(self, answer: str, last: bool = False) -> None:
        """Pass on the changes since the last call. `answer`: the whole answer so far. `last`:
        whether the answer is complete.
        """
        if not last and (may_be_markup(answer) or may_decline(answer)):
            return  # the final answer may lack this markup, or be the fixed text for "not found"
        sent = self._sent
        if sent.startswith(answer) and not last:
            return
        stay = agreeing(sent, answer)
        self._sent = answer
        if stay < max(len(sent), len(answer)):
            self._emit(stay, answer[stay:])


class _Reader:
    """Finds the answer in an output that arrives in pieces."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._unread = ""
        self._answer = ""
        self._open = False
        self._over = False

    def feed(self, piece: str) -> None:
        """Read the next piece of the output."""
        self._unread += piece
        if not self._open:
            before, opening, self._unread = self._unread.partition(_OPENING)
            if not opening:
                self._unread = before[-len(_OPENING) :]
                return
            self._open = True
        if self._over or not piece:
            return
        text, closing, _ = self._unread.partition("</answer>")
        self._over = bool(closing)
        held = None if closing else _UNCERTAIN.search(text, max(0, len(text) - 12))
        self._unread = text[held.start() :] if held else ""
        words = unescape(text[: held.start()] if held else text)
        joined = re.sub(r"\s+", " ", words)
        apart = self._answer and not self._answer.endswith(" ")
        self._answer += joined if apart else joined.lstrip()
        self._show(self._answer.rstrip())
