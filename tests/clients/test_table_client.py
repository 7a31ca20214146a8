"""Tables through the Python client."""

import csv
import io
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from rolegate.client import AsyncClient, Client, GatewayError, Table
from rolegate.client.table import given_rows, joined, parse_columns, parse_conditions
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
    async with AsyncClient(f"127.0.0.1:{await server.start('127.0.0.1:0')}") as async_client:
        yield async_client
    await server.drain(0)


def test_a_table_is_returned_and_sent_back(gateway: str) -> None:
    """It can be converted to other forms; rows that are sent back are known."""
    with Client(gateway) as sync_client:
        table = sync_client.table(QUESTION, COLUMNS)
        second_table = sync_client.table(QUESTION, COLUMNS, table.rows, closed=True)
    assert (table.columns, table.rows) == (["city", "founder", "founded"], ROWS)
    assert table.to_markdown().splitlines()[::3] == [
        "| city | founder | founded |",
        "| Bel | Bo | 900 |",
    ]
    assert list(csv.reader(io.StringIO(table.to_csv()))) == [table.columns, *ROWS]
    assert second_table.rows == ROWS
    assert {cell.state for row in second_table.message.rows for cell in row.cells} == {
        pb.CELL_STATE_GIVEN
    }


def test_conditions_are_texts_or_messages(gateway: str) -> None:
    """Excluded rows are in the message."""
    message = pb.Condition(
        column=pb.Column(name="founded", type=pb.COLUMN_TYPE_TEXT),
        operator=pb.OPERATOR_AFTER,
        values=["1000"],
    )
    assert parse_conditions(["founded after 1000"]) == [message]
    with Client(gateway) as sync_client:
        for condition in ("founded after 1000", message):
            table = sync_client.table(QUESTION, COLUMNS, conditions=[condition])
            assert table.rows == ROWS[:1]
            assert [row.cells[0].value for row in table.message.excluded] == ["Bel"]


@pytest.mark.parametrize(
    ("text", "column", "operator", "values"),
    [
        ("founded:date at least 5 May 1990", "founded", pb.OPERATOR_AT_LEAST, ["5 May 1990"]),
        ("country one of Vorland|Norland", "country", pb.OPERATOR_ONE_OF, ["Vorland", "Norland"]),
        ("first name contains Ann", "first name", pb.OPERATOR_CONTAINS, ["Ann"]),
        ("所在国 equals 沃兰", "所在国", pb.OPERATOR_EQUALS, ["沃兰"]),
    ],
)
def test_a_condition_has_a_column_an_operator_and_values(
    text: str, column: str, operator: pb.Operator, values: list[str]
) -> None:
    (condition,) = parse_conditions([text])
    assert (condition.column.name, condition.operator) == (column, operator)
    assert [*condition.values] == values


@pytest.mark.parametrize("text", ["Is {city} in Veshoux?", "{城市}在沃兰吗？"])
def test_a_condition_may_be_a_question(text: str) -> None:
    (condition,) = parse_conditions([text])
    assert (condition.column.ask, condition.column.name) == (text, "")


@pytest.mark.parametrize("text", ["", "founded", "founded since 1990", "a" * 100_000])
def test_other_texts_are_no_conditions(text: str) -> None:
    with pytest.raises(ValueError, match="is not a condition; write"):
        parse_conditions([text])


def test_events_end_with_the_table(gateway: str) -> None:
    """They can be watched again later."""
    with Client(gateway) as sync_client:
        events = list(sync_client.stream_table(QUESTION, COLUMNS))
        watched = list(sync_client.watch(events[0].run_started.run_id))
    assert [event.WhichOneof("event") for event in watched] == [
        event.WhichOneof("event") for event in events
    ]
    assert Table(events[-1].done).rows == ROWS


async def test_the_async_client_fills_and_watches_tables() -> None:
    """A detached table is read when it is complete."""
    async with client() as async_client:
        assert (await async_client.table(QUESTION, COLUMNS)).rows == ROWS
        async with async_client.stream_table(QUESTION, COLUMNS) as events:
            kinds = [event.WhichOneof("event") async for event in events]
        assert kinds[-1] == "done"
        run_id = await async_client.begin_table(QUESTION, COLUMNS)
        *_, last = [event async for event in async_client.watch(run_id)]
        assert (await async_client.get_table(run_id)).message == last.done


async def test_a_table_larger_than_a_message_is_read_by_pages(gateway: str) -> None:
    known_rows = [[f"City {number}", "f" * 1000, "1"] for number in range(1500)]
    with Client(gateway) as sync_client:
        assert sync_client.table(QUESTION, COLUMNS, known_rows, closed=True).rows[:-2] == known_rows
        events = list(sync_client.stream_table(QUESTION, COLUMNS, known_rows, closed=True))
        assert events[-1].done.ByteSize() < 4 << 20
        assert events[-1].done.next_page_token
        assert sync_client.with_all_rows(events[-1].done).rows[:-2] == known_rows
    async with client() as async_client:
        assert (await async_client.table(QUESTION, COLUMNS, known_rows, closed=True)).rows[
            :-2
        ] == known_rows


def test_pages_are_joined_in_order() -> None:
    """They have one header."""
    header = "| a |\n| --- |\n"
    pages = [
        pb.Table(run_id="run-1", rows=[pb.Row(row_id=name)], markdown=f"{header}| {name} |\n")
        for name in ("x", "y")
    ]
    table = joined(pages)
    assert [row.row_id for row in table.message.rows] == ["x", "y"]
    assert table.to_markdown() == f"{header}| x |\n| y |\n"


def test_columns_are_parsed_from_text() -> None:
    """A star marks a key, and a type may follow. Messages are unchanged."""
    choice_column = pb.Column(name="size", type=pb.COLUMN_TYPE_CHOICE, choices=["small", "large"])
    assert parse_columns("size: small | large") == [choice_column]
    assert parse_columns(["Film title*", " year*: date", choice_column]) == [
        pb.Column(name="Film title", key=True, type=pb.COLUMN_TYPE_TEXT),
        pb.Column(name="year", key=True, type=pb.COLUMN_TYPE_DATE),
        choice_column,
    ]
    with pytest.raises(
        ValueError, match=r"type of column 'a:b' must be one of text, integer, .*, got 'b'"
    ):
        parse_columns("a:b")


def test_rows_are_given_by_column_name() -> None:
    """An omitted value is to be found; an unknown name is refused."""
    columns = parse_columns("a*, b")
    assert [
        list(row.values) for row in given_rows(columns, [{"b": "2", "a": "1"}, {"a": "3"}])
    ] == [
        ["1", "2"],
        ["3", ""],
    ]
    with pytest.raises(ValueError, match=r"rows\[1\] has a value for 'c', which is not a column"):
        given_rows(columns, [["1", "2"], {"c": "3"}])


def test_a_refusal_has_the_gateway_s_message(gateway: str) -> None:
    with (
        Client(gateway) as sync_client,
        pytest.raises(GatewayError, match="no key column given") as caught,
    ):
        sync_client.table(QUESTION, "city, founder")
    assert caught.value.reason == "BAD_REQUEST"


def test_the_example_prints_rows_table_and_error(gateway: str) -> None:
    completed, refused = (
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
    assert (completed.returncode, completed.stderr) == (0, "")
    rows, _, rest = completed.stdout.partition("| city | founder | founded |\n")
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
    assert refused.stderr.startswith("INVALID_ARGUMENT BAD_REQUEST : columns: no key column given")
