"""What a table lacks is counted, and estimated from how often its rows were found."""

import pytest

from router.table.assembly import assemble
from router.table.completeness import chao1, completeness
from tests.router.table.reports import SCHEMA, discovery, executed, fill


@pytest.mark.parametrize(
    ("seen", "once", "twice", "estimate", "at_most"),
    [
        (10, 0, 4, 10, 10),
        (10, 1, 0, 10, 10),
        (23, 6, 5, 25.5, 38.3),  # T = 2.5, variance 2.5 + 5.0417 + 0.8681 = 8.4097
        (10, 4, 0, 16, 49.6),  # T = 6, variance 6 + 49 = 55
    ],
)
def test_chao1(seen: int, once: int, twice: int, estimate: float, at_most: float) -> None:
    """Computed by hand."""
    assert chao1(seen, once, twice) == pytest.approx((estimate, at_most), abs=0.05)


def test_the_state_of_a_table() -> None:
    """Counts of cells and rows, given ones among them."""
    reports = [
        (discovery(1), executed("- Krurou\n- Bel\n- Tal")),
        (discovery(2), executed("- Krurou\n- Vor")),
        (fill("krurou", "founder", "founded"), executed("founder: Ana Ruiz\nfounded: 1321")),
        (fill("bel", "founder"), executed("not found")),
        (fill("bel", "founder", attempt=2), executed("not found")),
        (fill("tal", "founder"), executed("Bo Li", "Tal: Bo Li.")),
        (fill("tal", "founder", attempt=2), executed("Cy", "Tal: Cy.")),
    ]
    table = assemble(SCHEMA, [["Far", "Di", "1500"]], reports)
    found = completeness(table, {discovery(1), discovery(2)})
    assert (found.rows, found.complete_rows) == (5, 2)
    assert found.cells == {"given": 3, "single": 6, "missing": 4, "not_found": 1, "conflict": 1}
    assert found.fill_rate == 0.5
    assert (found.rows_seen_once, found.estimated_rows, found.estimated_rows_at_most) == (
        3,
        None,
        None,
    )
    further = [(discovery(3), executed("- Bel\n- Xan")), (discovery(4), executed("- Xan"))]
    more = assemble(SCHEMA, [], [*reports[:2], *further])
    again = completeness(more, {discovery(number) for number in (1, 2, 3, 4)})
    assert (again.rows_seen_once, again.estimated_rows, again.estimated_rows_at_most) == (2, 5, 10)
    alone = completeness(table, {discovery(1)})
    assert (alone.rows_seen_once, alone.estimated_rows) == (3, None)


def test_an_empty_table() -> None:
    """Nothing is missing in it."""
    assert completeness(assemble(SCHEMA, [], []), ()).fill_rate == 1.0
