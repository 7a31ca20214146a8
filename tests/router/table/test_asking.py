"""Asks have a rank of their own, and words from their columns."""

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


def test_the_words_of_a_cell() -> None:
    """Those of its column, or plain ones; what is put in is not read again."""
    assert (
        question(SCHEMA, ["{country}", "Vor"], ["founded"]) == "When was {country} in Vor founded?"
    )
    assert (
        question(SCHEMA, ["Bel", "Vor"], ["area"])
        == "What is the area (without lakes; in km²) of Bel, Vor?"
    )
    assert question(SCHEMA, ["Bel", "Vor"], ["{mayor}"]) == "What is the {mayor} of Bel, Vor?"


def test_the_words_of_several_cells() -> None:
    """A line for each, by its column's name."""
    assert question(SCHEMA, ["Bel", "Vor"], ["area", "founded"]) == (
        "Bel, Vor:\n- founded: When was Bel in Vor founded?\n"
        "- area: What is the area (without lakes; in km²) of Bel, Vor?"
    )


def test_the_rank_of_asks() -> None:
    """Discoveries as they were written, so that rows stand where they would have without a failure;
    then fills, then what is to be settled, first attempts first.
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
