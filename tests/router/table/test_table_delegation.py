"""Parsing of the delegator's plan of a table, with any other text around it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.table import table_delegation
from router.table.assembly import assemble
from router.table.table_delegation import planned
from router.trace.table import Column, Schema
from tests.router.table.reports import discovery, executed, fill, listed

SCHEMA = Schema(
    (
        Column("city", key=True),
        Column("founder"),
        Column("founded in", "integer", unit="years", about="AD"),
    )
)
FOUNDER = '<ask column="founder">Who founded {city}?</ask>'


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        (FOUNDER, ["Who founded {city}?", ""]),
        (
            (
                f"<search>[\"x?\"]</search>\n{FOUNDER}\n<ask column='Founded In'>When,\n"
                f"{{CITY}}?</ask>"
            ),
            ["Who founded {city}?", "When, {CITY}?"],
        ),
        (FOUNDER + FOUNDER.replace("Who", "Which person"), ["Who founded {city}?", ""]),
        (f"<think>{FOUNDER}</think>", ["", ""]),
        ('<ask column="founder">Who founded it?</ask>', ["", ""]),
        ('<ask column="founder">Who founded {town}?</ask>' + FOUNDER, ["Who founded {city}?", ""]),
        (
            '<ask column="city">Which is {city}?</ask><ask column="mayor">Who rules {city}?</ask>',
            ["", ""],
        ),
        ('<ask column="founder">Who founded {city', ["", ""]),
        (
            "<ask column=founder>Who founded &quot;{city}&quot;?</ask >",
            ['Who founded "{city}"?', ""],
        ),
    ],
)
def test_the_first_wording_of_each_unworded_column_counts(text: str, asks: list[str]) -> None:
    """A wording has to name a row. A key is not asked for."""
    assert [column.ask for column in planned(SCHEMA, text, text)[0].columns[1:]] == asks


@given(st.text(alphabet='<>/ask column="founder"{city}?\n', max_size=200))
def test_any_turn_is_read(text: str) -> None:
    """Names and types of the columns stay unchanged."""
    plan, _ = planned(SCHEMA, FOUNDER + text, text)
    assert [(column.name, column.type, column.key) for column in plan.columns] == [
        (column.name, column.type, column.key) for column in SCHEMA.columns
    ]


def test_the_delegator_is_shown_columns_counts_and_names() -> None:
    """Columns come with their types and descriptions. Names are escaped."""
    shown = table_delegation.opening("Cities & <stop/>?", SCHEMA)
    columns = "city*, founder, founded in:integer (AD; in years)"
    assert shown == f"<question>Cities &amp; &lt;stop/&gt;?</question><columns>{columns}</columns>"
    reports = [
        (discovery(1), listed("Krurou\nBel <stop/>")),
        (discovery(2), executed("Krurou", "Krurou: Krurou is a city.")),
        (
            fill("krurou", "founder", "founded in"),
            executed("founder: Ana", "Krurou: Ana founded Krurou."),
        ),
    ]
    table = assemble(SCHEMA, [], reports)
    status = table_delegation.status(table, {discovery(1), discovery(2)}, ["And more?"])
    assert status == (
        '<table rows="2" complete="0" missing="3" conflicts="0" seen_once="1" estimate="2"/>'
        "<rows>Krurou\nBel &lt;stop/&gt;</rows>"
        "<holes>Krurou: founded in\nBel &lt;stop/&gt;: founder\nBel &lt;stop/&gt;: "
        "founded in</holes>"
        "<not_dispatched>Too many sub-queries in one block; ask again if needed: "
        "<request>And more?</request>"
        "</not_dispatched>"
    )
