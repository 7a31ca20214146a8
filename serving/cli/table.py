"""`rolegate table`: let a gateway fill a table, show the progress, and print the table or write it
to a file.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Annotated, ClassVar

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.text import Text
from rolegate.client import GatewayError, Table
from rolegate.client.requests import TableOptions
from rolegate.client.table import membership, parse_columns, rival_line
from rolegate.v1 import table_service_pb2 as pb

from router.errors import BadConfig
from serving.cli.ask import TermsOptions, reached, terms
from serving.cli.command import POSITIONAL, parse, shown_as
from serving.cli.grid import counted, new_table, print_line, print_lines
from serving.cli.options import File, check_new_file
from serving.cli.tables import RunView, usage_table, word
from serving.documents.given_rows import GivenRows, read_given_rows
from serving.files import write_atomically
from serving.logs import errors_only
from serving.terminal import complain

_FILES = (".md", ".csv", ".tsv", ".xlsx", ".json")
_ABSENT = {pb.CELL_STATE_MISSING: "·", pb.CELL_STATE_NOT_FOUND: "not found"}
_NOTHING = " (no lookup found a value: see `rolegate runs show RUN`)"
_MAX_NAMED = 20
"""Max number of cells or rows that a line of output names."""
_EVERY_S = 10.0
"""Seconds between two progress lines if the output is not a terminal."""


class FillOptions(TermsOptions, kw_only=True):
    """Fill a table. Print the table, its cells that should be checked, and the cost.

    Without --address, a gateway is started for the table and stopped afterwards. Ctrl-C cancels the
    run; the rows that were found until then are stored with the run.
    """

    question: Annotated[str, POSITIONAL]
    """Description of the rows in plain words: "cities of Vorland"."""
    columns: Annotated[str, shown_as("COLUMNS")]
    """Columns, as in "city*, founded:integer, size:small|large". A * marks a key column: no two
    rows have the same values in all key columns. After a colon follows the type (text, integer,
    number, date, url or boolean; default: text), or the allowed values.
    """
    rows: File | None = None
    """Fill the empty cells of the rows in this CSV or .xlsx file. Columns of the file that are not
    in --columns are only copied to --out.
    """
    closed: bool = False
    """Fill only the rows of --rows, and do not search for more rows."""
    conditions: Annotated[tuple[str, ...], shown_as("CONDITION")] = msgspec.field(
        default=(), name="where"
    )
    """Exclude rows that contradict this condition, according to a source. A condition is a column,
    an operator and a value, such as "founded after 1990", or a yes/no question about a row, such as
    "Is {city} in Veshoux?", in which {city} stands for the row's value in that key column.
    """
    excluded: bool = False
    """Also show the rows that a condition excluded, each with the sentences that contradict the
    condition, and write these rows to --out.
    """
    max_rows: int = 0
    """Return at most this many rows (default: table.max_rows of the gateway's config, which is also
    the upper limit).
    """
    out: File | None = None
    """Also write the table to this file, which ends in .md, .csv, .tsv, .xlsx or .json."""
    sources: bool = False
    """Also write to --out, for each column of the table, a column with the sources of its values.
    """
    NEEDS: ClassVar = {"sources": "out", "closed": "rows"}


def table(arguments: Sequence[str]) -> int:
    """Run `rolegate table`; return the exit status."""
    options = parse(FillOptions, "table", arguments)
    if options.out:
        check_new_file("--out", options.out, _FILES)
    columns = _columns(options.columns)
    rows = read_given_rows(options.rows, columns) if options.rows else GivenRows()
    errors_only()
    progress = Console(stderr=True, quiet=options.json)
    view = TableView(Console(), progress, stream=False, as_json=options.json)
    with reached(options, progress) as client:
        try:
            stream = client.stream_table(
                options.question,
                columns,
                rows.values,
                options.timeout,
                **terms(options, TableOptions),
            )
            filled = client.with_all_rows(view.follow(stream))
        except (GatewayError, ValueError) as error:
            complain(f"rolegate: {_with_lines(str(error), options.rows, rows.lines)}")
            return 1
    view.show(filled)
    if options.excluded and not options.json:
        print_lines(view.out, [_membership(filled.message, row) for row in filled.message.excluded])
    if options.out:
        content = filled.to_file(
            options.out.suffix,
            sources=options.sources,
            excluded=options.excluded,
            others=rows.others,
        )
        write_atomically(options.out, content)
        print_lines(progress, [f"{options.out} is written"])
    return 0


def _columns(text: str) -> Sequence[pb.Column]:
    """Return the columns that the text of --columns lists. Raises `BadConfig` if the list is
    invalid or has no key column.
    """
    try:
        columns = parse_columns(text)
    except ValueError as error:
        raise BadConfig(f"--columns: {error}") from None
    if not any(column.key for column in columns):
        raise BadConfig(
            "--columns: there is no key column to tell rows apart; put a * after the name of a "
            'key: "city*, founder".'
        )
    return columns


def _with_lines(text: str, file: Path | None, lines: Sequence[int]) -> str:
    """Return `text`, an error message of the gateway, but replace each `rows[N]` by the file of
    --rows and the row's line number. `lines`: line number of each row; empty without --rows.
    """
    if not lines:
        return text
    return re.sub(r"\brows\[(\d{1,9})\]", lambda row: f"{file}, line {lines[int(row[1])]}", text)


@dataclass
class TableView(RunView):
    """Shows a run that fills a table: its progress, and at the end the table."""

    doing = "filling"
    _rows: set[str] = field(default_factory=set, init=False)
    _under_way: int = field(default=0, init=False)
    _last: str = field(default="", init=False)
    _due: float = field(default=0.0, init=False)

    def so_far(self, event: pb.StreamTableResponse) -> str:
        """Return the progress after an event as one line: the number of rows, the number of running
        sub-queries, and the row that changed last. If the output is not a terminal, also print such
        a line every ten seconds.
        """
        self._under_way += event.HasField("sub_query_dispatched") - event.HasField("reported")
        changed = event.row_changed
        if changed.HasField("row"):
            self._rows -= {*changed.row.merged_row_ids}
            self._rows.add(changed.row_id)
            self._last = f": {', '.join(cell.value or '·' for cell in changed.row.cells)}"
        rows = counted(len(self._rows), "row")
        sub_queries = "sub-query" if self._under_way == 1 else "sub-queries"
        line = f"{rows}, {self._under_way} {sub_queries} under way{self._last}"
        if not self.progress.is_terminal and monotonic() >= self._due:
            print_line(self.progress, line)
            self._due = monotonic() + _EVERY_S
        return line

    def show_result(self, table: Table) -> None:
        """Print the table, the cells that should be checked, and the cost. If the output is not a
        terminal, print the table as Markdown.
        """
        message = table.message
        if self.out.is_terminal:
            names = [escape(column.name) for column in message.columns]
            cells = (map(_shown, row.cells) for row in message.rows)
            self.out.print(new_table(names, cells, texts=len(names)))
        else:
            self.out.out(table.to_markdown(), end="", highlight=False)
        for line in _to_check(message):
            print_line(self.progress, line, style="yellow")
        if message.usage:
            self.progress.print(usage_table(message.usage))
        completeness = message.completeness
        seconds = message.duration.ToTimedelta().total_seconds()
        estimated = ""
        if completeness.estimated_rows > completeness.rows:
            estimated = f", about {completeness.estimated_rows} in all"
        unlisted = ""
        if completeness.unlisted_rows:
            unlisted = f", {completeness.unlisted_rows} found only by conditions"
        note = f" (for the reason: rolegate runs show {message.run_id})"
        if completeness.rows:
            hint = "" if completeness.fill_rate else _NOTHING
            note = f", {completeness.fill_rate:.0%} filled{hint}"
        outcome = word(pb.TableOutcome, message.outcome)
        rows = counted(completeness.rows, "row")
        excluded = ""
        if message.excluded:
            excluded = f", {len(message.excluded)} excluded (see --excluded)"
        line = f"{outcome}: {rows}{estimated}{unlisted}{note}{excluded}; "
        line += f"{message.run_id}, {seconds:.1f} s"
        print_line(self.progress, line, style="dim")


def _shown(cell: pb.Cell) -> Text:
    """Return the value of a cell, in yellow if it should be checked. For an empty cell, return a
    mark or a word that says why it is empty.
    """
    if not cell.value:
        return Text(_ABSENT.get(cell.state, ""), "dim")
    doubtful = (
        cell.contradicted
        or cell.state == pb.CELL_STATE_CONFLICT
        or _not_stated(cell)
        or cell.mistyped
    )
    return Text(cell.value, "yellow" if doubtful else "")


def _not_stated(cell: pb.Cell) -> bool:
    """Return True if no passage states the value of this cell for its row. A passage may still
    contain the value in a sentence about something else. False for values that the client gave.
    """
    return cell.state != pb.CELL_STATE_GIVEN and cell.support in (
        pb.SUPPORT_VALUE_ONLY,
        pb.SUPPORT_UNSUPPORTED,
    )


def _membership(table: pb.Table, row: pb.Row) -> str:
    return f"{row.cells[0].value}: {membership(table.conditions, row)}"


def _to_check(table: pb.Table) -> Sequence[str]:
    """Return lines of text on everything in a table that should be checked. There is a line for
    each ignored condition, each row with an unchecked condition, and each cell whose sources
    disagree. For every other kind of doubt there is one line, with the number of cells and the
    names of the first `_MAX_NAMED` cells.
    """
    lines = [f"condition ignored: {text}" for text in table.ignored_conditions]
    if names := table.completeness.left_out:
        shown = ", ".join(names[:_MAX_NAMED]) + ", …" * (len(names) > _MAX_NAMED)
        lines.append(f"listed together with rows, but not in the table ({len(names)}): {shown}")
    doubts = defaultdict[str, list[str]](list)
    for row in table.rows:
        if membership(table.conditions, row):
            lines.append(_membership(table, row))
        for column, cell in zip(table.columns, row.cells, strict=True):
            name = f"{row.cells[0].value}, {column.name}"
            if _not_stated(cell):
                doubts["stated by no passage about the row"].append(name)
            if cell.mistyped:
                doubts["not of the column's type"].append(name)
            if rival := rival_line(cell):
                given = "as given, but" if cell.contradicted else "or"
                lines.append(f"{name}: {cell.value}, {given} {rival}")
    return [
        *lines,
        *(
            f"{counted(len(names), 'value')} to check: {doubt}: "
            f"{'; '.join(names[:_MAX_NAMED])}{'; …' if len(names) > _MAX_NAMED else ''}"
            for doubt, names in doubts.items()
        ),
    ]
