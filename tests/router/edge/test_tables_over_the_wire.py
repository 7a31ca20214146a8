"""Rows, keys and values of reports, as `GetTable` returns them."""

from typing import Any

import msgspec
import pytest
from rolegate.v1 import table_service_pb2 as pb

from router.protocol import Report
from router.trace import Execution
from router.trace.table import Ask, Column, Schema
from router.trace.values import TableRun
from tests.router.edge.test_table_service import values, wired
from tests.router.store.stored import run
from tests.router.table.reports import executed, listed

CITIES = Schema((Column("city", key=True), Column("people", "number")))
CAPITALS = Schema((Column("city", key=True), Column("capital", "boolean")))


async def table_of(schema: Schema, *reports: Execution, rows: Any = ()) -> pb.Table:
    """Return the table of a stored run whose discoveries gave these reports."""
    names = tuple(column.name for column in schema.columns)
    asks = tuple(Ask("discover", names, discovery=at + 1) for at in range(len(reports)))
    result = TableRun(schema, rows, asks, reports)
    stored = msgspec.structs.replace(run("run-1"), kind="table", result=result)
    async with wired() as services:
        services.store.runs[:] = [stored]
        request = pb.GetTableRequest(run_id="run-1", page_size=1000)
        return (await services.tables.GetTable(request)).table


@pytest.mark.parametrize(
    "names",
    [
        " ".join(f"City {at} formerly City {at + 1}." for at in range(0, 60, 2)),
        "City 0 formerly City 1. " + "".join(f"City {at} formerly " for at in range(2, 60)),
    ],
)
async def test_one_document_merges_no_rows(names: str) -> None:
    """Each of 60 cities keeps its row."""
    cities = "\n".join(f"- City {at}" for at in range(60))
    table = await table_of(CITIES, executed(cities, f"Evil: {names}"))
    assert len(table.rows) == 60
    assert not any(row.merged_row_ids for row in table.rows)


@pytest.mark.parametrize(
    ("written", "is_number"),
    [
        *((number, True) for number in ("350萬", "3億円", "US$1.2M", "10⁶", "1871¹", "350 MM")),
        *((text, False) for text in ("350 gazillion", "12 dozen", "5G", "R$ 3,5 mi")),
    ],
)
async def test_a_number_with_an_unknown_unit_is_mistyped(written: str, is_number: bool) -> None:
    """The value stays as it was written."""
    text = f"| city | people |\n|---|---|\n| Bel | {written} |"
    table = await table_of(CITIES, executed(text, f"Bel: The people of Bel are {written}."))
    (row,) = table.rows
    assert (row.cells[1].value, row.cells[1].mistyped) == (written, not is_number)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("O’Neill", "O'Neill"),
        ("Foo–Bar", "Foo-Bar"),
        ("F\u200boo", "Foo"),
        ("Cambridge（UK）", "Cambridge (UK)"),
    ],
)
async def test_a_name_in_two_spellings_is_one_row(one: str, other: str) -> None:
    """Also if one of them was given."""
    found = await table_of(CITIES, listed(f"- {one}"), listed(f"- {other}"))
    given = await table_of(CITIES, listed(f"- {other}"), rows=((one, ""),))
    assert (len(found.rows), len(given.rows)) == (1, 1)


@pytest.mark.parametrize("written", ["☑", "×", "○", "☒"])
async def test_a_sign_is_a_boolean(written: str) -> None:
    cell = await _capital(written)
    assert (cell.value, cell.mistyped) == (written, False)
    assert cell.state != pb.CELL_STATE_MISSING


@pytest.mark.parametrize("written", ["暂无数据", "未公开", "不明", "Not disclosed"])
async def test_a_word_for_no_value_leaves_the_cell_empty(written: str) -> None:
    cell = await _capital(written)
    assert cell.value == ""


async def _capital(written: str) -> pb.Cell:
    text = f"| city | capital |\n|---|---|\n| Bel | {written} |"
    evidence = f"Bel, capital: {written}."
    execution = executed(text, f"Bel: {evidence}")
    execution = msgspec.structs.replace(execution, report=Report(text, (evidence,)))
    return (await table_of(CAPITALS, execution)).rows[0].cells[1]


@pytest.mark.parametrize(
    ("report", "rows"),
    [
        ('[{"city": "Bel", "people": 5}]', [["Bel", "5"]]),
        ("[{'city': 'Bel', 'people': 5}]", [["Bel", "5"]]),
        ("<table><tr><th>city<th>people<tr><td>Bel<td>5</table>", [["Bel", "5"]]),
        ("city\tpeople\nBel\t5", [["Bel", "5"]]),
        ('{\n"Year": 1871\n}', []),
        ("I'm sorry, but I could not find any cities.", []),
    ],
)
async def test_a_report_in_another_notation_gives_its_rows(
    report: str, rows: list[list[str]]
) -> None:
    """What is no row is none."""
    table = await table_of(CITIES, executed(report, f"Bel: Bel has 5 people. {report}"))
    assert values(table) == rows
