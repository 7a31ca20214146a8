"""Tables, as Python programs ask for them."""

import csv
import io
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from rolegate.client import AsyncClient, Client, GatewayError, Table
from rolegate.client.table import given_rows, joined, parse_columns
from rolegate.v1 import table_service_pb2 as pb

from tests.router.deployment import Deployment
from tests.router.edge.wire import whole_server
from tests.scripted_gateway import ROOT, environment

QUESTION = "the cities of Vorland"
COLUMNS = "city*, founder, founded:integer"
ROWS = [["Krurou", "Ana", "1200"], ["Bel", "Bo", "900"]]


@asynccontextmanager
async def client() -> AsyncIterator[AsyncClient]:
    """A client of a gateway whose tables are scripted."""
    server = whole_server(Deployment())
    async with AsyncClient(f"127.0.0.1:{await server.start('127.0.0.1:0')}") as asked:
        yield asked
    await server.drain(0)


def test_a_table(gateway: str) -> None:
    """Rows with their values, and the other forms of it; sent back, they are known."""
    with Client(gateway) as asked:
        table = asked.table(QUESTION, COLUMNS)
        again = asked.table(QUESTION, COLUMNS, table.rows, closed=True)
    assert (table.columns, table.rows) == (["city", "founder", "founded"], ROWS)
    assert table.to_markdown().splitlines()[::3] == [
        "| city | founder | founded |",
        "| Bel | Bo | 900 |",
    ]
    assert list(csv.reader(io.StringIO(table.to_csv()))) == [table.columns, *ROWS]
    assert again.rows == ROWS
    assert {cell.state for row in again.message.rows for cell in row.cells} == {pb.CELL_STATE_GIVEN}


def test_events(gateway: str) -> None:
    """As they happen, the table last, and later again."""
    with Client(gateway) as asked:
        events = list(asked.stream_table(QUESTION, COLUMNS))
        again = list(asked.watch(events[0].run_started.run_id))
    assert [event.WhichOneof("event") for event in again] == [
        event.WhichOneof("event") for event in events
    ]
    assert Table(events[-1].done).rows == ROWS


async def test_asynchronously() -> None:
    """Each with await; one that goes on by itself is read when it has ended."""
    async with client() as asked:
        assert (await asked.table(QUESTION, COLUMNS)).rows == ROWS
        async with asked.stream_table(QUESTION, COLUMNS) as events:
            kinds = [event.WhichOneof("event") async for event in events]
        assert kinds[-1] == "done"
        run_id = await asked.begin_table(QUESTION, COLUMNS)
        *_, last = [event async for event in asked.watch(run_id)]
        assert (await asked.get_table(run_id)).message == last.done


async def test_a_table_that_is_larger_than_a_message(gateway: str) -> None:
    """The rows that there was no room for are asked for by pages."""
    given = [[f"City {number}", "f" * 1000, "1"] for number in range(1500)]
    with Client(gateway) as asked:
        assert asked.table(QUESTION, COLUMNS, given, closed=True).rows[:-2] == given
        events = list(asked.stream_table(QUESTION, COLUMNS, given, closed=True))
        assert events[-1].done.ByteSize() < 4 << 20
        assert events[-1].done.next_page_token
        assert asked.with_all_rows(events[-1].done).rows[:-2] == given
    async with client() as other:
        assert (await other.table(QUESTION, COLUMNS, given, closed=True)).rows[:-2] == given


def test_pages_are_one_table() -> None:
    """Their rows in order, under one header."""
    header = "| a |\n| --- |\n"
    pages = [
        pb.Table(run_id="run-1", rows=[pb.Row(row_id=name)], markdown=f"{header}| {name} |\n")
        for name in ("x", "y")
    ]
    whole = joined(pages)
    assert [row.row_id for row in whole.message.rows] == ["x", "y"]
    assert whole.to_markdown() == f"{header}| x |\n| y |\n"


def test_columns_in_words() -> None:
    """A star for keys, and a type; messages as they are."""
    own = pb.Column(name="size", type=pb.COLUMN_TYPE_CHOICE, choices=["small", "large"])
    assert parse_columns("size: small | large") == [own]
    assert parse_columns(["Film title*", " year*: date", own]) == [
        pb.Column(name="Film title", key=True, type=pb.COLUMN_TYPE_TEXT),
        pb.Column(name="year", key=True, type=pb.COLUMN_TYPE_DATE),
        own,
    ]
    with pytest.raises(
        ValueError, match=r"type of column 'a:b' must be one of text, integer, .*, got 'b'"
    ):
        parse_columns("a:b")


def test_rows_by_name() -> None:
    """What is left out is wanted; a name that there is not is refused."""
    columns = parse_columns("a*, b")
    assert [
        list(row.values) for row in given_rows(columns, [{"b": "2", "a": "1"}, {"a": "3"}])
    ] == [
        ["1", "2"],
        ["3", ""],
    ]
    with pytest.raises(ValueError, match=r"rows\[1\] has a value for 'c', which is not a column"):
        given_rows(columns, [["1", "2"], {"c": "3"}])


def test_what_is_refused(gateway: str) -> None:
    """The gateway's words."""
    with Client(gateway) as asked, pytest.raises(GatewayError, match="none is a key") as caught:
        asked.table(QUESTION, "city, founder")
    assert caught.value.reason == "BAD_REQUEST"


def test_the_example(gateway: str) -> None:
    """Tells rows as they change, then the table with its sources, and shows what an error is
    made of.
    """
    told, refused = (
        subprocess.run(
            [
                sys.executable,
                str(ROOT / "examples" / "python" / "table.py"),
                gateway,
                QUESTION,
                columns,
            ],
            capture_output=True,
            text=True,
            check=False,
            env=environment(),
            timeout=60,
        )
        for columns in (COLUMNS, "city, founder")
    )
    assert (told.returncode, told.stderr) == (0, "")
    rows, _, rest = told.stdout.partition("| city | founder | founded |\n")
    assert (rows.splitlines()[0], rows.splitlines()[-1]) == (
        "Krurou, missing, missing",
        "Bel, Bo, 900",
    )
    assert rest.splitlines()[1:4] == [
        "| Krurou | Ana | 1200 |",
        "| Bel | Bo | 900 |",
        "  Krurou, city: Register: The cities of Vorland are Krurou and Bel.",
    ]
    assert "  Bel, founded: Bel: Bel was founded in 900.\n" in rest
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("INVALID_ARGUMENT BAD_REQUEST : columns: none is a key")
