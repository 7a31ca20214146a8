"""Tables asked for by model or response format, and the columns they have."""

from pathlib import Path
from typing import Any

import pytest

from router.edge.asked_table import asked_table
from router.errors import BadRequest
from tests.router.edge.stalls import named
from tests.router.edge.test_openai_server import posted, served
from tests.router.table.small_world import World, gateway


@pytest.mark.parametrize(
    "line",
    [
        "columns: Island*, Light, Lit:integer",
        "Columns : Island, Light , Lit:integer\n",
        "列名：Island，Light，Lit:integer",
    ],
)
def test_columns_that_are_named(line: str) -> None:
    """On the last line, with their types; the first is the key if none is marked."""
    asked = f"All lights\nthat there are\n{line}"
    table = asked_table(asked)
    assert [(column.name, column.key, column.type) for column in table.columns] == [
        ("Island", True, "text"),
        ("Light", False, "text"),
        ("Lit", False, "integer"),
    ]
    assert table.question == asked


def test_keys_that_are_named() -> None:
    """By a star, wherever they stand."""
    table = asked_table("All lights\ncolumns: Island, Light*, Lit*")
    keys = {column.name: column.key for column in table.columns}
    assert keys == {"Island": False, "Light": True, "Lit": True}


@pytest.mark.parametrize(
    "question",
    [
        "Who directed Heat?",
        "What stands in the table of columns?",
        "All lights, with the columns: Island, Light",
        "columns: Island, Light\nof all lights",
        "columns:",
    ],
)
def test_questions_that_name_no_columns(question: str) -> None:
    """The error says how to name them."""
    with pytest.raises(BadRequest, match=r"end it with a line such as `columns: city\*"):
        asked_table(question)


@pytest.mark.parametrize("columns", ["b," * 2001, ["b"] * 4001])
def test_too_many_columns_are_not_read(columns: str | list[str]) -> None:
    with pytest.raises(BadRequest, match="columns is longer than 4000; name at most 64"):
        asked_table("All lights", columns)


def test_columns_in_a_list() -> None:
    """They have types and keys, and are checked."""
    table = asked_table("All lights", "Island*, Lit:integer")
    assert [(column.name, column.key, column.type) for column in table.columns] == [
        ("Island", True, "text"),
        ("Lit", False, "integer"),
    ]
    with pytest.raises(BadRequest, match="type of column 'Lit:dog' must be one of"):
        asked_table("All lights", ["Island*", "Lit:dog"])


NAMING = "List all cities of the register\ncolumns: city, founder, founded"


@pytest.mark.parametrize(
    ("question", "fields"),
    [
        (NAMING, {"model": "rolegate-table"}),
        (NAMING, {"response_format": {"type": "table"}}),
        (
            "List all cities of the register",
            {"response_format": {"type": "table", "columns": "city*, founder, founded"}},
        ),
    ],
)
async def test_a_table_over_openai_s_protocol(
    question: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    """In Markdown, fenced, with the sentences that it rests on."""
    world = World(5)
    async with gateway(tmp_path, world) as (real, _), served(real) as session:
        status, reply = await posted(
            session, messages=[{"role": "user", "content": question}], **fields
        )
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
        status, reply = await posted(
            session,
            model="rolegate-table",
            messages=[{"role": "user", "content": named(chars)}],
        )
    assert (status, reply["error"]["code"]) == (400, "BAD_REQUEST")
    assert f"question has {chars} characters; at most 4000 are allowed" in reply["error"]["message"]
