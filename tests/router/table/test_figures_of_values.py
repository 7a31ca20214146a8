"""Signs, bounds, units and fractions of numbers: what another number supports is not supported."""

import pytest

from router.protocol import Passage
from router.table.cell_value import canonical, is_mistyped
from router.table.support import Shown
from router.trace.table import Column, Support

NUMBER = Column("value", "number")
DATE = Column("value", "date")


def support(text: str, value: str, column: Column = NUMBER) -> Support:
    """Return the support of a value of the row "Krurou" in a text."""
    shown = Shown([Passage("p", "Krurou", text)])
    return shown.support(column, value, canonical(column, value), [" krurou "])[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("It has 7 °C.", "-7"),
        ("It has −5 °C.", "5"),
        ("The balance is -300 dollars.", "300"),
        ("It was founded in 1200.", "-1200"),
        ("It was founded in 1200.", "−1200"),
        ("It was founded in 1200.", "1200%"),
        ("It was founded in 1200.", "$1200"),
        ("It has 1,200,000 inhabitants.", "€1,200,000"),
        ("It has 1,200,000 inhabitants.", "1.2M ¥"),
        ("The plan in Europe costs $5 million.", "€5 million"),
        ("In 公元 5 it was founded.", "¥5"),
        ("About 1/2 of it is water.", "2"),
        ("About 3/4 of it is water.", "3"),
    ],
)
def test_another_number_does_not_support_a_value(text: str, value: str) -> None:
    assert support(text, value) == "unsupported"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("It has −5 °C.", "-5"),
        ("It lost (1,300) dollars.", "1300"),
        ("It has minus 5 degrees.", "-5"),
        ("The range is 1990-1995.", "1995"),
        ("- 300 people live there.", "300"),
        ("Share in percent: 45", "45%"),
        ("It costs 1.2 million dollars.", "US$1.2M"),
        ("票价 5 元", "¥5"),
        ("It is 5 procent.", "5 %"),
        ("It has 1,200,000 inhabitants.", "1200000"),
        ("It was built in 5/2010.", "2010"),
        ("人口350万人", "3500000"),
    ],
)
def test_the_same_number_in_another_form_does(text: str, value: str) -> None:
    assert support(text, value) == "stated"


def test_the_title_of_a_passage_states_a_number_that_is_a_key() -> None:
    column = Column("year", "integer", key=True)
    shown = Shown([Passage("p", "1998 Winter Games", "They took place in Nagano.")])
    assert shown.support(column, "1998", "1998", [" 1998 "])[0] == "stated"
    assert shown.holds(column, "1998")
    assert not shown.holds(column, "998")


@pytest.mark.parametrize(
    "value",
    (
        "not 1200|less than 1200|<1200|> 1200|more than 1200|vor 1200|до 1200|1200+|before 1200|"
        "after 1200|up to 1200|1200 or more|超过1200|1200以上"
    ).split("|"),
)
@pytest.mark.parametrize("column", [NUMBER, DATE])
def test_a_bound_is_not_a_value(value: str, column: Column) -> None:
    assert is_mistyped(column, value)


@pytest.mark.parametrize("value", ["c. 1200", "about 1200", "ca. 1200", "in 1200", "1200 (est.)"])
@pytest.mark.parametrize("column", [NUMBER, DATE])
def test_an_estimate_is_a_value(value: str, column: Column) -> None:
    assert not is_mistyped(column, value)
    assert canonical(column, value) == "1200"
