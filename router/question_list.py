"""The questions of a search block, in whichever of the usual ways a model wrote them down."""

import re
from collections.abc import Sequence

from router.markup import one_line
from router.quoted import Quoted, quoted_strings

LONGEST_QUESTION = 2000
"""Characters; what is longer is not a question."""

_KEYS = frozenset(
    {"query", "queries", "question", "questions", "subquery", "subqueries", "subquestion", "subquestions", "search"}
    | {"searches", "searchquery", "searchqueries", "request", "requests", "text", "input", "q"}
)
_NOTHING = frozenset({"none", "null", "n/a"})
_FENCE = re.compile(r"```(?:json|python|text|plaintext|markdown|xml)?", re.IGNORECASE)
_ITEM_TAG = re.compile(r"<\s*+/?\s*+(?:sub[-_]?)?(?:query|queries|questions?|request)\s*+>", re.IGNORECASE)
_OPENS_TEXT = re.compile(r"""\(?\s*+["'“]""")
_OPENS_LIST = re.compile(r"""[\[{]\s*+["'“]""")
_MARKER = re.compile(
    r"(?:[-*+•–—]\s+|\(?\d{1,2}[.)]\s+|\(?[a-h]\)\s+|(?:Q|(?:sub[-_ ]?)?(?:query|question))\s*+\d*+\s*+[:.)]\s*+)+",
    re.IGNORECASE,
)
_NEXT_ON_LINE = re.compile(r"(?<=\?)\s++(?=\(?\d{1,2}[.)]\s)")


def read_questions(body: str, *, partial: bool) -> list[str]:
    """The questions in order, repeated ones included; unescaped, each on one line. Never raises, in linear time.

    With `partial` the block ended before its closing tag, so its last question counts only where its end can be seen:
    by its closing quote, or by a question mark.
    """
    body = _ITEM_TAG.sub("\n", _FENCE.sub("\n", body)).strip()
    return [question for text in _texts(body, partial) if _is_question(question := one_line(text))]


def _is_question(text: str) -> bool:
    return len(text) <= LONGEST_QUESTION and any(map(str.isalpha, text)) and text.casefold().rstrip(".") not in _NOTHING


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


def _asked(strings: Sequence[Quoted], partial: bool) -> list[str]:
    """Strings of a list or under a key that names questions; failing those, whatever ends in a question mark."""
    whole = [string for string in strings if string.closed or not partial]
    named = [string.text for string in whole if _names_questions(string.key)]
    return named or [string.text for string in whole if string.text.rstrip().endswith("?")]


def _names_questions(key: str) -> bool:
    letters = "".join(filter(str.isalpha, key.casefold()))
    return not letters or letters in _KEYS


def _from_lines(body: str, partial: bool) -> list[str]:
    """One question per line or list item; headings and remarks between questions are left out."""
    lines = [line.replace("**", "").strip() for line in _NEXT_ON_LINE.sub("\n", body).splitlines()]
    lines = [line for line in lines if not line.endswith(":")]
    marked = any(_MARKER.match(line) for line in lines)
    asking = any(_asks(line) for line in lines)
    if asking and not marked:
        lines = [line for line in lines if not line.endswith(".")]
    items = [_item(text) for text in (_grouped(lines, marked) if marked or asking else lines)]
    items = [item for item in items if item]
    return items[:-1] if partial and items and not _asks(items[-1]) else items


def _grouped(lines: Sequence[str], marked: bool) -> list[str]:
    """Lines joined to items: an item goes on to its question mark, to an empty line, or to the next marker."""
    items: list[list[str]] = []
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
    """An item without its marker, its trailing comma and the quotes around it (or the one that opened it)."""
    text = _MARKER.sub("", text, count=1) if _MARKER.match(text) else text
    text = text.strip().rstrip(",;")
    text = text[:-1] if text.endswith("?*") else text
    if text.startswith('"') and text.count('"') == 1:
        return text[1:]
    quoted = text[:1] + text[-1:] in {'""', "''", "“”", "``", "**"} and text[0] not in text[1:-1]
    return text[1:-1] if quoted else text
