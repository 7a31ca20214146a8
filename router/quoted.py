"""The quoted strings of a list that a model wrote: JSON, Python, or something that is nearly one of them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_OPENING = re.compile(r"""[\[{(,:=\n][^\S\n]*+(?P<quote>["'“])|\}""")
_CLOSING = {
    '"': re.compile(r'\\.|"', re.DOTALL),
    "'": re.compile(r"\\.|'", re.DOTALL),
    "“": re.compile(r"\\.|”", re.DOTALL),
}
# A quote closes its string only before what may follow a string, so a bare quote within a question does no harm.
_FOLLOWS = re.compile(
    r"""\s*+(?:\Z|[\]}]|(?P<key>:)|\)\s*+(?:\Z|[\],])|,\s*+(?:\Z|["'“\[{(\]}]|-?\d|null|none|true|false))"""
    r"""|[^\S\n]*+\n\s*+["'“]""",
    re.IGNORECASE,
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Quoted:
    """One string in the place of a value."""

    text: str
    """Its text, backslash escapes undone."""
    key: str
    """The key that it stands under; empty in a list."""
    closed: bool
    """False where the text ended before the closing quote, or where it may be a key whose colon is missing."""
    exact: bool
    """False where it holds an unescaped quote of its own kind, so that it may not be one string at all."""


def quoted_strings(text: str) -> Iterator[Quoted]:
    """Every value, nested ones too, in order and in linear time; the latest key of an object governs what follows.

    Valid JSON is read as its own parser reads it, and so are Python lists but for their rarer escapes.
    """
    text = "\n" + text
    position, key = 0, ""
    while (opening := _OPENING.search(text, position)) is not None:
        if opening["quote"] is None:
            position, key = opening.end(), ""
            continue
        end, exact = _end(text, opening.end(), opening["quote"])
        string = _decoded(text[opening.end() : end])
        position = end + 1
        follows = _FOLLOWS.match(text, position)
        if follows is not None and follows["key"]:
            key = string
        elif end == len(text):
            yield Quoted(string.rstrip(" \n]})"), key, False, exact)
        else:
            yield Quoted(string, key, not _may_be_key(text, opening.start("quote"), end, key), exact)


def _end(text: str, start: int, quote: str) -> tuple[int, bool]:
    """Where the string that begins at `start` closes (the end of `text` if nowhere), and whether that is certain."""
    exact = True
    for mark in _CLOSING[quote].finditer(text, start):
        if len(mark[0]) == 1:
            if _FOLLOWS.match(text, mark.end()):
                return mark.start(), exact
            exact = False
    return len(text), exact


def _may_be_key(text: str, start: int, end: int, key: str) -> bool:
    """Whether the last thing in `text`, a string, stands where an object goes on with a key."""
    if end + 1 < len(text):
        return False
    before = text[:start].rstrip()[-1:]
    return before == "{" or (before == "," and key != "")


def _decoded(raw: str) -> str:
    return _ESCAPE.sub(_character, raw) if "\\" in raw else raw


def _character(escape: re.Match[str]) -> str:
    unicode, byte, letter = escape.groups()
    return _LETTERS.get(letter, letter) if letter else chr(int(unicode or byte, 16))
