"""Names that occur in a table's passages but in no row, for example because a report left them
out.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice

from router.folding import fold, sought
from router.protocol import Passage
from router.table.assembly import Table
from router.trace import Execution
from router.trace.table import Ask, Schema

MAX_LEFT_OUT = 100
"""Max names that each function of this module returns. Also the max names that executors check in
one run.
"""
_MAX_NAME = 80
_KNOWN = 2
"""`_MAX_NAME`: max characters of a name. `_KNOWN`: a list must contain the names of at least this
many rows before its other names are returned.
"""
_NUMBERED = re.compile(r"^[ \t(]{0,8}\d{1,4}[.)][ \t]", re.MULTILINE)
_DIGITS = re.compile(r"\d+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|[。！？]")
_ITEM = re.compile(r"[,;:、，；：\n]|\s(?:and|or|et|und|y)\s")
_MARK = re.compile(r"[-*+•–|\s]*(?:(?:and|or|et|und|y)\s)?")


def left_out(table: Table, reports: Iterable[tuple[Ask, Execution]]) -> tuple[str, ...]:
    """Return the names that are in no row, but in a list that also names at least two rows of the
    table. Lists are read only from the passages that executors found for discoveries (questions for
    rows). The names are in the order of these passages.

    This is an estimate: a list may contain a name that does not belong in the table, and the first
    name of a list is never returned. The result is empty for a table with several key columns.
    Names of excluded rows are not returned.
    """
    if len(table.schema.keys) != 1:
        return ()
    names = _names(table)
    found = dict[str, str]()
    texts = {
        passage.text: None
        for ask, execution in reports
        if ask.kind == "discover"
        for search in execution.every_search
        for passage in search.shown
    }
    for text in texts:
        for items in _lists(text):
            (first, _), *rest = items
            words = first.split()
            # "The cities are Krurou": the first item ends in a name
            ends = any(f" {' '.join(words[at:])} " in names for at in range(len(words)))
            known = [number for number, (folded, _) in enumerate(rest) if folded in names]
            if len(known) + ends >= _KNOWN:
                start = 0 if ends else known[0]
                for folded, name in rest[start:]:
                    if folded not in names:
                        found.setdefault(folded, name)
    return tuple(islice(found.values(), MAX_LEFT_OUT))


def values_of(schema: Schema) -> list[str]:
    """Return the values for which `named_with_values` searches passages: the names that conditions
    require in text columns other than keys.
    """
    return [
        value
        for condition in schema.conditions
        if condition.operator in ("equals", "one_of")
        and condition.column.type == "text"
        and not condition.column.key
        for value in condition.values
    ]


def named_with_values(
    table: Table, passages: Iterable[Passage], searched: Iterable[Passage]
) -> tuple[str, ...]:
    """Return names that are in no row, but may meet a condition. The table must have one key
    column.

    First, if a passage in `passages` contains the value of a condition (`values_of`), the names in
    its lists are returned. Second, titles in `passages` and `searched` are returned: a title
    qualifies if its passage has a sentence such as "TITLE is based in VALUE", and another passage,
    whose title is a row's name, has the same sentence about that row. The caller must check each
    name, because few names may meet the condition.
    """
    values = list(filter(None, map(sought, values_of(table.schema))))
    names = _names(table)
    found = dict[str, str]()
    for passage in passages:
        folded = fold(passage.text)
        if any(map(folded.count, values)):
            for (_, first), *rest in _lists(passage.text):
                name = _ending_name(first)
                for item, written in ((sought(name), name), *rest):
                    found.setdefault(item, written)

    titles = defaultdict[str, dict[str, str]](dict)
    for passage in (*passages, *searched):
        name = sought(passage.title) or "\n"  # no sentence contains "\n"
        for sentence in map(sought, _SENTENCE.split(passage.text)):
            for value in filter(sentence.count, values):
                words = sentence.replace(name, " NAME ").replace(value, " VALUE ")
                if "NAME" in words and "VALUE" in words:
                    titles[_DIGITS.sub("0", words)][name] = passage.title
    for alike in titles.values():
        if names & alike.keys():
            found |= alike
    new = (
        written
        for item, written in found.items()
        if item and item not in names and not any(value in item for value in values)
    )
    return tuple(islice(new, MAX_LEFT_OUT))


def _ending_name(item: str) -> str:
    """Return the end of a list's item: the words after the last word that begins with a small
    letter.
    """
    words = item.split()
    small = [at for at, word in enumerate(words, 1) if word[0].islower()]
    return " ".join(words[max(small, default=0) :])


def _names(table: Table) -> set[str]:
    """Return the folded names of all rows of a table with one key column."""
    at = [column.key for column in table.schema.columns].index(True)
    names = set[str]()
    for row in table.every_row:
        names.update(map(sought, (row.cells[at].value, *row.key)))
        names.update(sought(part) for alias in row.aliases for part in alias)
    return names


@lru_cache(2000)
def _lists(text: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Return the lists in a text. Each item is a pair: its folded form, and the item as written."""
    lists = []
    for sentence in _SENTENCE.split(_NUMBERED.sub("", text)):
        cells = (_MARK.sub("", part, 1).partition("|")[0] for part in _ITEM.split(sentence))
        parts = [cell.rstrip(" .*") for cell in cells]
        items = [
            (folded, part)
            for part in parts
            if len(part) <= _MAX_NAME and (folded := sought(part)) and not part[0].islower()
        ]
        if len(items) > _KNOWN:
            lists.append(tuple(items))
    return tuple(lists)
