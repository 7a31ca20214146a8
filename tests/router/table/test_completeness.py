"""Completeness of a table: missing cells are counted, and missing rows estimated from repeated
names.
"""

from router.table.assembly import assemble
from router.table.completeness import completeness
from tests.router.table.reports import SCHEMA, discovery, executed, fill, listed


def test_cells_and_rows_are_counted() -> None:
    """Given ones are included."""
    reports = [
        (discovery(1), listed("- Krurou\n- Bel\n- Tal")),
        (discovery(2), listed("- Krurou\n- Vor")),
        (fill("krurou", "founder", "founded"), listed("founder: Ana Ruiz\nfounded: 1321")),
        (fill("bel", "founder"), executed("not found")),
        (fill("bel", "founder", attempt=2), executed("not found")),
        (fill("tal", "founder"), executed("Bo Li", "Tal: Bo Li.")),
        (fill("tal", "founder", attempt=2), executed("Cy", "Tal: Cy.")),
    ]
    table = assemble(SCHEMA, [["Far", "Di", "1500"]], reports)
    state = completeness(table, {discovery(1), discovery(2)})
    assert (state.rows, state.complete_rows) == (5, 2)
    assert state.cells == {"given": 3, "single": 6, "missing": 4, "not_found": 1, "conflict": 1}
    assert state.fill_rate == 0.5
    assert (state.rows_seen_once, state.estimated_rows) == (3, None)
    further = [(discovery(3), listed("- Bel\n- Xan")), (discovery(4), listed("- Xan"))]
    more = assemble(SCHEMA, [], [*reports[:2], *further])
    again = completeness(more, {discovery(number) for number in (1, 2, 3, 4)})
    assert (again.rows_seen_once, again.estimated_rows) == (2, 5)
    alone = completeness(table, {discovery(1)})
    assert (alone.rows_seen_once, alone.estimated_rows) == (3, None)


def test_an_empty_table_lacks_nothing() -> None:
    assert completeness(assemble(SCHEMA, [], []), ()).fill_rate == 1.0


def test_unseen_rows_are_estimated_from_names_in_one_and_two_discoveries() -> None:
    """The estimate by hand is 2.5."""
    once = "\n".join(f"- Once {number}" for number in range(6))
    twice = "\n".join(f"- Twice {number}" for number in range(5))
    thrice = "\n".join(f"- Thrice {number}" for number in range(12))
    texts = (f"{once}\n{twice}\n{thrice}", f"{twice}\n{thrice}", thrice)
    reports = [(discovery(number), listed(text)) for number, text in enumerate(texts, 1)]
    known = completeness(assemble(SCHEMA, [], reports), {ask for ask, _ in reports})
    assert (known.rows, known.rows_seen_once, known.estimated_rows) == (23, 6, round(25.5))
