"""Tables as models write them in a turn, and as files hold them.

Reading is total: any text gives a table, none raises, and the time is linear in the text. Only
whole rows count; those that are there in part, or that the text says it leaves out, are counted.
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

_MOST_READ = 2_000_000
"""Characters of a text; far more than any model writes in a turn."""
_MOST_CELLS = 1000
"""Of a header."""
_FENCE = re.compile(r"\s*(?:```|~~~)")
_QUOTED = re.compile(r"^ {0,3}> ?(?=\|)", re.MULTILINE)
_WIDE_BARS = re.compile(r"^ {0,9}｜.*|^[^\s|][^|\n]*\t[^|\n]*$", re.MULTILINE)
"""Lines with bars of full width, or with tabs."""
_SEPARATOR = re.compile(r"\s*:?[-—=]+:?\s*")
_LONG_SEPARATOR = re.compile(r"\s*:?--+:?\s*")
_LEFT_OUT = re.compile(
    r"\s*\(?(?:\.{2,}|…+|⋮)\s*(?:(?:and )?(?:so on|(?:\d+ )?(?:more|others)(?: rows)?|"
    r"continued|omitted))?\W*",
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
    |based\ on\ the|according\ to\ the|note:|as\ an\ ai
    |i\ (?:could|can)\s?not|i\ (?:couldn|can|don|didn)'t|i\ did\ not
    |i(?:'m|\ am)\ (?:sorry|unable|afraid)
    |we\ could\ not|sorry[,.]|apologies|unfortunately|no\ \w+\ (?:was|were|is|are|could|found)
    |lo\ siento|désolé|voici|leider|hier\ (?:ist|sind)|к\ сожалению|извините
    |很?抱歉|对不起|以下|根据|(?:没有|未)找到|申し訳|すみません|죄송|다음은""",
    re.IGNORECASE | re.VERBOSE,
)
"""How replies begin that are no list."""
_PIECE = re.compile(r"""[^\w.…⋮?-]*$|[{}\]<]|\[\s*(?:["\[{]|$)|["'][^"']*["']\s*:""")
"""Marks, or a part of JSON or HTML."""
_SENTENCE = re.compile(
    r"""(?:\S+\s+){3}.*(?<!\b[A-Z])(?<!\bInc)(?<!\bLtd)(?<!\bCo)(?<!\bCorp)(?<!\bJr)(?<!\bSr)\.["')”]?\s*$"""
    r"|.{200}|.*[。！？]$"
)
_LISTED = re.compile(r"[、;]|,(?:\s+and)?\s")
_IN_PARENTHESES = re.compile(r"[(（][^()（）]*[)）]")


class TableText(NamedTuple):
    """A table that was read."""

    rows: tuple[tuple[str, ...], ...]
    """A text for each column, empty where there is none; markup is left in."""
    lost: int
    """Rows that are known of and not among `rows`: cut off, left out, or without a key."""


def read_rows(text: str, columns: Sequence[Column], *, cut: bool = False) -> TableText:
    """Read tables of JSON, HTML or Markdown, fenced or not, with prose around them; failing those,
    CSV or a list of keys, one a line.

    Headers may stand in any order; what has none is read by its place. `cut`: something ended the
    text.
    """
    told = _QUOTED.sub("", without_html(text[:_MOST_READ].replace("\r\n", "\n")))
    if rows := reply_rows(told, columns):
        return _usable(rows, columns, int(cut))
    lines = _WIDE_BARS.sub(
        lambda found: found[0].replace("｜", "|").replace("\t", "|"), told
    ).split("\n")
    lost = int((cut or len(text) > _MOST_READ) and bool(lines.pop().strip()))
    runs = groupby(lines, key=lambda line: "|" in line and not _FENCE.match(line))
    tables = [list(map(_cells, run)) for has_cells, run in runs if has_cells]
    if not tables:
        lines = [line for line in lines if line.strip() and not _FENCE.match(line)]
        return _usable(_listed(lines, columns), columns, lost)
    named: list[list[str]] = []
    placed: list[list[str]] = []
    order = list[int]()
    before = 0
    for table in tables:
        header, rows = _parts(table, columns)
        width = len(header or rows[0]) if header or rows else 0
        found = _order(header, columns)
        if found or (order and not header and width == before):
            order = found or order
            before = width
            named += _ordered(rows, width, order)
        elif width == len(columns):
            placed += _ordered(rows, width, range(width))
    return _usable(named or placed, columns, lost)


def _cells(line: str) -> list[str]:
    """Return the raw cells of a line, without a bullet and the bars around them."""
    line = _BULLETED.sub("", line.strip())
    if "\\" in line:
        bars = [mark.start() for mark in re.finditer(r"\\.|\|", line) if mark[0] == "|"]
        cells = [
            line[start + 1 : end]
            for start, end in zip([-1, *bars], [*bars, len(line)], strict=True)
        ]
    else:
        cells = line.split("|")
    return cells[not cells[0] : len(cells) - (not cells[-1])]


def _parts(table: list[list[str]], columns: Sequence[Column]) -> tuple[list[str], list[list[str]]]:
    """The header of a table, empty if it has none, and its rows."""
    marks = (sum(map(bool, map(_LONG_SEPARATOR.fullmatch, cells))) for cells in table)
    width = next(
        (count for count, cells in zip(marks, table, strict=True) if 0 < count < len(cells)),
        len(table[0]),
    )
    rows = [row for cells in table for row in _apart(cells, width)]
    dashes = [bool(row) and all(map(_SEPARATOR.fullmatch, row)) for row in rows]
    names = {normal_name(column.name) for column in columns}
    first = rows[0]
    has_header = dashes[1:2] == [True] or 2 * sum(_name(cell) in names for cell in first) >= max(
        1, len(first)
    )
    header = first if has_header and not dashes[0] else []
    again = {
        at
        for at, row in enumerate(rows)
        if row == header and (at == 0 or dashes[at + 1 : at + 2] == [True])
    }
    return header, [row for at, row in enumerate(rows) if not dashes[at] and at not in again]


def _apart(cells: list[str], width: int) -> list[list[str]]:
    """The rows of a line: several where it holds as many of this width, with an empty cell
    between any two.
    """
    several = 0 < width < len(cells) and (len(cells) + 1) % (width + 1) == 0
    if not several or any(cell.strip() for cell in cells[width :: width + 1]):
        return [cells]
    return [cells[start : start + width] for start in range(0, len(cells), width + 1)]


def _name(cell: str) -> str:
    return normal_name(plain(_text(cell)))


def _order(header: Sequence[str], columns: Sequence[Column]) -> list[int]:
    """The place of each column in a table with this header, -1 for none; empty where no column
    is named.
    """
    names = [(_name(cell), _name(_IN_PARENTHESES.sub("", cell))) for cell in header[:_MOST_CELLS]]
    order = list[int]()
    for column in columns:
        wanted = normal_name(column.name), normal_name(_IN_PARENTHESES.sub("", column.name))
        places = (
            at for form in (0, 1) for at, name in enumerate(names) if name[form] == wanted[form]
        )
        order.append(next((at for at in places if at not in order), -1))
    if max(order, default=-1) == -1:
        return []
    for at, column in enumerate(columns):  # renamed, in the same place
        if (
            order[at] == -1
            and at < len(header)
            and at not in order
            and (column.key or len(header) == len(columns))
        ):
            order[at] = at
    return order


def _ordered(rows: Iterable[list[str]], width: int, order: Sequence[int]) -> Iterable[list[str]]:
    """The cells of rows in the order of the columns; of a row with too many, the last ones are
    one.
    """
    for row in rows:
        cells = (
            row
            if len(row) <= width
            else [*row[: width - 1], "|".join(row[width - 1 :]).rstrip("| ")]
        )
        yield [cells[at] if 0 <= at < len(cells) else "" for at in order]


def _text(cell: str) -> str:
    """The text of a raw cell."""
    return (
        _ESCAPE.sub(lambda found: found[1] or "\n", cell).strip()
        if "\\" in cell or "<" in cell
        else cell.strip()
    )


def _usable(rows: Iterable[Sequence[str]], columns: Sequence[Column], lost: int) -> TableText:
    """Rows with a key. What stands for the cell above is replaced by it, as is an empty part of
    a key.
    """
    keys = [at for at, column in enumerate(columns) if column.key]
    found: list[tuple[str, ...]] = []
    for row in rows:
        if not any(cell.strip() for cell in row):
            continue
        above = found[-1] if found else ("",) * len(row)
        values = [
            before if _DITTO.fullmatch(cell) else _text(cell)
            for cell, before in zip(row, above, strict=True)
        ]
        if any(values[at] for at in keys):
            values = [
                value or above[at] if at in keys else value for at, value in enumerate(values)
            ]
        if any(_LEFT_OUT.fullmatch(row[at]) or is_blank(values[at]) for at in keys):
            lost += 1
        else:
            found.append(tuple(values))
    return TableText(tuple(found), lost)


def _listed(lines: Sequence[str], columns: Sequence[Column]) -> Iterable[Sequence[str]]:
    """The rows of CSV with a header, or of a list of keys."""
    for at, line in enumerate(lines[:10]):
        for mark in ",;":
            if mark in line and sum(place != -1 for place in _order(line.split(mark), columns)) > 1:
                yield from read_csv("\n".join(lines[at:]), columns, mark)
                return
    names = {normal_name(column.name) for column in columns}
    items = [line[bullet.end() :] for line in lines if (bullet := _BULLET.match(line))]
    if not items:
        items = [
            line for line in lines if not (line.endswith((":", "：")) or _OPENING_WORDS.match(line))
        ]
        if len(items) == 1 and len(several := _LISTED.split(items[0])) > 2:
            items = several
    name = _FIRST_PART if len(columns) > 1 else _BOLD  # where more was asked for, more may follow
    place = next((at for at, column in enumerate(columns) if column.key), 0)
    for item in items:
        first = name.match(item.strip())
        key = first[1] if first else item
        if _name(item) not in names and not (_PIECE.match(item.strip()) or _SENTENCE.match(key)):
            yield [key if at == place else "" for at in range(len(columns))]


def read_csv(text: str, columns: Sequence[Column], delimiter: str = ",") -> list[tuple[str, ...]]:
    """The rows of separated values under a header that names some of the columns, as far as
    they can be read.
    """
    rows: list[list[str]] = []
    with suppress(csv.Error):
        rows.extend(
            csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), delimiter=delimiter)
        )
    order = _order(rows[0], columns) if rows else []
    shown = _ordered(rows[1:], len(rows[0]), order) if order else ()
    return [tuple(cell.strip() for cell in row) for row in shown if any(map(str.strip, row))]


def to_markdown(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; `read_rows` reads it back, but for white space around values and kinds
    of line breaks.
    """
    head = [_written(column.name) for column in columns], ["---"] * len(columns)
    return "".join(
        f"| {' | '.join(row)} |\n" for row in (*head, *(map(_written, row) for row in rows))
    )


_OF_MARKDOWN = re.compile(r"[\\|]|<(?=br\s{0,4}/?>)", re.IGNORECASE)


def _written(value: str) -> str:
    value = _OF_MARKDOWN.sub(r"\\\g<0>", value.strip())
    if any(special.fullmatch(value) for special in (_SEPARATOR, _LEFT_OUT, _DITTO)):
        value = "\\" + value
    return re.sub(r"\r\n?|\n", "<br>", value)


def read_values(
    text: str, schema: Schema, wanted: Sequence[Column], row: RowKey
) -> tuple[str, ...]:
    """The values of some columns for one row, each empty where there is none: from lines such as
    `founder: Ana`, from the row of a table, or, where one value is wanted, the whole text.
    """
    columns = Schema((*schema.keys, *wanted))
    unkeyed = [Column(column.name) for column in columns.columns]
    marked = _MARKED.search(text[:_MOST_READ])
    names = {normal_name(column.name) for column in columns.columns}
    told: dict[str, str] = {}
    for line in () if marked else text[:_MOST_READ].split("\n"):
        bullet = _BULLET.match(line)
        name, sign, value, *_ = (
            *_PAIR.split(line[bullet.end() if bullet else 0 :].strip(" |"), 1),
            "",
            "",
        )
        if sign and value.strip() and _name(value.split("|", maxsplit=1)[0]) not in names:
            told.setdefault(_name(name), _text(value))
    values = tuple(told.get(normal_name(column.name), "") for column in wanted)
    if any(values):
        return values
    if "|" in text or marked:  # perhaps without the key
        rows = read_rows(text, unkeyed).rows
        mine = rows if len(rows) == 1 else [each for each in rows if row_key(columns, each) == row]
        return mine[0][len(row) :] if mine else values
    return (text.strip(),) if len(wanted) == 1 else values


_PAIR = re.compile(r"([|:：=])")
_MARKED = re.compile(r"""^[ \t]*(?:\{|\[\s*[\[{"])|<tr\b""", re.MULTILINE | re.IGNORECASE)
"""JSON or HTML."""
_OPENING = re.compile(r"<\s{0,4}answer\s{0,4}>", re.IGNORECASE)
_CLOSING = re.compile(r"<\s{0,4}/\s{0,4}answer\s{0,4}>[^\S\n]*(?=\n|$|<)", re.IGNORECASE)
_EVIDENCE = re.compile(
    r"(?:^[^|\n<]{0,200}|<\s{0,4}/\s{0,4}answer\s{0,4}>\s{0,9})<\s{0,4}evidence\s{0,4}>",
    re.IGNORECASE | re.MULTILINE,
)


def parse_table_turn(text: str, cut: bool = False) -> ExecutionTurn:
    """Read an executor's turn that may hold a table. As `parse_turn`, but lines are kept; what a
    length limit ended counts up to its last whole line; and neither tags around a table nor
    evidence have to be there, as each value is looked for in the passages anyway.
    """
    turn = parse_turn(text, cut)
    if isinstance(turn, SearchTurn) or (
        isinstance(turn, ReportTurn) and turn.report.escalate_to and not turn.report.evidence
    ):
        return turn
    cut = cut or len(text) > _MOST_READ
    visible = without_thinking(text[:_MOST_READ])
    opening = _OPENING.search(visible)
    body = visible[opening.end() :] if opening else visible
    evidence = _EVIDENCE.search(body)
    ends = [
        closing.start()
        for closing in _CLOSING.finditer(body, 0, evidence.end() if evidence else len(body))
    ]
    end = ends[-1] if ends else evidence.start() if evidence else None
    lines = readable(body[:end]).split("\n")
    lost = int(cut and end is None and bool(lines.pop().strip()))
    if not opening and sum("|" in line for line in lines) < 2:
        return turn
    answer = "\n".join(line.rstrip() for line in lines).strip("\n")
    written = turn.report if isinstance(turn, ReportTurn) else NO_EVIDENCE
    report = Report(answer, written.evidence, lost, written.escalate_to)
    return ReportTurn(report) if answer.strip() else turn
