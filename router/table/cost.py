"""The cost of cells and rows, which adds up to that of all calls exactly."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from router.amount import NOTHING, Amount
from router.table.assembly import Table
from router.trace import Call
from router.trace.call import sum_known
from router.trace.table import Ask

Place = tuple[int, int]
"""A row's and a column's number."""


class TableCost(NamedTuple):
    """Known tokens and money; `nano_usd` is None where none of it is known."""

    cells: dict[Place, Amount]
    """Of cells that were asked for."""
    rows: tuple[Amount, ...]
    """Of each row, its cells included."""
    overhead: Amount
    """All else: the delegator's calls, discoveries that were first to name no row, and remainders;
    where a model wrote the table, all calls.
    """


def table_cost(table: Table, asks: Sequence[Ask], calls: Iterable[Call]) -> TableCost:
    """Split what calls spent: that of a discovery over the rows that it is the first to name, that
    of other asks over the cells asked for, in whole numbers. `asks`: by the numbers of their
    sub-queries.
    """
    columns = {column.name: at for at, column in enumerate(table.schema.columns)}
    homes = {key: at for at, row in enumerate(table.rows) for key in (row.key, *row.aliases)}
    first: dict[Ask, list[int]] = {}
    for at, row in enumerate(table.rows):
        if row.found_by and row.found_by[0].discovery and not row.given:
            first.setdefault(row.found_by[0], []).append(at)
    spent: dict[int | None, list[Amount]] = {}
    for call in calls:
        number = (
            call.sub_query if call.sub_query is not None and call.sub_query < len(asks) else None
        )
        spent.setdefault(number, []).append(
            Amount(call.usage.total_tokens if call.usage else 0, call.nano_usd)
        )
    cells: dict[Place, list[Amount]] = {}
    rows: list[list[Amount]] = [[] for _ in table.rows]
    overhead = spent.pop(None, [])
    for number, amounts in spent.items():
        ask = asks[number or 0]
        places = list[Place]()
        if ask.row in homes:
            places = [(homes[ask.row], columns[name]) for name in ask.columns if name in columns]
        named = [row for row, _ in places] or first.get(ask, [])
        share, rest = _split(_sum(amounts), len(named))
        for place in places:
            cells.setdefault(place, []).append(share)
        for at in named:
            rows[at].append(share)
        overhead.append(rest)
    return TableCost(
        {place: _sum(parts) for place, parts in cells.items()},
        tuple(map(_sum, rows)),
        _sum(overhead),
    )


def _split(amount: Amount, ways: int) -> tuple[Amount, Amount]:
    """One of equal shares, and what is left over."""
    if not ways:
        return NOTHING, amount
    tokens = amount.tokens
    money = amount.nano_usd
    share = Amount(tokens // ways, None if money is None else money // ways)
    return share, Amount(tokens % ways, None if money is None else money % ways)


def _sum(amounts: Sequence[Amount]) -> Amount:
    """What is known of a sum; nothing for no amounts."""
    money = sum_known([amount.nano_usd for amount in amounts]) if amounts else 0
    return Amount(sum(amount.tokens for amount in amounts), money)
