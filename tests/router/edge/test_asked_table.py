"""Questions in WideSearch's form are answered with a table."""

from functools import partial
from pathlib import Path

import pytest

from router.edge.asked_table import table_asked_for
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
def test_columns_that_are_named(named: str, columns: str) -> None:
    """In one line or several; those up to the first that is no year or the like are keys."""
    asked = (
        "Which lights are there?\nPlease organize the results in one Markdown table "
        f"{named}{ENDING}"
    )
    table = table_asked_for(asked)
    assert table is not None
    assert [
        column.name.split("(")[0].split("（")[0].strip() for column in table.columns
    ] == columns.split()
    keys = [column.key for column in table.columns]
    assert keys == (
        [True, True, False] if columns.startswith(("Year", "年份")) else [True, False, False]
    )
    assert table.question == asked


def test_keys_that_are_named() -> None:
    """By a star, wherever they stand."""
    table = table_asked_for("All lights, as a table with the columns: Island, Light*, Lit*")
    assert table is not None
    keys = {column.name: column.key for column in table.columns}
    assert keys == {"Island": False, "Light": True, "Lit": True}


@pytest.mark.parametrize(
    "question",
    [
        "Who directed Heat?",
        "Which columns does the temple have: Doric, Ionic or both?",
        "What stands in the table of columns?",
        "Make a table with the columns: Light, light",
        "Make a table with the column: Light",
    ],
)
def test_other_questions(question: str) -> None:
    """Name no table with several columns."""
    assert table_asked_for(question) is None


async def test_a_table_over_openai_s_protocol(tmp_path: Path) -> None:
    """In Markdown, fenced, with the sentences that it rests on."""
    world = World(5)
    question = (
        "List all cities of the register in one Markdown table with the columns: city, "
        "founder, founded"
    )
    async with gateway(tmp_path, world) as (real, _), served(real) as session:
        status, reply = await posted(session, messages=[{"role": "user", "content": question}])
    assert status == 200
    fence, _, below = reply["choices"][0]["message"]["content"].partition("\n```\n\nSources:\n[1] ")
    header = fence.splitlines()[:3]
    rows = fence.splitlines()[3:]
    assert header == ["```markdown", "| city | founder | founded |", "| --- | --- | --- |"]
    assert sorted(rows) == sorted(f"| {' | '.join(row)} |" for row in world.rows())
    assert f"“{world.cities[0]} was founded in 1000.”" in below
    assert reply["rolegate"]["outcome"] == "filled"
    assert reply["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("chars", [5000, 100_000])
async def test_a_question_that_is_too_long_is_refused_before_it_is_read(
    chars: int, tmp_path: Path
) -> None:
    """However often it names columns."""
    async with gateway(tmp_path, World(1)) as (real, _), served(real) as session:
        status, reply = await posted(session, messages=[{"role": "user", "content": named(chars)}])
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
def test_columns_that_are_named_again_and_again(unit: str) -> None:
    """A question takes as much longer than a tenth of it as it is longer."""
    assert grows_linearly(
        partial(table_asked_for, named(4000, unit)), partial(table_asked_for, named(400, unit))
    )
