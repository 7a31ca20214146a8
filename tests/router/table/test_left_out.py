"""Names that lists in passages have next to a table's rows, but that are no rows."""

import time

import pytest

from router.protocol import Passage
from router.table.assembly import assemble
from router.table.conditions import with_conditions
from router.table.left_out import MAX_LEFT_OUT, left_out, named_with_values, values_of
from router.trace.table import Column, Condition, Operator
from tests.router.table.reports import SCHEMA, discovery, executed, fill

REPORT = "- Krurou\n- Bel"
OF_BEL = "Bel was founded by Ana Ruiz in 1300. Bel (Ana Ruiz, 1300) is a city."


def names(text: str, *others: str) -> tuple[str, ...]:
    """Return the names left out by a discovery that lists Krurou and Bel from a passage `text`."""
    reports = [(discovery(1), executed(REPORT, f"Register: {text}", *others))]
    return left_out(assemble(SCHEMA, [], reports), reports)


@pytest.mark.parametrize(
    "text",
    [
        "The cities are Old Dal, Krurou, Tal, Bel and Vor Nes. It rains.",
        "The cities of Vorland are Krurou, Tal, Bel, Vor Nes, and so on.",
        "Cities: Krurou; Tal; Bel; Vor Nes.",
        "Cities:\n- Krurou\n- Tal\n* Bel\n4. Vor Nes",
        "Cities\n| Krurou | 3 |\n| Tal | 4 |\n| Bel | 5 |\n| Vor Nes |",
        "There are 城、Krurou、Tal、Bel、Vor Nes。",
        "Krurou, Tal, which is old, Bel, and Vor Nes.",
    ],
)
def test_other_names_of_a_list_with_two_rows_are_left_out(text: str) -> None:
    """Clauses in the list are no names."""
    assert {"Tal", "Vor Nes"} <= set(names(text))
    assert len(names(text)) == 2


@pytest.mark.parametrize(
    "text",
    [
        "Krurou, Tal and Vor are old.",
        "The cities are Tal, Krurou and Vor.",
        "Krurou is near Bel. Tal, Vor and Nes are far.",
        "Krurou and Bel.",
        "",
    ],
)
def test_a_list_with_fewer_than_two_rows_has_none(text: str) -> None:
    assert names(text, "Elsewhere: Krurou and Bel.") == ()


def test_passages_of_cells_are_not_read() -> None:
    reports = [
        (discovery(1), executed(REPORT, "Register: Krurou and Bel.")),
        (fill("bel", "founder"), executed("Ana", "Bel: Krurou, Bel and Tal. Ana founded Bel.")),
    ]
    assert left_out(assemble(SCHEMA, [], reports), reports) == ()


def test_their_number_and_the_time_are_bounded() -> None:
    """A list of 400,000 characters is read in about twice the time of half of it."""
    times = []
    for size in (25_000, 50_000):
        text = "Krurou, Bel, " + ", ".join(f"Na{number}" for number in range(size))
        began = time.process_time()
        assert len(names(text)) == MAX_LEFT_OUT
        times.append(time.process_time() - began)
    assert times[1] < 4 * times[0]


def with_value(
    value: str, *passages: str, row: str = OF_BEL, operator: Operator = "equals"
) -> tuple[str, ...]:
    """Return the names in passages that name a value which the founder must have. Bel is a row."""
    schema = with_conditions(SCHEMA, [Condition(Column("founder"), operator, (value,))])
    execution = executed("- Bel", f"Bel: {row}", *passages)
    table = assemble(schema, [], [(discovery(1), execution)])
    shown, *others = execution.searches[0].shown
    found = named_with_values(table, [shown, *others], [])
    if not any("," in text for text in passages):
        assert found == named_with_values(table, [shown], others)
    return found


@pytest.mark.parametrize(
    ("passage", "found"),
    [
        ("Cities of Ana Ruiz: Ana Ruiz founded Bel, Tal and Vor Nes.", ["Tal", "Vor Nes"]),
        ("Cities of Ana Ruiz: A list for Ana Ruiz. It has Tal, Bel, Dal.", ["Tal", "Dal"]),
        ("Krurou: It is old. Krurou was founded by Ana Ruiz in 1200.", ["Krurou"]),
        ("Krurou: Krurou was sold by Ana Ruiz in 1200.", []),
        ("Krurou: Krurou (Ana Ruiz, 1200) is a city.", ["Krurou"]),
        ("List of cities of Ana Ruiz: Ana Ruiz founded two cities.", []),
        ("Notes: Its founder is Ana Ruiz.", []),
        ("Annals: These annals are old. Ana Ruiz founded the city told of here.", []),
        ("Register: Bo Lund founded Tal, Bel and Dal.", []),
        ("Krurou: Krurou was founded by Bo Lund in 1200.", []),
        (": Krurou was founded by Ana Ruiz in 1200.", []),
    ],
)
def test_names_in_passages_about_the_value_of_a_condition(passage: str, found: list[str]) -> None:
    """A title is a name where a sentence says of it what another one says of a row, and it does not
    name the value. Titles count in passages that no executor was shown, too.
    """
    assert [*with_value("Ana Ruiz", passage)] == found


def test_titles_in_chinese_are_names() -> None:
    assert with_value("安娜", "城: 城由安娜创立于1200年。", row="Bel由安娜创立于1300年。") == (
        "城",
    )


def test_titles_are_no_names_if_no_sentence_is_about_a_row() -> None:
    assert with_value("Ana Ruiz", f"Krurou: {OF_BEL}", row="Bel is old.") == ()


def test_only_conditions_on_the_equality_of_texts_lead_to_names() -> None:
    passage = "Krurou: Krurou was founded by Ana Ruiz in 1200."
    assert with_value("Ana Ruiz", passage, operator="one_of") == ("Krurou",)
    assert with_value("Ana Ruiz", passage, operator="contains") == ()
    year = with_conditions(SCHEMA, [Condition(Column("founded"), "equals", ("1200",))])
    execution = executed("- Bel", f"Bel: {OF_BEL}", passage)
    table = assemble(year, [], [(discovery(1), execution)])
    assert named_with_values(table, execution.searches[0].shown, []) == ()
    assert values_of(year) == []


def test_reading_further_passages_takes_linear_time() -> None:
    """For passages of one long sentence, and of many short ones."""
    schema = with_conditions(SCHEMA, [Condition(Column("founder"), "one_of", ("Ana", "Bo"))])
    table = assemble(schema, [], [(discovery(1), executed("- Bel", "Bel: Bel is old."))])
    for unit in ("Ana and Krurou and ", "Krurou is of Ana. ", "a"):
        times = []
        for size in (4_000, 16_000):
            passages = [Passage("1", "Krurou", unit * size)]
            began = time.process_time()
            named_with_values(table, passages, passages)
            times.append(time.process_time() - began)
        assert times[1] < 12 * times[0] + 0.05
