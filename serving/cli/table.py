"""`rolegate table`: fill a table over gRPC, and show how its rows come about."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Annotated

from msgspec import Meta
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table as Grid
from rich.text import Text
from rolegate.client import GatewayError, Stream, Table
from rolegate.client.requests import TABLE_S, TableOptions, TableTopologyName
from rolegate.client.table import parse_columns, rival_line
from rolegate.v1 import table_service_pb2 as pb

from router.errors import BadConfig
from serving.cli.ask import TermsOptions, reached, terms
from serving.cli.command import POSITIONAL, parse
from serving.cli.given_rows import GivenRows, read_given_rows
from serving.cli.grid import counted, new_table, print_line
from serving.cli.options import Seconds, json_of
from serving.cli.tables import usage_table, word
from serving.files import write_atomically
from serving.logs import errors_only
from serving.terminal import complain

_FILES = (".md", ".csv", ".tsv", ".xlsx", ".json")
_ABSENT = {pb.CELL_STATE_MISSING: "·", pb.CELL_STATE_NOT_FOUND: "not found"}
_MARGIN = 8
"""Lines of the terminal that live rows leave free."""
_EVERY_S = 10.0
"""Pause between two progress lines outside of a terminal."""


class FillOptions(TermsOptions, frozen=True, kw_only=True):
    """Fill a table over gRPC, and show how its rows come about.

    Without --address a gateway is started for the table and stopped after it. Ctrl-C cancels the
    run, which keeps what it found.
    """

    question: Annotated[str, POSITIONAL]
    """Describe the rows in plain words: "cities of Vorland"."""
    columns: Annotated[str, Meta(extra={"metavar": "COLUMNS"})]
    """Name columns, keys with *, types or choices after a colon: "city*, founded:integer"."""
    rows: Annotated[Path, Meta(extra={"metavar": "FILE"})] | None = None
    """Fill the empty cells of these rows (CSV or .xlsx); other columns are kept in --out."""
    closed: bool = False
    """Look for no other rows than those of --rows."""
    max_rows: int = 0
    """End with this many rows (0: the gateway's limit)."""
    out: Annotated[Path, Meta(extra={"metavar": "FILE"})] | None = None
    """Also write the table to a file: .md, .csv, .tsv, .xlsx or .json."""
    sources: bool = False
    """Add a column with the sources of each column to --out."""
    timeout: Seconds = TABLE_S
    """End the run after this time."""
    topology: TableTopologyName | None = None
    """Choose who fills it; all but wide are for comparison (docs/widesearch.md)."""


def table(arguments: Sequence[str]) -> int:
    """Fill one table."""
    options = parse(FillOptions, "table", arguments)
    _check_out(options.out)
    columns = _columns(options.columns)
    rows = read_given_rows(options.rows, columns) if options.rows else GivenRows()
    errors_only()
    progress = Console(stderr=True, quiet=options.json)
    view = TableView(Console(), progress, as_json=options.json)
    request_options = terms(options, TableOptions)
    with reached(options, progress) as client:
        try:
            stream = client.stream_table(
                options.question, columns, rows.values, options.timeout, **request_options
            )
            filled = client.with_all_rows(view.follow(stream))
        except GatewayError as error:
            complain(f"rolegate: {_with_lines(str(error), options.rows, rows.lines)}")
            return 1
    view.show(filled)
    if options.out:
        content = filled.to_file(options.out.suffix, sources=options.sources, others=rows.others)
        write_atomically(options.out, content)
    return 0


def _check_out(out: Path | None) -> None:
    """Raise `BadConfig` if no table can be written to `out`."""
    if out and out.suffix not in _FILES:
        raise BadConfig(f"--out {out}: name a file that ends in {', '.join(_FILES)}.")
    if out and not out.parent.is_dir():
        raise BadConfig(f"--out {out}: the folder {out.parent} does not exist; create it first.")


def _columns(text: str) -> Sequence[pb.Column]:
    """Parse the columns. Raises `BadConfig`."""
    try:
        columns = parse_columns(text)
    except ValueError as error:
        raise BadConfig(f"--columns: {error}") from None
    if not any(column.key for column in columns):
        raise BadConfig(
            "--columns: no column is a key, which tells rows apart; put a star behind its name: "
            '"city*, founder".'
        )
    return columns


def _with_lines(text: str, file: Path | None, lines: Sequence[int]) -> str:
    """Replace row numbers in an error of the gateway by lines of the file."""
    if not lines:
        return text
    return re.sub(r"\brows\[(\d{1,9})\]", lambda row: f"{file}, line {lines[int(row[1])]}", text)


class TableView:
    """Shows the table of one run."""

    def __init__(
        self,
        out: Console,
        progress: Console,
        *,
        as_json: bool,
        events: bool = False,
    ) -> None:
        """`as_json`: print for programs. `events`: print each event, not only the table."""
        self._out = out
        self._progress = progress
        self._as_json = as_json
        self._events = events
        self._columns: Sequence[pb.Column] = ()
        self._rows: dict[str, pb.Row] = {}
        self._under_way: set[int] = set()

    def follow(self, stream: Stream[pb.StreamTableResponse]) -> pb.Table:
        """Show rows as they change, or, outside of a terminal, their count; return the table at the
        end. Raises `GatewayError`.
        """
        due = monotonic()
        with (
            stream as events,
            Live(console=self._progress, transient=True, auto_refresh=False) as live,
        ):
            for event in events:
                if self._as_json and self._events:
                    self._out.out(json_of(event), highlight=False)
                self._take(event)
                if self._progress.is_terminal:
                    live.update(self._so_far(), refresh=True)
                elif monotonic() >= due:
                    self._progress.print(self._count, highlight=False)
                    due = monotonic() + _EVERY_S
        return event.done

    def _take(self, event: pb.StreamTableResponse) -> None:
        match event.WhichOneof("event"):
            case "planned":
                self._columns = event.planned.columns
            case "sub_query_dispatched":
                self._under_way.add(event.sub_query_dispatched.index)
            case "reported":
                self._under_way.discard(event.reported.index)
            case "row_changed" if event.row_changed.HasField("row"):
                changed = event.row_changed
                for name in (changed.row_id, *changed.row.merged_row_ids):
                    self._rows.pop(name, None)
                self._rows[changed.row_id] = changed.row

    def _so_far(self) -> Group:
        """Return the rows that changed last, as many as there is room for."""
        room = max(1, self._progress.height - _MARGIN)
        grid = _grid(self._columns, list(self._rows.values())[-room:])
        return Group(grid, self._count)

    @property
    def _count(self) -> str:
        rows = counted(len(self._rows), "row")
        sub_queries = f"{len(self._under_way)} sub-queries"
        if len(self._under_way) == 1:
            sub_queries = "1 sub-query"
        return f"{rows}, {sub_queries} under way"

    def show(self, table: Table) -> None:
        """Show the table, its doubtful cells and its cost; outside of a terminal, as Markdown."""
        message = table.message
        if self._as_json:
            if not self._events:
                self._out.out(json_of(message), highlight=False)
            return
        if self._out.is_terminal:
            self._out.print(_grid(message.columns, message.rows))
        else:
            self._out.out(table.to_markdown(), end="", highlight=False)
        for line in _to_check(message):
            print_line(self._progress, line, style="yellow")
        if message.usage:
            self._progress.print(usage_table(message.usage))
        completeness = message.completeness
        seconds = message.duration.seconds + message.duration.nanos / 1e9
        estimated = ""
        if completeness.estimated_rows > completeness.rows:
            estimated = f", about {completeness.estimated_rows} in all"
        summary = "0 rows"
        if completeness.rows:
            rows = counted(completeness.rows, "row")
            summary = f"{rows}{estimated}, {completeness.fill_rate:.0%} filled"
        outcome = word(pb.TableOutcome, message.outcome)
        if message.outcome == pb.TABLE_OUTCOME_FILLED and not completeness.rows:
            outcome = "done"
        line = f"{outcome}: {summary}; {message.run_id}, {seconds:.1f} s"
        print_line(self._progress, line, style="dim")


def _grid(columns: Sequence[pb.Column], rows: Sequence[pb.Row]) -> Grid:
    names = [escape(column.name) for column in columns]
    cells = [map(_shown, row.cells) for row in rows]
    return new_table(names, cells, texts=len(names))


def _shown(cell: pb.Cell) -> Text:
    """Return the value of a cell, in yellow if it should be checked."""
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
    """Return whether no passage states the value for this row; one may state it of another row."""
    return cell.state != pb.CELL_STATE_GIVEN and cell.support in (
        pb.SUPPORT_VALUE_ONLY,
        pb.SUPPORT_UNSUPPORTED,
    )


def _to_check(table: pb.Table) -> Sequence[str]:
    """Return a line for each cell on which sources disagree, and for each other kind of doubt."""
    lines = []
    doubts = Counter[str]()
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            doubts["stated by no passage about the row"] += _not_stated(cell)
            doubts["not of the column's type"] += cell.mistyped
            if rival := rival_line(cell):
                given = "as given, but" if cell.contradicted else "or"
                lines.append(f"{row.cells[0].value}, {column.name}: {cell.value}, {given} {rival}")
    return [
        *lines,
        *(
            f"{counted(number, 'value')} to check: {doubt}"
            for doubt, number in doubts.items()
            if number
        ),
    ]
