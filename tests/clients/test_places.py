"""The place of a citation, as one line names it."""

import pytest
from rolegate.client.text import place


@pytest.mark.parametrize(
    ("title", "page", "location", "line"),
    [
        ("prices › Prices", 0, "sheet Prices, row 4", "prices › Prices, row 4"),
        ("prices", 0, "sheet Prices, row 4", "prices, sheet Prices, row 4"),
        ("Heat", 3, "", "Heat, p. 3"),
        ("talk", None, "slide 3", "talk, slide 3"),
    ],
)
def test_a_sheet_is_named_once(title: str, page: int | None, location: str, line: str) -> None:
    assert place(title, page, location) == line
