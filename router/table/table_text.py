"""Reading of tables from models' turns, and writing of tables as Markdown.

Reading never raises: every text gives a table, which may be empty, in time that is linear in the
text. Only whole rows are kept. Rows that are incomplete because the text was cut off, and marks
such as "…" that stand for further rows, are counted as lost.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

from router.protocol import NO_EVIDENCE, Report, parse_turn
from router.protocol.tags import readable, without_thinking
from router.protocol.turns import ExecutionTurn, ReportTurn, SearchTurn
from router.table.cell_value import is_blank, row_key
from router.table.plain_text import plain
from router.table.reply_forms import reply_rows, without_html
from router.table.schema import normal_name
from router.trace.table import Column, RowKey, Schema

_MAX_READ = 2_000_000
"""Max characters of a text that are read; far more than any model writes in a turn."""
_MAX_CELLS = 1000
"""Max cells of a header."""
_FENCE = re.compile(r"\s*(?:```|~~~)")
_QUOTED = re.compile(r"^ {0,3}> ?(?=\|)", re.MULTILINE)
_WIDE_BARS = re.compile(r"^ {0,9}｜.*|^[^\s|][^|\n]*\t[^|\n]*$", re.MULTILINE)
"""Matches table rows whose cells are separated by full-width bars, or by tabs."""
_SEPARATOR = re.compile(r"\s*:?[-—=+]+:?\s*")
_LEFT_OUT = re.compile(
    r"\s*\(?(?:\.{2,}|…+|⋮)\s*(?:(?:and )?(?:so on|\(?(?:(?P<rows>\d[\d,]{0,20}) )?"
    r"(?:more|others)(?: \w{1,20})?|continued|omitted))?\W*",
    re.IGNORECASE,
)
_DITTO = re.compile(r"""\s*(?:"|''|〃|″|”|同上)\s*""")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~—…⋮〃″”同])|<br\s{0,4}/?>", re.IGNORECASE)
_BULLET = re.compile(r"\s*(?:[-*+•–]|\(?\d{1,4}[.)、])\s+")
_BULLETED = re.compile(r"^(?:[-*+•–]|\d{1,4}[.)])\s+(?=[^\s|-])")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_FIRST_PART = re.compile(r"(.+?)(?:[:：]\s|\s[-–—]\s|$)")
_OPENING_WORDS = re.compile(
    r"""
    here(?:'s|\ (?:is|are)\ (?:the|a|all|my))\b|below\ (?:is|are)\b
    |based\ on\ the|according\ to\ the
    |(?:notes?|sources?|quellen?|fuentes?|出典|来源|來源|注)\s?[:：]|as\ an\ ai
    |i\ (?:could|can)\s?not|i\ (?:couldn|can|don|didn)'t|i\ did\ not
    |i(?:'m|\ am)\ (?:sorry|unable|afraid)
    |we\ could\ not|sorry[,.]|apologies|unfortunately|no\ \w+\ (?:was|were|is|are|could|found)
    |lo\ siento|désolé|voici|leider|hier\ (?:ist|sind)|к\ сожалению|извините
    |很?抱歉|对不起|以下|根据|(?:没有|未)找到|申し訳|すみません|죄송|다음은""",
    re.IGNORECASE | re.VERBOSE,
)
"""Matches the first words of lines that introduce a list, or say that there is none. Such lines are
not read as items of the list.
"""
_PIECE = re.compile(r"""[^\w.…⋮?-]*$|["']?(?:[{}\]<]|\[\s*(?:["\[{]|$))|["'][^"']*["']\s*:""")
"""Matches lines that are only punctuation, or a part of JSON or HTML."""
_SENTENCE = re.compile(
    r"""(?:\S+\s+){3}.*(?<!\b[A-Z])(?<!\bInc)(?<!\bLtd)(?<!\bCo)(?<!\bCorp)"""
    r"""(?<!\bJr)(?<!\bSr)\.["')”]?\s*$"""
    r"|.{200}|.*[。！？]$"
)
_LISTED = re.compile(r"[、;]|,(?:\s+and)?\s")
_IN_PARENTHESES = re.compile(r"[(（][^()（）]*[)）]")


class TableText(NamedTuple):
    """A table as it was read from a text."""

    rows: tuple[tuple[str, ...], ...]
    """Rows. Each row has one text for each column, with its markup. The text is empty if the row
    has no value for the column.
    """
    lost: int
    """Number of rows that were not read, because they are cut off, have no key, or are only
    announced by a mark such as "… 12 more".
    """


def read_rows(text: str, columns: Sequence[Column]) -> TableText:
    """Read the tables in a text, which may be JSON, HTML or Markdown, with or without a code fence,
    and surrounded by prose. If there is no table, read the text as CSV, or as a list with one key
    per line.

    A header may have the columns in any order. In a table without a header, columns are identified
    by position.
    """
    unquoted = _QUOTED.sub("", without_html(text[:_MAX_READ].replace("\r\n", "\n")))
    if rows := reply_rows(unquoted, columns):
        return _usable(rows, columns, 0)

    plain_bars = _WIDE_BARS.sub(
        lambda line: line[0].replace("｜", "|").replace("\t", "|"), unquoted
    )
    lines = plain_bars.split("\n")
    lost = int(len(text) > _MAX_READ and bool(lines.pop().strip()))
    runs = groupby(lines, key=lambda line: "|" in line and not _FENCE.match(line))
    tables = [list(map(_cells, run)) for has_cells, run in runs if has_cells]
    if not tables:
        lines = [line for line in lines if line.strip() and not _FENCE.match(line)]
        return _usable(_listed(lines, columns), columns, lost)

    # If a table has a header that names columns, tables that are read by position are ignored
    named = list[list[str]]()
    placed = list[list[str]]()
    order = list[int]()
    named_width = 0
    for table in tables:
        header, rows = _parts(table, columns)
        widest = header or (rows[0] if rows else [])
        width = len(widest)
        own_order = _order(header, columns)
        continues = order and not header and width == named_width
        if own_order or continues:
            order = own_order or order
            named_width = width
            named += _ordered(rows, width, order)
        elif width == len(columns):
            placed += _ordered(rows, width, range(width))
    return _usable(named or placed, columns, lost)


def _cells(line: str) -> list[str]:
    """Return the raw cells of a table row, without the outer bars and a leading bullet."""
    line = _BULLETED.sub("", line.strip())
    cells = line.split("|")
    if "\\" in line:
        bars = [mark.start() for mark in re.finditer(r"\\.|\|", line) if mark[0] == "|"]
        ends = zip([-1, *bars], [*bars, len(line)], strict=True)
        cells = [line[start + 1 : end] for start, end in ends]
    return cells[not cells[0] : len(cells) - (not cells[-1])]


def _parts(table: list[list[str]], columns: Sequence[Column]) -> tuple[list[str], list[list[str]]]:
    """Return the header of a table (an empty list if there is none), and the table's rows."""
    names = {normal_name(column.name) for column in columns}
    dashes = [bool(row) and all(map(_SEPARATOR.fullmatch, row)) for row in table]
    first = table[0]
    named = sum(_name(cell) in names for cell in first)
    has_header = dashes[1:2] == [True] or 2 * named >= max(1, len(first))
    header = first if has_header and not dashes[0] else []

    rows = []
    for number, row in enumerate(table):
        repeats = row == header and (number == 0 or dashes[number + 1 : number + 2] == [True])
        if not (dashes[number] or repeats):
            rows.append(row)
    return header, rows


def _name(cell: str) -> str:
    """Return the name in a header's cell, in the form in which names are compared."""
    return normal_name(plain(_text(cell)))


def _order(header: Sequence[str], columns: Sequence[Column]) -> list[int]:
    """Return the position of each column in a header, or -1 if the column is missing. Return an
    empty list if the header names none of the columns.
    """
    names = [(_name(cell), _name(_IN_PARENTHESES.sub("", cell))) for cell in header[:_MAX_CELLS]]
    order = list[int]()
    for column in columns:
        wanted = normal_name(column.name), normal_name(_IN_PARENTHESES.sub("", column.name))
        places = (
            at for form in (0, 1) for at, name in enumerate(names) if name[form] == wanted[form]
        )
        order.append(next((at for at in places if at not in order), -1))
    if max(order, default=-1) == -1:
        return []

    # If the header has another name for a column, the column is read from its own position
    for at, column in enumerate(columns):
        free = order[at] == -1 and at < len(header) and at not in order
        if free and (column.key or len(header) == len(columns)):
            order[at] = at
    return order


def _ordered(
    rows: Iterable[list[str]],
    width: int,
    order: Sequence[int],
) -> Iterable[list[str]]:
    """Yield the cells of each row in the order of the columns. If a row has more cells than
    `width`, the surplus cells are joined with the last one.
    """
    for row in rows:
        cells = row
        if len(row) > width:
            cells = [*row[: width - 1], "|".join(row[width - 1 :]).rstrip("| ")]
        yield [cells[at] if 0 <= at < len(cells) else "" for at in order]


def _text(cell: str) -> str:
    """Return the text of a raw cell, with escapes and line breaks resolved."""
    return _ESCAPE.sub(lambda escape: escape[1] or "\n", cell).strip()


def _usable(
    rows: Iterable[Sequence[str]],
    columns: Sequence[Column],
    lost: int,
) -> TableText:
    """Return the rows that have a value for each key column. A ditto mark is replaced by the cell
    above it. An empty key cell is replaced too, if another key cell of the row has a value. `lost`:
    number of rows that are counted as lost already.
    """
    keys = [at for at, column in enumerate(columns) if column.key]
    usable = list[tuple[str, ...]]()
    for row in rows:
        if not any(cell.strip() for cell in row):
            continue
        above = usable[-1] if usable else ("",) * len(row)
        values = [
            upper if _DITTO.fullmatch(cell) else _text(cell)
            for cell, upper in zip(row, above, strict=True)
        ]
        if any(values[at] for at in keys):
            for at in keys:
                values[at] = values[at] or above[at]
        marks = [mark for at in keys if (mark := _LEFT_OUT.fullmatch(row[at]))]
        if marks:
            lost += int((marks[0]["rows"] or "1").replace(",", ""))
        elif any(is_blank(values[at]) for at in keys):
            lost += 1
        else:
            usable.append(tuple(values))
    return TableText(tuple(usable), lost)


def _listed(lines: Sequence[str], columns: Sequence[Column]) -> Iterable[Sequence[str]]:
    """Return the rows in `lines`. If one of the first ten lines is a CSV header, that line and all
    later ones are read as CSV. Otherwise, all lines are read as a list of keys.
    """
    for at, line in enumerate(lines[:10]):
        for mark in ",;":
            if sum(place != -1 for place in _order(line.split(mark), columns)) > 1:
                return read_csv("\n".join(lines[at:]), columns, mark)

    names = {normal_name(column.name) for column in columns}
    place = next((at for at, column in enumerate(columns) if column.key), 0)
    # If there are further columns, a line may contain more than the key
    first_part = _FIRST_PART if len(columns) > 1 else _BOLD
    rows = []
    for item in map(str.strip, _items(lines)):
        first = first_part.match(item)
        key = first[1] if first else item
        if _name(key) not in names and not (_PIECE.match(item) or _SENTENCE.match(key)):
            rows.append([key if at == place else "" for at in range(len(columns))])
    return rows


def _items(lines: Sequence[str]) -> list[str]:
    """Return the items of a bulleted or numbered list. If there are none, return the lines; a
    single line is split at its commas.
    """
    items = [line[bullet.end() :] for line in lines if (bullet := _BULLET.match(line))]
    if items:
        return items
    items = [
        line for line in lines if not (line.endswith((":", "：")) or _OPENING_WORDS.match(line))
    ]
    if len(items) == 1 and len(parts := _LISTED.split(items[0])) > 2:
        return parts
    return items


def read_csv(
    text: str,
    columns: Sequence[Column],
    delimiter: str = ",",
) -> list[tuple[str, ...]]:
    """Return the rows of a CSV text whose first line is a header. Return nothing if the header
    names none of the columns. Reading ends at the first syntax error.
    """
    rows = list[list[str]]()
    file = io.StringIO(text.removeprefix("\ufeff"), newline="")
    with suppress(csv.Error):
        rows.extend(csv.reader(file, delimiter=delimiter))
    order = _order(rows[0], columns) if rows else []
    ordered = _ordered(rows[1:], len(rows[0]), order) if order else ()
    return [tuple(cell.strip() for cell in row) for row in ordered if any(map(str.strip, row))]


def to_markdown(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> str:
    """Return the rows as a Markdown table. `read_rows` reads the same values from it, except for
    leading and trailing spaces and the kind of line breaks.
    """
    lines = [[_written(column.name) for column in columns], ["---"] * len(columns)]
    lines += [[_written(value) for value in row] for row in rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


_OF_MARKDOWN = re.compile(r"[\\|]|<(?=br\s{0,4}/?>)", re.IGNORECASE)


def _written(value: str) -> str:
    """Return a value with Markdown's special characters escaped."""
    value = _OF_MARKDOWN.sub(r"\\\g<0>", value.strip())
    if any(special.fullmatch(value) for special in (_SEPARATOR, _LEFT_OUT, _DITTO)):
        value = "\\" + value
    return re.sub(r"\r\n?|\n", "<br>", value)


def read_values(
    text: str,
    schema: Schema,
    wanted: Sequence[Column],
    row: RowKey,
) -> tuple[str, ...]:
    """Read the values of the `wanted` columns for one row from a text. A value is empty if the text
    does not contain it.

    The text may contain lines such as `founder: Ana`, or a table with the row `row`. If only one
    value is wanted, it may be the whole text.
    """
    columns = Schema((*schema.keys, *wanted))
    is_markup = _MARKUP.search(text[:_MAX_READ])
    if not is_markup:
        pairs = _pairs(text[:_MAX_READ], columns)
        values = tuple(pairs.get(normal_name(column.name), "") for column in wanted)
        if any(values):
            return values

    if is_markup or "|" in text:
        # Columns without keys, because the row may lack its key
        unkeyed = [Column(column.name) for column in columns.columns]
        rows = read_rows(text, unkeyed).rows
        if len(rows) > 1:
            rows = tuple(values for values in rows if row_key(columns, values) == row)
        return rows[0][len(row) :] if rows else ("",) * len(wanted)
    return (text.strip(),) if len(wanted) == 1 else ("",) * len(wanted)


def _pairs(text: str, columns: Schema) -> dict[str, str]:
    """Return the values in lines such as `founder: Ana`, by the normal form of their names."""
    names = {normal_name(column.name) for column in columns.columns}
    pairs = dict[str, str]()
    for line in text.split("\n"):
        bullet = _BULLET.match(line)
        parts = _PAIR.split(line[bullet.end() if bullet else 0 :].strip(" |"), maxsplit=1)
        if len(parts) == 3:
            name, _, value = parts
            # The header of a table is not a pair of name and value
            if value.strip() and _name(value.split("|", maxsplit=1)[0]) not in names:
                pairs.setdefault(_name(name), _text(value))
    return pairs


_PAIR = re.compile(r"([|:：=])")
_MARKUP = re.compile(r"""^[ \t]*(?:\{|\[\s*[\[{"])|<tr\b""", re.MULTILINE | re.IGNORECASE)
"""Matches the start of JSON or of an HTML table."""
_OPENING = re.compile(r"<\s{0,4}answer\s{0,4}>", re.IGNORECASE)
_CLOSING = re.compile(r"<\s{0,4}/\s{0,4}answer\s{0,4}>[^\S\n]*(?=\n|$|<)", re.IGNORECASE)
_EVIDENCE = re.compile(
    r"(?:^[^|\n<]{0,200}|<\s{0,4}/\s{0,4}answer\s{0,4}>\s{0,9})<\s{0,4}evidence\s{0,4}>",
    re.IGNORECASE | re.MULTILINE,
)


def parse_table_turn(text: str, cut: bool = False) -> ExecutionTurn:
    """Parse an executor's turn whose report may contain a table. `cut`: True if the length limit
    ended the turn.

    This differs from `parse_turn` in three ways. Line breaks are kept. If the turn was cut, it is
    read up to its last complete line. A table is accepted without tags and without evidence,
    because its values are looked up in the passages anyway.
    """
    turn = parse_turn(text, cut)
    report = turn.report if isinstance(turn, ReportTurn) else NO_EVIDENCE
    if isinstance(turn, SearchTurn) or (report.escalate_to and not report.evidence):
        return turn

    cut = cut or len(text) > _MAX_READ
    visible = without_thinking(text[:_MAX_READ])
    opening = _OPENING.search(visible)
    body = visible[opening.end() :] if opening else visible
    end = _answer_end(body)
    lines = readable(body[:end]).split("\n")
    lost = int(cut and end is None and bool(lines.pop().strip()))
    if not opening and sum("|" in line for line in lines) < 2:
        return turn
    answer = "\n".join(line.rstrip() for line in lines).strip("\n")
    if not answer.strip():
        return turn
    return ReportTurn(Report(answer, report.evidence, lost, report.escalate_to))


def _answer_end(body: str) -> int | None:
    """Return the position at which the answer ends: the last closing tag before the evidence, or
    else the start of the evidence. The first closing tag may be quoted in a row. Return None if
    there is neither a tag nor evidence.
    """
    evidence = _EVIDENCE.search(body)
    closings = _CLOSING.finditer(body, 0, evidence.end() if evidence else len(body))
    ends = [closing.start() for closing in closings]
    if ends:
        return ends[-1]
    return evidence.start() if evidence else None
