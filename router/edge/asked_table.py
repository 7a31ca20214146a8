"""Questions that ask for a table in plain words and name its columns in their last lines, as
WideSearch's do.
"""

import re
from itertools import islice

from router.table import TableRequest
from router.table.schema import MOST_COLUMNS, normal_name
from router.trace.table import Column

_ASKED = re.compile("table|表格", re.IGNORECASE)
_NAMED = re.compile(
    r"(?:\bcolumns?\b(?![”\"'])[^\n:：.?]{0,60}|列名[^\n:：。]{0,20})(?:[:：]|(?<= as) )\s*",
    re.IGNORECASE,
)
_END = re.compile(r"\n\s*\n|。|\.\s+(?=[A-Z])")
_COMMA = re.compile(r"[,，](?![^()（）]{0,200}[)）])")
_OF_SEVERAL = re.compile(
    r"\b(?:years?|months?|quarters?|seasons?|dates?|categor(?:y|ies)|subjects?|types?|"
    r"awards?|rank(?:ing)?)\b"
    r"|年|月|日期|时间|季|届|类|奖项|榜单|排名",
    re.IGNORECASE,
)
_MOST_PLACES = 8
_LONGEST_LIST = 4000
"""Places that may name columns, and characters read after each: the time is linear in the
question.
"""


def table_asked_for(question: str) -> TableRequest | None:
    """The table that a question asks for; None where it names no columns. Names with a `*` are
    keys. Where none has one, all are up to the first that does not sound as if rows had its values
    in common, as years and categories do.
    """
    if not _ASKED.search(question):
        return None
    for found in islice(_NAMED.finditer(question), _MOST_PLACES):
        names = _names(question[found.end() : found.end() + _LONGEST_LIST])
        if 1 < len(names) <= MOST_COLUMNS and len(
            {normal_name(name) for name in names} - {""}
        ) == len(names):
            last = next((at for at, name in enumerate(names) if not _OF_SEVERAL.search(name)), 0)
            keys = {name for name in names if name.endswith("*")} or set(names[: last + 1])
            return TableRequest(
                question, tuple(Column(name.rstrip("* "), key=name in keys) for name in names)
            )
    return None


def _names(text: str) -> list[str]:
    """The names at the beginning of a text: in one line, or one a line up to a blank one."""
    first = text.split("\n", maxsplit=1)[0]
    lines = _END.split(text, maxsplit=1)[0].split("\n")
    one = _END.split(first, maxsplit=1)[0]
    parts = (
        one.split("|")
        if "|" in one
        else one.split("、")
        if "、" in one
        else _COMMA.split(one, MOST_COLUMNS)
    )
    listed = lines if len(parts) == 1 else parts
    return [
        name
        for each in listed
        if (name := re.sub(r"^and\s+", "", each.strip()).strip().rstrip("."))
    ]
