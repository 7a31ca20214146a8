"""Cost of each row of a table. The costs of all rows and the overhead add up exactly to the cost of
all calls of the run.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from router.amount import NOTHING, Amount
from router.table.assembly import Table
from router.trace import Call
from router.trace.call import sum_known
from router.trace.table import Ask


class TableCost(NamedTuple):
    """Cost of a table, split by row, in tokens and in billionths of a dollar. Tokens of calls with
    unknown usage are not counted. The field `nano_usd` of an amount is None if no price is known.
    """

    rows: tuple[Amount, ...]
    """Cost of each row, in the order of `Table.every_row`."""
    overhead: Amount
    """Cost that belongs to no row: the delegator's calls, discoveries (questions for rows) that
    named no new row, and the remainders when a cost is divided in whole numbers.
    """


def table_cost(
    table: Table,
    asks: Sequence[Ask],
    calls: Iterable[Call],
) -> TableCost:
    """Split the cost of `calls` over the table's rows, in whole numbers. The cost of a discovery (a
    question for rows) is divided equally among the rows that it was the first to name. The cost of
    any other ask belongs to the row that the ask is about. `asks`: all asks (pieces of work for
    executors) of the run; the position of an ask is the number of its sub-query.
    """
    every_row = table.every_row
    homes = {key: at for at, row in enumerate(every_row) for key in (row.key, *row.aliases)}
    first = dict[Ask, list[int]]()
    for at, row in enumerate(every_row):
        if row.found_by and row.found_by[0].discovery and not row.given:
            first.setdefault(row.found_by[0], []).append(at)
    spent = dict[int | None, list[Amount]]()
    for call in calls:
        number = call.sub_query_index
        if number is not None and number >= len(asks):
            number = None
        tokens = call.usage.total_tokens if call.usage else 0
        spent.setdefault(number, []).append(Amount(tokens, call.nano_usd))

    rows: list[list[Amount]] = [[] for _ in every_row]
    overhead = spent.pop(None, [])
    for number, amounts in spent.items():
        ask = asks[number or 0]
        named = [homes[ask.row]] if ask.row in homes else first.get(ask, [])
        share, rest = _split(_sum(amounts), len(named))
        for at in named:
            rows[at].append(share)
        overhead.append(rest)
    return TableCost(tuple(map(_sum, rows)), _sum(overhead))


def _split(amount: Amount, ways: int) -> tuple[Amount, Amount]:
    """Divide `amount` into `ways` equal shares of whole numbers; return one share, and the
    remainder.
    """
    if not ways:
        return NOTHING, amount
    tokens = amount.tokens
    money = amount.nano_usd
    share = Amount(tokens // ways, None if money is None else money // ways)
    return share, Amount(tokens % ways, None if money is None else money % ways)


def _sum(amounts: Sequence[Amount]) -> Amount:
    """Return the sum of `amounts`. Unknown money counts as 0, unless all of it is unknown."""
    money = sum_known([amount.nano_usd for amount in amounts]) if amounts else 0
    return Amount(sum(amount.tokens for amount in amounts), money)
