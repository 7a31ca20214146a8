"""Reading of the `<search>` blocks in a turn of the delegator or an executor, and of the questions
in them.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from router.protocol.tags import (
    Block,
    blocks,
    one_line,
    without_thinking,
)

_OPENING = re.compile(r"""[\[{(,:=\n][^\S\n]*+(?P<quote>["'“])|\}""")
_CLOSING = {
    '"': re.compile(r'\\.|"', re.DOTALL),
    "'": re.compile(r"\\.|'", re.DOTALL),
    "“": re.compile(r"\\.|”", re.DOTALL),
}
# A quote closes its string only if the text after it may follow a string. So an unescaped quote
# within a question does no harm.
_FOLLOWS = re.compile(
    r"""\s*+(?:\Z|[\]}]|(?P<key>:)|\)\s*+(?:\Z|[\],])"""
    r"""|,\s*+(?:\Z|["'“\[{(\]}]|-?\d|null|none|true|false))"""
    r"""|[^\S\n]*+\n\s*+["'“]""",
    re.IGNORECASE,
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


class QuotedString(NamedTuple):
    """A quoted string value (not a key) in JSON-like text."""

    text: str
    """The string's text, with backslash escapes resolved."""
    key: str
    """The string's key in an object; empty for an item of a list."""
    closed: bool
    """False if the text ended before the closing quote, or if the string may be a key whose colon
    is missing because the text ended.
    """
    exact: bool
    """False if the string contains an unescaped quote of the same kind, so that it may in fact be
    several strings.
    """


def quoted_strings(text: str) -> Iterator[QuotedString]:
    """Yield every string value in JSON-like text, including nested values, in order. The `key` of a
    value is the last key that was read before it. Takes linear time.

    Valid JSON is read as a JSON parser reads it. So are Python lists, except for rare escapes.
    """
    text = "\n" + text
    position = 0
    key = ""
    while (opening := _OPENING.search(text, position)) is not None:
        if opening["quote"] is None:
            position = opening.end()
            key = ""
            continue
        end, exact = _end(text, opening.end(), opening["quote"])
        string = _decoded(text[opening.end() : end])
        position = end + 1
        follows = _FOLLOWS.match(text, position)
        if follows is not None and follows["key"]:
            key = string
        elif end == len(text):
            yield QuotedString(
                string.rstrip(" \n]})"),
                key,
                False,
                exact,
            )
        else:
            yield QuotedString(
                string,
                key,
                not _may_be_key(
                    text,
                    opening.start("quote"),
                    end,
                    key,
                ),
                exact,
            )


def _end(
    text: str,
    start: int,
    quote: str,
) -> tuple[int, bool]:
    """Return the position of the closing quote of the string that begins at `start`, or the end of
    `text` if nothing closes the string. Also return `QuotedString.exact`: True if no earlier quote
    might have closed the string.
    """
    exact = True
    for mark in _CLOSING[quote].finditer(text, start):
        if len(mark[0]) == 1:
            if _FOLLOWS.match(text, mark.end()):
                return mark.start(), exact
            exact = False
    return len(text), exact


def _may_be_key(
    text: str,
    start: int,
    end: int,
    key: str,
) -> bool:
    """Return whether `text` ends with the string from `start` to `end`, and this string is at a
    place where an object would have a key.
    """
    if end + 1 < len(text):
        return False
    before = text[:start].rstrip()[-1:]
    return before == "{" or (before == "," and key != "")


def _decoded(raw: str) -> str:
    return _ESCAPE.sub(_character, raw) if "\\" in raw else raw


def _character(escape: re.Match[str]) -> str:
    unicode, byte, letter = escape.groups()
    return _LETTERS.get(letter, letter) if letter else chr(int(unicode or byte, 16))


LONGEST_QUESTION = 2000
"""Max characters of a question. A longer text does not count as a question."""

_KEYS = frozenset(
    "query queries question questions subquery subqueries subquestion subquestions "
    "search searches searchquery searchqueries request requests text input q".split()
)
_FEWEST_DIGITS = 3
"""A question without letters, such as an ISBN, must have at least this many digits."""
_NOTHING = frozenset({"none", "null", "n/a"})
_FENCE = re.compile(
    r"^[^\S\n]*+```(?:json|python|text|plaintext|markdown|xml)?|```[^\S\n]*+$",
    re.IGNORECASE | re.MULTILINE,
)
_ITEM_TAG = re.compile(
    r"<\s*+/?\s*+(?:sub[-_]?)?(?:query|queries|questions?|request)\s*+>", re.IGNORECASE
)
_OPENS_TEXT = re.compile(r"""\(?\s*+["'“]""")
_OPENS_LIST = re.compile(r"""[\[{]\s*+["'“]""")
_MARKER = re.compile(
    r"(?:[-*+•–—]\s+|\(?\d{1,2}[.)]\s+|\(?[a-h]\)\s+|(?:Q|(?:sub[-_ ]?)?(?:query|"
    r"question))\s*+\d*+\s*+[:.)]\s*+)+",
    re.IGNORECASE,
)
_BOLD = re.compile(r"(\w\*\*(?=\w)|\d \*\* (?=\d))|\*\*")
"""Matches Markdown's marks of bold text. If the group matched, the mark is an exponentiation, and
not bold text.
"""
_NEXT_ON_LINE = re.compile(r"(?<=\?)\s++(?=\(?\d{1,2}[.)]\s)")


def read_questions(body: str, *, partial: bool) -> list[str]:
    """Return the questions in the body of a `<search>` block, in order, with repetitions. They are
    unescaped, and each is on one line. Never raises, and takes linear time.

    `partial`: whether the block ended before its closing tag. Then the last question counts only if
    it ends with a closing quote or a question mark.
    """
    body = (_FENCE.sub("\n", body) if "```" in body else body).strip()
    if not (_OPENS_TEXT.match(body) or _OPENS_LIST.search(body)):
        body = _ITEM_TAG.sub("\n", body).strip()
    return [question for text in _texts(body, partial) if _is_question(question := one_line(text))]


def _is_question(text: str) -> bool:
    # A number, such as 978-3-16-148410-0, may be a question, but a list of numbers may not
    is_number = sum(map(str.isdigit, text)) >= _FEWEST_DIGITS and ", " not in text
    return (
        len(text) <= LONGEST_QUESTION
        and (is_number or any(map(str.isalpha, text)))
        and text.casefold().rstrip(".") not in _NOTHING
        and not (text.endswith(":") and _names_questions(text))
    )


def _texts(body: str, partial: bool) -> list[str]:
    if _OPENS_TEXT.match(body):
        strings = list(quoted_strings(body))
        listed = bool(strings) and strings[0].closed and all(string.exact for string in strings)
        if listed or (partial and body.startswith("(")):
            return _asked(strings, partial)
    listed = _OPENS_LIST.search(body) is not None
    if listed or body.startswith(("[", "{")):
        strings = list(quoted_strings(body))
        if strings or listed:
            return _asked(strings, partial)
        bare = body.strip("[]{} \n")
        body = body if "]" in bare else bare.replace("?, ", "?\n")
    return _from_lines(body, partial)


def _asked(strings: Sequence[QuotedString], partial: bool) -> list[str]:
    """Return the strings that are items of a list, or whose key means a question, such as `query`.
    If there are none, return all strings that end with a question mark.
    """
    complete = [string for string in strings if string.closed or not partial]
    named = [_unwrapped(string.text) for string in complete if _names_questions(string.key)]
    return named or [string.text for string in complete if string.text.rstrip().endswith("?")]


def _unwrapped(text: str) -> str:
    """Return a string without the tags of an element around it, such as `<query>`. If the string
    does not begin with such a tag, tags in it belong to the question and are kept.
    """
    return _ITEM_TAG.sub("", text) if _ITEM_TAG.match(text) else text


def _names_questions(key: str) -> bool:
    letters = "".join(filter(str.isalpha, key.casefold()))
    return not letters or letters in _KEYS


def _from_lines(body: str, partial: bool) -> list[str]:
    """Return the questions in a text without quotes: one per line or list item. Headings, and
    remarks between questions, are left out.
    """
    lines = _NEXT_ON_LINE.sub("\n", body).splitlines()
    lines = [_BOLD.sub(r"\1", line).strip() for line in lines]
    lines = [line for line in lines if len(lines) == 1 or not line.endswith(":")]
    marked = any(_MARKER.match(line) for line in lines)
    asking = any(_asks(line) for line in lines)
    if asking and not marked:
        lines = [line for line in lines if not line.endswith(".")]
    items = [_item(text) for text in (_grouped(lines, marked) if marked or asking else lines)]
    items = [item for item in items if item]
    return items[:-1] if partial and items and not _asks(items[-1]) else items


def _grouped(lines: Sequence[str], marked: bool) -> list[str]:
    """Join lines to items, as an item may span several lines. An item ends at a question mark, at
    an empty line, or at the marker of the next item. `marked`: whether items begin with a marker.
    """
    items = list[list[str]]()
    unfinished = False
    for line in lines:
        if _MARKER.match(line) or (line and not unfinished and (_asks(line) or not marked)):
            items.append([line])
        elif line and unfinished:
            items[-1].append(line)
        else:
            unfinished = False
            continue
        unfinished = not _asks(line)
    return [" ".join(item) for item in items]


def _asks(line: str) -> bool:
    return line.rstrip("\"'”`*,; ").endswith("?")


def _item(text: str) -> str:
    """Return a list item without its marker, trailing comma and surrounding quotes. A single
    opening quote is removed too.
    """
    text = _MARKER.sub("", text, count=1) if _MARKER.match(text) else text
    text = text.strip().rstrip(",;")
    text = text[:-1] if text.endswith("?*") else text
    if text.startswith('"') and text.count('"') == 1:
        return text[1:]
    quoted = text[:1] + text[-1:] in {'""', "''", "“”", "``", "**"} and text[0] not in text[1:-1]
    return text[1:-1] if quoted else text


_RESULTS = re.compile(
    r"<\s*+(?:search_results|results?|documents?|information|tool_response)\b", re.IGNORECASE
)
_OTHER_TAG = re.compile(r"<\s*+/?\s*+(?:stop|answer)\s*+/?\s*+>", re.IGNORECASE)
_CLOSING_TAG = "</search>"
_FIRST_TAG = re.compile(
    r"<\s{0,9}+/?+\s{0,9}+(?:search|stop|answer|evidence|escalate)\b", re.IGNORECASE
)
_FURTHEST_TAG = 200_000
_LONGEST_OWN = 20_000
"""`_FURTHEST_TAG`: max position of the first tag. `_LONGEST_OWN`: max characters that are read from
the first tag on. Real decisions and reports are far shorter, and this many characters are parsed
within milliseconds.
"""


class SearchBlock(NamedTuple):
    """A parsed `<search>` block."""

    start: int
    """Position of the block's opening tag in the text that `own_text` returns."""
    empty: bool
    """True if the block contains nothing but white space."""
    questions: tuple[str, ...]
    """The block's questions; empty if none could be parsed."""
    manager: str = ""
    """Name of the manager that the opening tag names; empty for none."""


def own_text(
    text: str,
    *,
    cut: bool,
    attribute: str = "",
) -> tuple[str, bool]:
    """Return the part of a turn that contains the model's decision or report, and whether the end
    of this part is missing.

    Three parts of the turn are left out: the reasoning, everything before the first tag, and
    everything from a tag for search results on. If a model was not stopped after its search, it
    invents such results, and the text after them is based on invented results.

    `cut`: whether the length limit ended `text`. If the part is too long, it is cut off too, and
    its end counts as missing. `attribute`: the attribute that `<search>` tags may have; empty for
    none.
    """
    visible = without_thinking(text)
    tag = _FIRST_TAG.search(visible, 0, _FURTHEST_TAG)
    start = tag.start() if tag else len(visible)
    cut = cut or len(visible) - start > _LONGEST_OWN
    visible = visible[start : start + _LONGEST_OWN]
    first = next(blocks(visible, "search", attribute), None)
    invented = _RESULTS.search(visible, first.start) if first else None
    return (visible[: invented.start()], False) if invented else (visible, cut)


def search_blocks(
    own: str,
    *,
    cut: bool,
    attribute: str = "",
) -> list[SearchBlock]:
    """Return all `<search>` blocks in `own`, the text that `own_text` returned. If `cut` is false,
    a last block without a closing tag counts as closed, because a stop string ended the output.
    """
    search_tags = list(blocks(own, "search", attribute))
    return [
        _read(block, ended=number == len(search_tags) and not cut)
        for number, block in enumerate(search_tags, start=1)
    ]


def _read(block: Block, *, ended: bool) -> SearchBlock:
    """Parse a `<search>` block. `ended`: True if the block is complete, even if it has no closing
    tag. If another tag ends the block, it is parsed as incomplete, because the model has often only
    mentioned `<search>`.
    """
    body = block.body
    ended = ended or block.closed
    other = _OTHER_TAG.search(body)
    if other is not None and (not block.closed or other.start() == 0):
        body = body[: other.start()]
        ended = False
    tail = "".join(body[body.rfind("<") :].split()).casefold() if "<" in body[-20:] else ""
    if len(tail) > 1 and _CLOSING_TAG.startswith(tail):
        body = body[: body.rfind("<")]
        ended = True
    return SearchBlock(
        block.start,
        not body.strip(),
        tuple(read_questions(body, partial=not ended)),
        block.named,
    )


def normal_question(question: str) -> str:
    """Return the normal form of a question. Questions that differ only in case, surplus space and
    closing punctuation have the same normal form.
    """
    return " ".join(question.casefold().split()).rstrip(" ?!.,;:…")
