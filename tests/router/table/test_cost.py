"""Costs of a table: rows and overhead add up to all calls exactly."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from router.amount import Amount
from router.models import Usage
from router.table.assembly import assemble
from router.table.cost import table_cost
from router.trace import Call, Execution
from router.trace.call import sum_known
from router.trace.table import Ask
from tests.router.table.reports import SCHEMA, discovery, fill, listed
from tests.router.table.test_assembly import GIVEN, reports


def call(sub_query_index: int | None, tokens: int | None, nano_usd: int | None = None) -> Call:
    """Return a call with this spending."""
    usage = None if tokens is None else Usage(tokens, 0)
    return Call(
        run_id="r",
        tenant="t",
        number=0,
        role="execution",
        model="m",
        deployment="d",
        executor_version=None,
        purpose="first",
        attempt=1,
        sub_query_index=sub_query_index,
        max_tokens=1,
        reserved=Amount(),
        started_at=0.0,
        outcome="completed",
        usage=usage,
        nano_usd=nano_usd,
        first_token_s=None,
        duration_s=0.0,
    )


def test_a_discovery_counts_for_its_new_rows_and_a_fill_for_its_row() -> None:
    asks = [discovery(1), discovery(2), fill("bel", "founder", "founded"), discovery(3)]
    answers = ["- Krurou\n- Bel", "- Bel\n- Tal\n- Far", "founder: Bo", "not found"]
    table = assemble(SCHEMA, [["Far", "", ""]], zip(asks, map(listed, answers), strict=True))
    assert [row.key for row in table.rows] == [("far",), ("krurou",), ("bel",), ("tal",)]
    calls = [
        call(None, 7, 1),
        call(0, 10, 8),
        call(0, 1, 1),
        call(1, 5),
        call(2, 9, 4),
        call(3, 2),
        call(9, 3),
    ]
    cost = table_cost(table, asks, calls)
    assert cost.rows == (Amount(0, 0), Amount(5, 4), Amount(5 + 9, 4 + 4), Amount(5, None))
    assert cost.overhead == Amount(7 + 1 + 2 + 3, 1 + 1)


_COUNTS = st.none() | st.integers(0, 1000)


@given(GIVEN, reports(), st.lists(st.builds(call, st.none() | st.integers(0, 9), _COUNTS, _COUNTS)))
def test_rows_and_overhead_add_up_to_all_tokens_and_money(
    rows: Sequence[Sequence[str]], reported: list[tuple[Ask, Execution]], calls: list[Call]
) -> None:
    cost = table_cost(assemble(SCHEMA, rows, reported), [ask for ask, _ in reported], calls)
    parts = [*cost.rows, cost.overhead]
    assert sum(part.tokens for part in parts) == sum(
        call.usage.total_tokens for call in calls if call.usage
    )
    assert (sum_known([part.nano_usd for part in parts]) or 0) == (
        sum_known([call.nano_usd for call in calls]) or 0
    )
