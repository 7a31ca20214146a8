"""Separate a model's reasoning from its text, in any of the spellings that mark it.

Marks are read one after the other: a mark opens a thought (`<think>`, `[THINK]`), closes one, or
belongs to a message of the harmony format (`<|channel|>analysis<|message|>`). `_depth` counts open
thoughts; text at depth 0 is the output. Rules for unclear marks:

- A closing mark without an opening one, and text after it: the chat template opened the thought,
  so all text before it was reasoning (`revoked`). Without text after it, it is ignored.
- A mark in quotes is text. So is an opening mark after words and a space (`The <think> tag`),
  unless it is closed later; until then its text is kept as `_unsure`.
- After the end of a nested thought the outer one continues; if that is never closed, it was only
  mentioned, and the rest is text.

An output arrives in pieces, so a possible start of a mark at the end of a piece is held back.
"""

import re
from itertools import islice

_NAME = (
    r"(?:[^\W_]{1,12}+[:|_](?:of_)?|ant)?(?:(?:chain_of_)?th(?:ink(?:ing)?|oughts?)|reason(?:ing|"
    r"s)?|reflect(?:ion)?|analysis|scratchpad"
    r"|(?:inner_)?monologue|cot)(?:[:_]\w{0,64}+)?(?:\s[^<>◁▷]{0,84}+|[/|])?[>▷]"
)
_AFTER_ANGLE = (
    rf"(?P<open>(?!\|?(?:end_|\w{{1,40}}_end\|))\s{{0,3}}\|?{_NAME}|\|channel>|unused94>|"
    rf"\|inner_prefix\|>)"
    rf"|(?P<close>\|(?=\w{{1,40}}_end\|){_NAME}|\s{{0,3}}\|?(?:/\s{{0,3}}\|?|end_){_NAME}|"
    rf"channel\|>|unused95>|\|inner_suffix\|>)"
    r"|\|(?:(?P<head>start|begin|channel|constrain)|(?P<message>message|content)"
    r"|(?P<end>(?:im_)?end|return|call|eo[mst]|(?:START|END)_\w{1,20}|(?:begin|"
    r"end)_of_(?:solution|text)))\|>"
)
_BRACKETS = (
    r"(?<=\[)(?:(?P<opens>THINK(?:ING)?\])|(?P<closes>/THINK(?:ING)?\])|(?P<ends>END FINAL "
    r"RESPONSE\]))"
)
_MARKS = (
    r"[<◁\[](?=[\s|/]{0,8}\w)"
    rf"(?:(?<=[<◁])(?=[^<>◁▷]{{1,200}}+[>▷])(?:{_AFTER_ANGLE})|{_BRACKETS})"
)
_MARK = re.compile(_MARKS, re.IGNORECASE)
_IN_WORDS = re.compile(
    rf"{_MARKS}|(?P<closed>assistantfinal|here(?:'s| is) my response:|\[BEGIN FINAL RESPONSE\])",
    re.IGNORECASE,
)
"""All marks, and words that close a thought which words have opened."""
_WORDS = re.compile(
    r"(?:(?:analysis|commentary)(?=[^\sa-z.,:;)!?'\"-])"
    r"|(?i:here(?:'s| is) my thought process:|here are my reasoning steps:))"
)
"""Words that open a thought; the first two are harmony's channels without their special tokens."""
_ALL_WORDS = (
    "analysis",
    "commentary",
    "here is my thought process:",
    "here's my thought process:",
    "here are my reasoning steps:",
)
_PART = re.compile(r"(?:[<◁][^<>◁▷]{0,109}|\[/?[A-Z ]{0,20})\Z", re.IGNORECASE)
"""A possible start of a mark at the end of a text."""
_LONGEST = 110
"""Max characters of a mark."""
_LONGEST_IN_WORDS = 32
"""Max characters of words that close a thought."""
_LINE = 200
"""Characters before an opening mark that may show it to be a mention."""
_MAX_MARKS = 256
"""Max marks of one output that are read."""
_BRACKET = re.compile(r"[<◁\[]")
_MAX_BRACKETS = 8_192
"""Max brackets of one output that are read as marks, as each may take some microseconds."""
_NO_ANSWER = re.compile("analysis|commentary|think|thought|to=")
"""Marks the head of a harmony message as reasoning."""
_MENTION = re.compile(r"[^\s>][ \t]+\Z")
_BEFORE = "\"'`“‘«(*"
_AFTER = "\"'`”’»)*"


class Thoughts:
    """Reader of one output in pieces; each call returns the next text and thoughts."""

    def __init__(self, *, opened: bool = False) -> None:
        """`opened`: whether the chat template opened a thought, unless the output begins with a
        tag.
        """
        self.revoked = False
        """True once all text so far turns out to be reasoning; the caller resets it."""
        self.unsettled = False
        """True after a closing mark without an opening one, until text follows."""
        self.revealed = False
        """True once the output shows that the chat template opened a thought."""
        self.opened = opened
        self._begins = True
        self._marks = 0
        self._brackets = 0
        self._plain = False
        self._depth = 0
        self._unsure: list[str] | None = None
        """The open thought, if it is text unless it is closed; else None."""
        self._head: list[str] | None = None
        self._held = ""
        self._shown: list[str] = []
        """Text since the last mark."""
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._mark = _MARK

    @property
    def open(self) -> bool:
        """True within a thought."""
        return self._depth > 0

    def feed(self, piece: str) -> tuple[str, str]:
        """Take the next piece, which is not empty."""
        if self._plain and "<" not in piece and "[" not in piece and "◁" not in piece:
            self._shown.append(piece)
            return piece, ""
        return self._read(self._held + piece)

    def end(self, *, cut: bool = False) -> tuple[str, str]:
        """Return the rest. `cut`: the length limit ended the output, so an open thought is one."""
        text, thought = self._read(self._held, last=True)
        return text + "".join(() if cut else self._unsure or ()), thought

    def _read(self, window: str, *, last: bool = False) -> tuple[str, str]:
        self._texts = []
        self._thoughts = []
        if self._begins:
            if not self._shown:
                begun = window.lstrip()
                self._texts.append(window[: len(window) - len(begun)])
                window = begun
            self._begin(window)
        position = 0
        hold: int | None = None
        for mark in self._mark.finditer(window, 0, self._end_of_marks(window)):
            self._marks += 1
            if self._marks > _MAX_MARKS:
                break
            self._put(window[position : mark.start()])
            position = mark.start()
            if not self._depth and self._shown and self._shown[-1][-1] in _BEFORE:
                if mark.end() == len(window) and not last:
                    hold = position
                    break
                if window[mark.end() : mark.end() + 1] in _AFTER:
                    continue
            if mark.lastgroup == "closed" and not self._depth:
                continue
            position = mark.end()
            self._take(mark.lastgroup or "", mark[0])
        if last:
            hold = len(window)
        elif hold is None:
            hold = max(position, self._part(window, position))
        self._put(window[position:hold])
        self._held = window[hold:]
        self._brackets += _brackets(window[:hold])
        self._plain = not (self._depth or self._held or self._begins or self.unsettled)
        return "".join(self._texts), "".join(self._thoughts)

    def _end_of_marks(self, window: str) -> int:
        """Return the position after which no brackets are read as marks."""
        left = max(0, _MAX_BRACKETS - self._brackets)
        if _brackets(window) <= left:
            return len(window)
        return next(islice(_BRACKET.finditer(window), left, None)).start()

    def _begin(self, window: str) -> None:
        """Decide whether the output begins with a thought."""
        begun = "".join(self._shown) + window
        if self.opened and begun:
            self._begins = False
            if begun[0] not in "<[◁":
                self._depth = 1
                self._unsure = []
        elif _WORDS.match(begun):
            self._begins = False
            self._mark = _IN_WORDS
            self._depth = 1
            self.revoke()
            self.revealed = False
        elif len(begun) > 1:
            self._begins = any(words.startswith(begun.casefold()) for words in _ALL_WORDS)

    def _part(self, window: str, position: int) -> int:
        """Return the start of a possible mark at the end of `window`."""
        if self._begins and len(window) != 1:
            return position
        if self._depth and self._mark is _IN_WORDS:
            return len(window) - _LONGEST_IN_WORDS
        part = _PART.search(window, max(position, len(window) - _LONGEST))
        return part.start() if part else len(window)

    def _put(self, part: str) -> None:
        """Add a part between marks to the text or the open thought."""
        if self.unsettled and not self._depth:
            part = part.lstrip()
            if part:
                self.revoke()
        if not part:
            return
        if not self._depth:
            self._texts.append(part)
            self._shown.append(part)
            return
        (self._thoughts if self._head is None else self._head).append(part)
        if self._unsure is not None:
            self._unsure.append(part)

    def _take(self, kind: str, mark: str) -> None:
        """Apply a mark. `kind`: the group of the pattern that it matched."""
        head = self._head
        self._head = None
        if mark.endswith("/>") or (kind == "message" and head is None and self._depth):
            return
        if kind == "message":
            self._depth = int(_NO_ANSWER.search("".join(head or ()).lower()) is not None)
            self._unsure = None
            if not self._depth:
                self.revoke()
        elif kind.startswith("open") or (kind == "head" and not self._depth):
            if not self._depth:
                line = "".join(self._shown)[-_LINE:]
                sure = (mark[0] == "<" and not _MENTION.search(line)) or not line.strip()
                self._unsure = None if sure else [mark]
            elif self._unsure is not None:
                self._unsure.append(mark)
            self._depth += 1
        elif kind.startswith("end"):
            self._depth = 0
            self._unsure = None
        elif kind.startswith("close") and self._depth:
            self._depth -= 1
            self._unsure = [] if self._depth else None
        elif kind == "close" and mark[0] == "<":
            self.unsettled = True
        if kind == "head":
            self._head = head or []
        self._shown = []

    def revoke(self) -> None:
        """Turn all text so far into reasoning."""
        self.revoked = True
        self.revealed = True
        self.unsettled = False
        self._thoughts += self._texts
        self._texts = []


def _brackets(text: str) -> int:
    return sum(map(text.count, "<[◁"))
