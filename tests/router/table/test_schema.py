"""Schemas and given rows: refusals say what is wrong, where, and what to do."""

import pytest

from router.errors import BadRequest
from router.table.schema import checked_rows, checked_schema
from router.trace.table import Column

CITY = Column("City", key=True)
FOUNDED = Column("founded", "integer", ask="When was {city} founded?")


def test_valid_columns_and_rows_are_accepted() -> None:
    """Names in an ask are compared as headers are."""
    schema = checked_schema([CITY, FOUNDED, Column("kind", "choice", choices=("port", "mine"))])
    assert schema.keys == (CITY,)
    assert checked_rows(schema, [["Krurou", " 1321 ", "n/a"], ["Bel", "", ""]]) == (
        ("Krurou", "1321", ""),
        ("Bel", "", ""),
    )


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ([], "no key column given; mark"),
        ([FOUNDED], "no key column given; mark"),
        ([CITY, *(Column(f"c{number}") for number in range(64))], "65 columns given, at most 64"),
        (
            [CITY, FOUNDED, Column("**Founded**")],
            r"columns\[2\] '\*\*Founded\*\*': columns\[1\] has the same name",
        ),
        ([CITY, Column(" ")], r"columns\[1\] has no name"),
        (
            [CITY, Column("founded", ask="{city}" * 9)],
            "ask has 9 placeholders .limit: 8.",
        ),
        ([CITY, Column("kind", "choice")], "its type is choice, and it has 0 choices;"),
        ([CITY, Column("kind", choices=("a", "b"))], "its type is text, and it has 2 choices;"),
        ([CITY, Column("kind", "choice", choices=("a", "N/A"))], "leave it out"),
        (
            [CITY, Column("mayor", ask="Who leads {town}?")],
            r"contains \{town\}, which is not a key column; use \{City\}",
        ),
        (
            [CITY, Column("mayor", ask="Who leads it?")],
            r"the same for every row; name the row in it with \{City\}",
        ),
    ],
)
def test_invalid_columns_are_refused_by_place_and_name(columns: list[Column], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        checked_schema(columns)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([["Krurou", "1321"], ["Bel"]], r"rows\[1\]: must have 2 values, .* got 1"),
        (
            [["Krurou", ""], ["?", "1400"]],
            r"rows\[1\]: the key column 'City' is empty; fill it",
        ),
        (
            [["Krurou", ""], ["Bel", ""], ["**krurou**", "1"]],
            r"rows\[2\] has the same key as rows\[0\]",
        ),
    ],
)
def test_invalid_rows_are_refused_by_place(rows: list[list[str]], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        checked_rows(checked_schema([CITY, FOUNDED]), rows)
