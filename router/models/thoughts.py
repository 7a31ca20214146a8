"""Separation of a model's reasoning from its text, for all tags and tokens with which models mark
reasoning.

A thought is a passage of reasoning. Its marks are read in order: a mark opens a thought (`<think>`,
`[THINK]`), closes one, or belongs to a message of the harmony format
(`<|channel|>analysis<|message|>`). `_depth` counts the open thoughts; text at depth 0 is the
output. Rules for unclear marks:

- If a closing mark has no opening mark, and text follows it, then the chat template opened the
  thought, so all text before the mark was reasoning (`revoked`). If no text follows, the mark is
  ignored.
- A mark in quotes is text. An opening mark after words and a space (`The <think> tag`) is text too,
  unless a closing mark follows later. Until then, the text after it is kept in `_unsure`.
- When a nested thought ends, the outer thought continues. If the outer thought is never closed, its
  mark was only a mention, and everything after the nested thought is text.
- A tag that may also be part of an answer (`<plan>`, `[REASONING]`, `&lt;think&gt;`) opens a
  thought only at the start of an output, and only if it is closed later. An output that consists of
  only such an element has no text.

An output arrives in pieces. If the end of a piece may be the start of a mark, it is held back until
the next piece.
"""

import re
from itertools import islice

_STEMS = (
    r"(?:(?:chain[\s_-]?of|inner|internal|self)[\s_-]?)?(?:th(?:ink(?:ing)?|oughts?)|analysis"
    r"|reason(?:ing|s)?|reflect(?:ions?|ing)?|scratch[_-]?pad|monologue|cot)(?:-?process)?"
)
_NAME = (
    rf"(?:[^\W_]{{1,12}}+[:|_](?:of_)?|ant)?{_STEMS}"
    r"(?:[:_]\w{0,64}+)?(?:\s[^<>◁▷]{0,84}+|[/|])?[>▷]"
)
_AMBIGUOUS = (
    "(?:rationale|plan(?:ning)?|deliberat(?:e|ion|ing)|brainstorm(?:ing)?|internal|hidden|"
    "contemplat(?:e|ion|ing)|considerations?|ponder(?:ing)?|musings?|introspection|scratch(?:work)?"
    "|(?:inner|internal)[ _-]?(?:voice|dialogue|speech)"
    "|思考(?:过程|過程)?|思维(?:链|过程)|推理(?:过程)?|推論|分析|생각|추론|мысли|размышлени[ея]|"
    "рассуждени[ея]|pensamientos?|razonamiento|pensamento|raciocínio|réflexion|raisonnement)"
)
"""Names of marks that ordinary tags may also have. They mark reasoning only at the start of an
output, see `_WORDS`.
"""
_ESCAPED = "(?:th(?:ink(?:ing)?|oughts?)|reasoning|reflection|analysis)"
"""Names that mark reasoning in escaped or full-width brackets too, such as `&lt;think&gt;`."""
_AFTER_ANGLE = (
    rf"(?P<open>(?!\|?(?:end_|\w{{1,40}}_end\|))\s{{0,3}}\|?{_NAME}|\|channel>|unused94>|"
    rf"\|(?:inner_prefix|START_ACTION)\|>|\|im_start\|>think)"
    rf"|(?P<close>\|(?=\w{{1,40}}_end\|){_NAME}|\s{{0,3}}\|?(?:/\s{{0,3}}\|?|end_){_NAME}|"
    rf"channel\|>|unused95>|\|inner_suffix\|>)"
    r"|\|(?:(?P<head>start|begin|channel|constrain)|(?P<message>message|content)"
    r"|(?P<end>(?:im_)?end|return|call|eo[mst]|(?:START|END)_\w{1,20}|(?:begin|start|end)_(?:of_)?"
    r"(?:solution|text|box|answer|response|output)|(?:solution|box|answer|response|output)_"
    r"(?:start|begin|end)))\|>|(?P<ended>\|im_start\|>(?:answer|assistant|final))"
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
    rf"{_MARKS}|(?P<closed>assistantfinal|here(?:'s| is) my response:|\[BEGIN FINAL RESPONSE\]"
    rf"|</details>|<\|?/\|?{_AMBIGUOUS}\|?>|(?:&lt;|[＜〈【])/{_ESCAPED}(?:&gt;|[＞〉】])|"
    rf"\[/(?:{_STEMS}|{_AMBIGUOUS})\])",
    re.IGNORECASE,
)
"""Matches all marks, and the phrases that close a thought if a phrase in `_WORDS` has opened it."""
_WORDS = re.compile(
    r"(?:(?:analysis|commentary)(?=[^\sa-z.,:;)!?'\"-])"
    r"|(?i:here(?:'s| is) my thought process:|here are my reasoning steps:"
    rf"|(?P<odd><details type=\"reasoning\"|<\|?{_AMBIGUOUS}\|?>"
    rf"|(?:&lt;|[＜〈【]){_ESCAPED}(?:&gt;|[＞〉】])|\[(?!think(?:ing)?\])(?:{_STEMS}|{_AMBIGUOUS})\])))"
)
"""Phrases that open a thought at the start of an output. The first two are names of channels in the
harmony format, which are left over if their special tokens are missing. A tag of the group `odd`
opens a thought only if it is closed later. Elsewhere in an output, such a tag may be part of an
answer, or copied from a document.
"""
_BEGINNING = re.compile(
    r"(?:a[nalysi]{0,7}|c[omentary]{0,9}|her?e?[ 'a-z]{0,24}:?|[&<\[＜〈【][\w\s&;|=\"-]{0,32})\Z",
    re.IGNORECASE,
)
"""Matches an output that may be the start of a phrase in `_WORDS`."""
_PART = re.compile(
    r"(?:[<◁][^<>◁▷]{0,109}|<\|im_start\|>\w{0,9}|\[/?[A-Z ]{0,20})\Z", re.IGNORECASE
)
"""Matches the end of a text that may be the start of a mark."""
_LONGEST = 110
"""Max characters of a mark."""
_LONGEST_IN_WORDS = 32
"""Max characters of a phrase that closes a thought."""
_LINE = 200
"""This many characters before an opening mark decide whether the mark is only mentioned in a
sentence.
"""
_MAX_MARKS = 256
"""Max marks that are read in one output; later ones are text."""
_BRACKET = re.compile(r"[<◁\[]")
_MAX_BRACKETS = 8_192
"""Max brackets in one output that are examined as possible marks, because each may take some
microseconds.
"""
_NO_ANSWER = re.compile("analysis|commentary|think|thought|to=")
"""Matches the head of a message in the harmony format if the message contains reasoning, not the
answer.
"""
_MENTION = re.compile(r"(?:[^\s>][ \t]+<[^<]*|\S\s*[◁\[][^<◁\[]*)\Z")
"""Matches a text that ends with an opening mark after other words. Such a mark opens a thought
only if a closing mark follows later.
"""
_BEFORE = "\"'`“‘«(*"
_AFTER = "\"'`”’»)*"


class Thoughts:
    """Splits one output, which arrives in pieces, into text and reasoning. `feed` and `end` return
    two strings: the text and the reasoning that have become certain since the previous call.
    """

    def __init__(self, *, opened: bool = False) -> None:
        """`opened`: whether to assume that the chat template opened a thought. The assumption is
        dropped if the output begins with a tag.
        """
        self.revoked = False
        """Set to True when all text so far has turned out to be reasoning. The caller resets it to
        False.
        """
        self.unsettled = False
        """True after a closing mark without an opening mark, until text follows it."""
        self.revealed = False
        """True once the output shows that the chat template opened a thought."""
        self.opened = opened
        self._begins = True
        self._marks = 0
        self._brackets = 0
        self._plain = False
        self._depth = 0
        self._unsure: list[str] | None = None
        """Content of the open thought, if the thought is not certain: without a closing mark, the
        content will count as text. None if no thought is open, or if the open thought is certain.
        """
        self._head: list[str] | None = None
        self._held = ""
        self._shown = list[str]()
        """Pieces of text since the last mark."""
        self._texts = list[str]()
        self._thoughts = list[str]()
        self._mark = _MARK

    @property
    def open(self) -> bool:
        """True while a thought is open."""
        return self._depth > 0

    def feed(self, piece: str) -> tuple[str, str]:
        """Take the next piece, which must not be empty. Return the text and the reasoning that have
        become certain.
        """
        if self._plain and "<" not in piece and "[" not in piece and "◁" not in piece:
            self._shown.append(piece)
            return piece, ""
        return self._read(self._held + piece)

    def end(self, *, cut: bool = False) -> tuple[str, str]:
        """Return the text and reasoning that were held back. `cut`: True if the length limit ended
        the output; an unclosed thought then counts as reasoning.
        """
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
        """Return the position in `window` up to which brackets are read as marks."""
        left = max(0, _MAX_BRACKETS - self._brackets)
        if len(window) <= left or _brackets(window) <= left:
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
        elif words := _WORDS.match(begun):
            self._begins = False
            self._mark = _IN_WORDS
            self._depth = 1
            self._unsure = self._shown.copy() if words["odd"] else None
            self.revoke()
            self.revealed = False
        elif len(begun) > 1:
            self._begins = _BEGINNING.match(begun) is not None

    def _part(self, window: str, position: int) -> int:
        """Return the position in `window` at which a mark may begin that has not arrived
        completely. If there is none, return the length of `window`. `position`: end of the part
        that was already read.
        """
        if self._begins and len(window) != 1:
            return position
        if self._depth and self._mark is _IN_WORDS:
            return len(window) - _LONGEST_IN_WORDS
        part = _PART.search(window, max(position, len(window) - _LONGEST))
        return part.start() if part else len(window)

    def _put(self, part: str) -> None:
        """Add the characters between two marks to the text, or to the open thought."""
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
        """Apply a mark. `kind`: the name of the pattern's group that the mark matched."""
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
                self._unsure = [mark] if _MENTION.search(line + mark) else None
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
    return text.count("<") + text.count("[") + text.count("◁")
