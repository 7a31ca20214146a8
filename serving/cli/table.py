"""`rolegate table`: fill a table over gRPC, and show how its rows come about.

Without --address a gateway is started for the table and stopped after it. Ctrl-C cancels the run,
which keeps what it found.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table as Grid
from rich.text import Text
from rolegate.client import GatewayError, Stream, Table
from rolegate.client.requests import TABLE_S, TableOptions, TableTopologyName
from rolegate.client.table import parse_columns, rival_line
from rolegate.v1 import table_service_pb2 as pb

from serving.cli.ask import add_gateway, add_terms, reached, terms
from serving.cli.given_rows import GivenRows, read_given_rows
from serving.cli.options import json_of, new_parser
from serving.cli.tables import new_table, print_line, usage_table, word
from serving.files import write_atomically
from serving.logs import errors_only
from serving.terminal import complain

_FILES = (".md", ".csv", ".tsv", ".xlsx", ".json")
_ABSENT = {pb.CELL_STATE_MISSING: "·", pb.CELL_STATE_NOT_FOUND: "not found"}
_MARGIN = 8
"""Lines of a terminal that rows on their way leave free."""
_EVERY_S = 10.0


def table(arguments: Sequence[str]) -> int:
    """Fill one table."""
    parser = new_parser("table", __doc__)
    parser.add_argument(
        "question",
        metavar="QUESTION",
        help='what the rows are, in plain words: "cities of Vorland"',
    )
    what = (
        'names, with * behind those of keys, and types or choices: "city*, founded:integer, '
        'size:small|large"'
    )
    parser.add_argument("--columns", required=True, metavar="COLUMNS", help=what)
    what = (
        "known rows, CSV or .xlsx; their empty cells are asked for, and their other columns "
        "kept in --out"
    )
    parser.add_argument("--rows", type=Path, metavar="FILE", help=what)
    parser.add_argument(
        "--closed", action="store_true", help="there are no rows besides those of --rows"
    )
    parser.add_argument(
        "--max-rows",
        type=int,
        default=0,
        metavar="N",
        help="end with so many rows (0: as many as are allowed)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=f"write it to a file too: {', '.join(_FILES)}"
    )
    parser.add_argument(
        "--sources", action="store_true", help="add a column to --out for the sources of each"
    )
    add_gateway(parser, TABLE_S)
    what = "who finds and writes it; all but wide are there to compare (docs/widesearch.md)"
    add_terms(parser, "table", TableTopologyName, what)
    given = parser.parse_args(arguments)
    if given.out and given.out.suffix not in _FILES:
        parser.error(f"--out {given.out}: give a name that ends in {', '.join(_FILES)}.")
    if given.out and not given.out.parent.is_dir():
        parser.error(f"--out {given.out}: there is no folder {given.out.parent}; make it first.")
    try:
        columns = parse_columns(given.columns)
    except ValueError as error:
        parser.error(f"--columns: {error}")
    if not any(column.key for column in columns):
        parser.error(
            "--columns: none is a key, which tells rows apart; put a star behind its "
            'name: "city*, founder".'
        )
    rows = read_given_rows(given.rows, columns) if given.rows else GivenRows()
    errors_only()
    progress = Console(stderr=True, quiet=given.json)
    view = TableView(Console(), progress, as_json=given.json)
    with reached(given, progress) as client:
        try:
            options = terms(given, TableOptions)
            found = client.whole(
                view.follow(
                    client.stream_table(
                        given.question, columns, rows.values, given.timeout, **options
                    )
                )
            )
        except GatewayError as error:
            complain(f"rolegate: {_with_lines(str(error), given.rows, rows.lines)}")
            return 1
    view.show(found)
    if given.out:
        content = found.to_file(given.out.suffix, sources=given.sources, others=rows.others)
        write_atomically(given.out, content)
    return 0


def _with_lines(text: str, file: Path, lines: Sequence[int]) -> str:
    """Return an error of the gateway with the lines of the file for its numbers of rows."""
    return (
        re.sub(r"\brows\[(\d{1,9})\]", lambda row: f"{file}, line {lines[int(row[1])]}", text)
        if lines
        else text
    )


class TableView:
    """Shows the table of one run."""

    def __init__(
        self, out: Console, progress: Console, *, as_json: bool, events: bool = False
    ) -> None:
        """`as_json` prints for programs; `events`: each event, and not the last one alone."""
        self._out = out
        self._progress = progress
        self._as_json = as_json
        self._events = events
        self._columns: Sequence[pb.Column] = ()
        self._rows: dict[str, pb.Row] = {}
        self._under_way: set[int] = set()

    def follow(self, stream: Stream[pb.StreamTableResponse]) -> pb.Table:
        """Show rows as they change, outside of a terminal their number alone, to the end; the
        table. Raises `GatewayError`.
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
        """The rows that have changed last, as many as there is room for."""
        room = max(1, self._progress.height - _MARGIN)
        grid = _grid(self._columns, list(self._rows.values())[-room:])
        return Group(grid, self._count)

    @property
    def _count(self) -> str:
        return f"{len(self._rows)} rows, {len(self._under_way)} sub-queries under way"

    def show(self, table: Table) -> None:
        """Show the table: with what to check and what it cost, or, where the output is no
        terminal, as Markdown.
        """
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
        known = message.completeness
        seconds = message.duration.seconds + message.duration.nanos / 1e9
        more = f", about {known.estimated_rows} in all" if known.estimated_rows > known.rows else ""
        outcome = word(pb.TableOutcome, message.outcome)
        rows = (
            f"{known.rows} rows{more}, {known.fill_rate:.0%} filled"
            if known.rows
            else "no row was found"
        )
        print_line(
            self._progress, f"{outcome}: {rows}; {message.run_id}, {seconds:.1f} s", style="dim"
        )


def _grid(columns: Sequence[pb.Column], rows: Sequence[pb.Row]) -> Grid:
    grid = new_table(*(escape(column.name) for column in columns))
    for row in rows:
        grid.add_row(*map(_shown, row.cells))
    return grid


def _shown(cell: pb.Cell) -> Text:
    """The value of a cell; yellow where it should be checked."""
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
    """True where no passage says the value of this row, though one may say it of another, from
    which it was copied.
    """
    return cell.state != pb.CELL_STATE_GIVEN and cell.support in (
        pb.SUPPORT_VALUE_ONLY,
        pb.SUPPORT_UNSUPPORTED,
    )


def _to_check(table: pb.Table) -> Sequence[str]:
    """A line for each cell that sources disagree on, and one for each other kind of doubt."""
    lines = []
    doubts = Counter[str]()
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            doubts["are in no passage about their row"] += _not_stated(cell)
            doubts["are not of their column's type"] += cell.mistyped
            if rival := rival_line(cell):
                given = "as given, but" if cell.contradicted else "or"
                lines.append(f"{row.cells[0].value}, {column.name}: {cell.value}, {given} {rival}")
    return [
        *lines,
        *(f"{number} values {doubt}: check them" for doubt, number in doubts.items() if number),
    ]
