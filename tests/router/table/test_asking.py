"""Asks of a table: their ranks, and their words from the columns."""

from router.table.schema import question
from router.trace.table import Ask, Column, Schema
from tests.router.table.reports import discovery, fill

SCHEMA = Schema(
    (
        Column("city", key=True),
        Column("Country", key=True),
        Column("founded", "date", ask="When was {City} in {country} founded?"),
        Column("area", "number", about="without lakes", unit="km²"),
        Column("{mayor}"),
    )
)


def test_the_question_of_a_cell_uses_the_wording_of_its_column() -> None:
    """Without a wording it is plain. Inserted names are not expanded again."""
    assert (
        question(SCHEMA, ["{country}", "Vor"], ["founded"]) == "When was {country} in Vor founded?"
    )
    assert (
        question(SCHEMA, ["Bel", "Vor"], ["area"])
        == "What is the area (without lakes; in km²) of Bel, Vor?"
    )
    assert question(SCHEMA, ["Bel", "Vor"], ["{mayor}"]) == "What is the {mayor} of Bel, Vor?"


def test_the_question_of_several_cells_has_a_line_for_each() -> None:
    """The line begins with the name of the column."""
    assert question(SCHEMA, ["Bel", "Vor"], ["area", "founded"]) == (
        "Bel, Vor:\n- founded: When was Bel in Vor founded?\n"
        "- area: What is the area (without lakes; in km²) of Bel, Vor?"
    )


def test_discoveries_rank_before_fills_and_fills_before_settlements() -> None:
    """Discoveries keep their written order, so that a failure does not move rows.

    First attempts come first.
    """
    asks = [
        discovery(1),
        discovery(1, attempt=2),
        discovery(2),
        fill("bel", "founded"),
        fill("tal", "founded"),
        fill("bel", "founded", attempt=2),
        Ask("settle", ("founded",), ("bel",)),
    ]
    assert sorted(sorted(asks, key=str), key=lambda ask: ask.rank) == asks
