"""Tables requested by model, by response format or in WideSearch's form, and their columns."""

import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from router.edge.asked_table import asked_table, is_widesearch
from router.errors import BadRequest, RolegateError
from tests.router.edge.stalls import LIGATURE, named
from tests.router.edge.test_openai_server import posted, served
from tests.router.protocol.test_parse_time import grows_linearly
from tests.router.table.small_world import World, gateway

ENDING = "\n\nDon't ask me any questions. The output format is ```markdown\n{data_content}\n```."


@pytest.mark.parametrize(
    ("named", "columns"),
    [
        (
            "with the following columns:\nIsland, Light (in m, as of 2020), and Keeper(s).",
            "Island Light Keeper",
        ),
        (
            "with the columns: Island, Light, Keeper. For missing ones, fill in '/'.",
            "Island Light Keeper",
        ),
        (
            ". The column names in the table are as follows in sequence:\nYear, Light, Keeper",
            "Year Light Keeper",
        ),
        ("with the column names as: \nYear\nLight\nKeeper", "Year Light Keeper"),
        ("with these columns, in this order:\n Year | Light |  Keeper |", "Year Light Keeper"),
        ("。表格中的列名依次为：\n年份、灯塔（中文）、国家。不要问我任何问题", "年份 灯塔 国家"),
    ],
)
def test_columns_are_read_from_the_question(named: str, columns: str) -> None:
    """They stand on one line or on several. Columns up to the first that is no year or the like
    are keys.
    """
    question = (
        "Which lights are there?\nPlease organize the results in one Markdown table "
        f"{named}{ENDING}"
    )
    assert is_widesearch(question)
    table = asked_table(question)
    assert [
        column.name.split("(")[0].split("（")[0].strip() for column in table.columns
    ] == columns.split()
    keys = [column.key for column in table.columns]
    assert keys == (
        [True, True, False] if columns.startswith(("Year", "年份")) else [True, False, False]
    )
    assert table.question == question


def test_a_star_marks_a_key() -> None:
    """It may stand at any column."""
    table = asked_table("All lights, as a table with the columns: Island, Light*, Lit*")
    keys = {column.name: column.key for column in table.columns}
    assert keys == {"Island": False, "Light": True, "Lit": True}


@pytest.mark.parametrize(
    "question",
    [
        "Who directed Heat?",
        "What stands in the table of columns?",
        "Make a table with the columns: Light, light",
        "Make a table with the column: Light",
    ],
)
def test_a_question_without_columns_is_refused(question: str) -> None:
    """The error says how to name them. Such a question is not in WideSearch's form."""
    assert not is_widesearch(question)
    with pytest.raises(BadRequest, match=r"end it with a line such as `columns: city\*"):
        asked_table(question)


def test_listed_columns_have_types_and_keys() -> None:
    table = asked_table("All lights", "Island*, Lit:integer")
    assert [(column.name, column.key, column.type) for column in table.columns] == [
        ("Island", True, "text"),
        ("Lit", False, "integer"),
    ]
    with pytest.raises(BadRequest, match="type of column 'Lit:dog' must be one of"):
        asked_table("All lights", ["Island*", "Lit:dog"])


NAMING = "List all cities of the register with the columns: city, founder, founded"


@pytest.mark.parametrize(
    ("question", "fields"),
    [
        (NAMING, {"model": "rolegate-table"}),
        (NAMING, {"response_format": {"type": "table"}}),
        (
            "List all cities of the register",
            {"response_format": {"type": "table", "columns": "city*, founder, founded"}},
        ),
        (f"{NAMING}{ENDING}", {}),
    ],
)
async def test_a_table_over_openai_s_protocol(
    question: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    """The table is fenced Markdown, with its supporting sentences below."""
    world = World(5)
    async with gateway(tmp_path, world) as (filling, _), served(filling) as session:
        status, reply = await posted(
            session, messages=[{"role": "user", "content": question}], **fields
        )
    assert status == 200
    fence, _, sources = reply["choices"][0]["message"]["content"].partition(
        "\n```\n\nSources:\n[1] "
    )
    header = fence.splitlines()[:3]
    rows = fence.splitlines()[3:]
    assert header == ["```markdown", "| city | founder | founded |", "| --- | --- | --- |"]
    assert sorted(rows) == sorted(f"| {' | '.join(row)} |" for row in world.rows())
    assert f"“{world.cities[0]} was founded in 1000.”" in sources
    assert reply["rolegate"]["outcome"] == "filled"
    assert reply["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("chars", [5000, 100_000])
async def test_a_question_that_is_too_long_is_refused_before_it_is_read(
    chars: int, tmp_path: Path
) -> None:
    """Holds for any number of columns."""
    async with gateway(tmp_path, World(1)) as (filling, _), served(filling) as session:
        status, reply = await posted(
            session,
            model="rolegate-table",
            messages=[{"role": "user", "content": named(chars)}],
        )
    assert (status, reply["error"]["code"]) == (400, "BAD_REQUEST")
    assert f"question has {chars} characters; at most 4000 are allowed" in reply["error"]["message"]


@pytest.mark.timing
@pytest.mark.parametrize(
    "unit",
    [
        "column: " + "b," * 6,
        "columns: (,",
        "列名：a、",
        "column:\n \na\n",
        f"column: {LIGATURE},b,",
    ],
)
def test_columns_are_read_in_linear_time(unit: str) -> None:
    """Ten times the question takes ten times as long."""
    assert grows_linearly(partial(_read, named(4000, unit)), partial(_read, named(400, unit)))


def _read(question: str) -> None:
    with suppress(RolegateError):
        asked_table(question)


@pytest.mark.parametrize(
    ("columns", "refusal"),
    [
        ("a," * 500_000, "the list of columns is longer than 40,000"),
        ("," * 1_000_000, "the list of columns is longer than 40,000"),
        ("," * 39_000, "39001 columns given, at most 64"),
        (["a"] * 250_000, "the list of columns is longer than 40,000"),
        ([""] * 250_000, "250000 columns given, at most 64"),
        (["a" * 1000] * 64, "the list of columns is longer than 40,000"),
        (f"city*,b:{'x|' * 400_000}", "the list of columns is longer than 40,000"),
    ],
    ids=["many", "commas", "fewer commas", "list", "empty list", "long list", "choices"],
)
def test_listed_columns_are_counted_before_they_are_read(
    columns: str | list[str], refusal: str
) -> None:
    """Splitting or reading a megabyte of columns would hold the event loop."""
    start = time.thread_time()
    with pytest.raises(BadRequest, match=f"^columns: {refusal}"):
        asked_table("the cities", columns)
    assert time.thread_time() - start < 0.05
