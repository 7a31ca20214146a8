"""`rolegate table` with a gateway of scripted models."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rolegate.client import Client, Table
from rolegate.v1 import table_service_pb2 as pb
from rolegate.v1.answer_service_pb2 import SubQueryDispatched
from rolegate.v1.evidence_pb2 import Citation

from serving.cli.main import main
from serving.cli.table import TableView
from serving.terminal import visible_output
from tests.conftest import Rolegate

QUESTION = "the cities of Vorland"
COLUMNS = "city*, founder, founded:integer"
MARKDOWN = [
    "| city | founder | founded |",
    "| --- | --- | --- |",
    "| Krurou | Ana | 1200 |",
    "| Bel | Bo | 900 |",
]


def test_a_table_is_printed_as_markdown_in_a_pipe(rolegate: Rolegate, gateway: str) -> None:
    """Standard error has the progress, the cells to check, and the result."""
    status, out, err = rolegate("table", QUESTION, "--columns", COLUMNS, "--address", gateway)
    assert (status, out.splitlines()) == (0, MARKDOWN)
    assert err.startswith("0 rows, 0 sub-queries under way\n")
    assert "1 value to check: stated by no passage about the row: Bel, founder" in err
    assert "done: 2 rows, 100% filled; run-" in err


def test_excluded_rows_are_shown_on_request(rolegate: Rolegate, gateway: str) -> None:
    """They are never silently gone."""
    arguments = (
        *("table", QUESTION, "--columns", COLUMNS, "--address", gateway),
        *("--where", "founded after 1000", "--where", "Is {city} on the sea?"),
    )
    status, out, err = rolegate(*arguments)
    assert (status, out.splitlines()) == (0, MARKDOWN[:3])
    assert "Krurou: membership not checked: Is {city} on the sea?" in err
    assert "done: 1 row, 100% filled, 1 excluded (see --excluded); run-" in err
    status, out, err = rolegate(*arguments, "--excluded")
    assert out.splitlines()[3:] == [
        "Bel: excluded: not founded after 1000, but 900 (Bel: “Bel was founded in 900.” (Bel)); "
        "membership not checked: Is {city} on the sea?"
    ]
    assert "Bel" not in err


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (
            "founded 1000",
            "'founded 1000' is not a condition; write a condition such as `founded after 1990`",
        ),
        ("founded after Ana", "'founded' of type integer cannot be compared with 'Ana'; give"),
        ("founded:era after 1", "must be one of text, integer"),
        ("Is it there?", "name the row in it with {city}"),
    ],
)
def test_a_bad_condition_is_refused_with_what_to_write(
    rolegate: Rolegate, gateway: str, condition: str, message: str
) -> None:
    status, out, err = rolegate(
        "table", QUESTION, "--columns", COLUMNS, "--address", gateway, "--where", condition
    )
    assert (status, out) == (1, "")
    assert message in err
    assert "Traceback" not in err


def test_json_is_the_protocol_s_message_in_one_line(rolegate: Rolegate, gateway: str) -> None:
    status, out, err = rolegate(
        "table", QUESTION, "--columns", COLUMNS, "--address", gateway, "--json"
    )
    assert (status, err) == (0, "")
    assert [row["row_id"] for row in json.loads(out)["rows"]] == ['["krurou"]', '["bel"]']


@pytest.mark.parametrize(
    ("suffix", "first"), [("md", MARKDOWN[0]), ("csv", "city,founder,founded"), ("json", "{")]
)
def test_the_suffix_of_a_file_chooses_its_form(
    rolegate: Rolegate, gateway: str, tmp_path: Path, suffix: str, first: str
) -> None:
    out = tmp_path / f"cities.{suffix}"
    assert (
        rolegate("table", QUESTION, "--columns", COLUMNS, "--address", gateway, "--out", out).status
        == 0
    )
    assert out.read_text("utf-8").startswith(first)


def test_a_file_that_is_written_is_named(rolegate: Rolegate, gateway: str, tmp_path: Path) -> None:
    """The line is on standard error, so that a pipe has only the table."""
    out = tmp_path / "cities.md"
    filled = rolegate("table", QUESTION, "--columns", COLUMNS, "--address", gateway, "--out", out)
    assert filled.err.splitlines()[-1].endswith("cities.md is written")
    assert filled.out.splitlines() == MARKDOWN


@pytest.mark.parametrize(("rate", "hinted"), [(0.0, True), (0.5, False)])
def test_a_table_without_values_says_where_to_look(rate: float, hinted: bool) -> None:
    out, progress = (Console(file=StringIO(), width=200) for _ in range(2))
    known = pb.Completeness(rows=2, fill_rate=rate)
    view = TableView(out, progress, stream=False, as_json=False)
    view.show(Table(pb.Table(run_id="run-1", completeness=known)))
    file: Any = progress.file
    assert ("no lookup found a value: see `rolegate runs show RUN`" in file.getvalue()) == hinted


def test_a_table_without_rows_says_where_the_reason_is() -> None:
    out, progress = (Console(file=StringIO(), width=200) for _ in range(2))
    view = TableView(out, progress, stream=False, as_json=False)
    view.show(Table(pb.Table(run_id="run-1", outcome=pb.TABLE_OUTCOME_FILLED)))
    file: Any = progress.file
    assert ": 0 rows (for the reason: rolegate runs show run-1)" in file.getvalue()


def test_names_that_lists_have_beside_rows_are_named() -> None:
    out, progress = (Console(file=StringIO(), width=200) for _ in range(2))
    known = pb.Completeness(rows=2, left_out=["Tal", "Vor"])
    TableView(out, progress, stream=False, as_json=False).show(Table(pb.Table(completeness=known)))
    file: Any = progress.file
    assert "listed together with rows, but not in the table (2): Tal, Vor" in file.getvalue()


def test_choices_must_be_written(rolegate: Rolegate) -> None:
    """The error shows how, before a gateway is needed."""
    ended = rolegate("table", QUESTION, "--columns", "city*, size:choice")
    assert ended.status == 1
    assert "column 'size': the type choice needs choices, as" in ended.err


def test_known_rows_are_read_from_a_file(rolegate: Rolegate, gateway: str, tmp_path: Path) -> None:
    """Columns may have any order; a written file can be read again."""
    known = tmp_path / "known.csv"
    out = tmp_path / "out.csv"
    known.write_text("\ufeffFounded,City\n777,Tal\n")
    arguments = ("table", QUESTION, "--columns", COLUMNS, "--address", gateway, "--out", out)
    assert rolegate(*arguments, "--rows", known).status == 0
    assert out.read_text("utf-8").splitlines()[1] == "Tal,,777"
    second_run = rolegate(
        "table", QUESTION, "--columns", COLUMNS, "--address", gateway, "--rows", out, "--closed"
    )
    assert second_run.out.splitlines()[2:] == ["| Tal |  | 777 |", *MARKDOWN[2:]]


def test_impossible_tables_are_refused(
    rolegate: Rolegate, dead: str, gateway: str, tmp_path: Path
) -> None:
    """Nothing is started if the problem is known before."""
    (tmp_path / "known.csv").write_text("town\nTal\n")
    for options, message in (
        (("--columns", "a*:b"), "must be one of text, integer"),
        (("--columns", "a*", "--out", "t.xls"), "must end in .md or .csv or .tsv or .xlsx or"),
        (
            ("--columns", "a*", "--rows", tmp_path / "known.csv"),
            "the first line names none of the columns a;",
        ),
        (("--columns", "a*", "--rows", tmp_path / "none.csv"), "No such file"),
        (
            ("--columns", "a*", "--out", tmp_path / "none" / "t.csv"),
            "does not exist; create it first",
        ),
        (("--columns", "a"), "there is no key column to tell rows apart"),
    ):
        ended = rolegate("table", QUESTION, "--address", dead, *options)
        assert ended.status in (1, 2)
        assert message in ended.err
    status, out, err = rolegate("table", QUESTION, "--address", gateway, "--columns", "city*, City")
    assert (status, out) == (1, "")
    assert err.startswith("rolegate: columns")


def test_a_table_s_run_can_be_watched(rolegate: Rolegate, gateway: str) -> None:
    """It is shown as a table or as events for programs, and is in the list of runs."""
    with Client(gateway) as client:
        run_id = client.table(QUESTION, COLUMNS).run_id
    assert rolegate("runs", "watch", run_id, "--address", gateway).out.splitlines() == MARKDOWN
    events = rolegate("runs", "watch", run_id, "--address", gateway, "--json").out.splitlines()
    assert list(json.loads(events[-1]))[-1] == "done"
    shown = rolegate("runs", "show", run_id, "--address", gateway).out.splitlines()
    assert [line for line in shown if line.startswith("|")] == MARKDOWN
    assert run_id in rolegate("runs", "list", "--kind", "table", "--address", gateway).out


class Stream:
    """A stream of given events."""

    def __init__(self, *events: pb.StreamTableResponse) -> None:
        self._events = events

    def __enter__(self) -> Any:
        return self._events

    def __exit__(self, *_error: object) -> None:
        """Do nothing."""


def row(name: str, *cells: pb.Cell, merged: tuple[str, ...] = ()) -> pb.Row:
    """Return a row of a key and cells."""
    return pb.Row(row_id=name, cells=[pb.Cell(value=name), *cells], merged_row_ids=merged)


def test_progress_counts_rows_and_ends_with_disagreements() -> None:
    """A row that turns out to be an alias of another is no longer counted."""
    rival = pb.Claim(
        value="901", citations=[Citation(title="Annals", quote="Bel was founded in 901.")]
    )
    conflict = pb.Cell(
        value="900", state=pb.CELL_STATE_CONFLICT, support=pb.SUPPORT_STATED, rivals=[rival]
    )
    copied = pb.Cell(value="long ago", support=pb.SUPPORT_VALUE_ONLY, mistyped=True)
    columns = [pb.Column(name="city", key=True), pb.Column(name="founded")]
    table = pb.Table(
        run_id="run-1", columns=columns, rows=[row("Bel", conflict), row("Tal", copied)]
    )
    events = [
        pb.StreamTableResponse(planned=pb.Planned(columns=columns)),
        pb.StreamTableResponse(sub_query_dispatched=SubQueryDispatched(index=0)),
        *(
            pb.StreamTableResponse(row_changed=pb.RowChanged(row_id=event.row_id, row=event))
            for event in (
                row("Belu", pb.Cell(state=pb.CELL_STATE_MISSING)),
                row("Bel", conflict, merged=("Belu",)),
            )
        ),
        pb.StreamTableResponse(done=table),
    ]
    out, progress = (
        Console(file=StringIO(), width=80, force_terminal=True, color_system=None) for _ in range(2)
    )
    view = TableView(out, progress, stream=False, as_json=False)
    stream: Any = Stream(*events)
    view.show(Table(view.follow(stream)))
    files: list[Any] = [out.file, progress.file]
    shown, on_the_way = (file.getvalue() for file in files)
    assert "1 row, 1 sub-query under way: Bel, 900" in on_the_way
    assert "Bel, founded: 900, or 901 (Annals: “Bel was founded in 901.”)" in on_the_way
    assert "1 value to check: stated by no passage about the row: Tal, founded" in on_the_way
    assert "1 value to check: not of the column's type: Tal, founded" in on_the_way
    assert [line.split() for line in shown.splitlines() if "Bel" in line] == [["Bel", "900"]]


@pytest.mark.parametrize(
    "name",
    ["[link=http://evil.example]x[/link]", "[/]", "[red]x", "\x1b]8;;http://evil.example\x07x"],
)
def test_names_of_columns_are_shown_literally(name: str) -> None:
    """They are neither links nor styles, and cause no error."""
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    table = Table(pb.Table(columns=[pb.Column(name=name, key=True)], rows=[row("Bel")]))
    with visible_output():
        TableView(console, console, stream=False, as_json=False).show(table)
    assert name.replace("\x1b", "\\u001b").replace("\x07", "\\u0007") in out.getvalue()
    assert "\x1b]8" not in out.getvalue()


@pytest.mark.parametrize(("option", "needed"), [("--sources", "--out"), ("--closed", "--rows")])
def test_an_option_without_the_one_that_it_needs_is_refused(
    option: str, needed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would have no effect. No gateway is started."""
    with pytest.raises(SystemExit):
        main(["table", QUESTION, "--columns", COLUMNS, option])

    assert f"error: {option} has no effect without {needed}; give both\n" in capsys.readouterr().err
