"""Conditions that decide which rows belong to a table: their forms, and how rows are checked.

A condition compares the value of a column, such as `founded after 1990`. The column may be hidden;
then its values are looked up only for the condition. A yes/no question, `Is {city} in Veshoux?`, is
a hidden column of the type boolean, whose value must be yes.

A row contradicts a condition only if its value is certain: a sentence about the row states the
value, the client gave it, or two executors report it. To meet a condition, it is enough that a
passage contains the value, even in a sentence that does not name the row. Values that cannot be
compared with certainty are not checked: a year and a day in that year, 1500 m and 2 km, or
"Republic of Veshoux" and "Veshoux".
"""

from collections.abc import Iterable
from decimal import Decimal

from msgspec.structs import replace

from router.errors import BadRequest
from router.folding import fold, sought
from router.protocol.tags import one_line
from router.table.cell_value import canonical, is_blank, is_mistyped
from router.table.numbers import units_in
from router.table.schema import checked_schema, normal_name
from router.trace.table import Cell, CheckState, Claim, Column, ColumnType, Condition, Schema

MAX_CONDITIONS = 16
"""Max conditions of a table. Each condition may cost one sub-query per row."""
_MAX_VALUES = 64
_MAX_CHARS = 2000
"""`_MAX_VALUES`: max values of a condition. `_MAX_CHARS`: max characters of a condition, that is
the column's name, the question and the values together.
"""
_STATES: dict[bool | None, CheckState] = {True: "met", False: "contradicted", None: "not_checked"}
_ORDERS = {"before": (-1,), "after": (1,), "at_least": (0, 1), "at_most": (-1, 0)}
"""For each operator, the results of `_order` with which a condition is met."""
_KINDS: dict[ColumnType, tuple[ColumnType, ...]] = {
    "text": ("date", "number"),
    "date": ("date", "number"),
    "number": ("number",),
    "integer": ("number",),
}
"""For each column type, the types in which two values of a column may be compared. The first type
that both values have is used. For example, years before 1000 are not dates, so they are compared as
numbers.
"""


def with_conditions(schema: Schema, conditions: Iterable[Condition]) -> Schema:
    """Return the schema with further conditions. If the column of a condition is new, it is added
    as a hidden column. Equal conditions are added only once. Raises `BadRequest` for the first
    defect.
    """
    for number, condition in enumerate(conditions):
        try:
            schema = with_condition(schema, condition)
        except BadRequest as error:
            raise BadRequest(f"conditions[{number}]: {error}") from None
    return schema


def with_condition(schema: Schema, condition: Condition) -> Schema:
    """Return the schema with one further condition. If the condition's column is new, it is added
    as a hidden column. A condition that the schema already has is not added again. Raises
    `BadRequest` if the condition is invalid.
    """
    column = condition.column
    values = tuple(map(one_line, condition.values))
    if not column.name:  # a yes/no question
        column = replace(column, name=one_line(column.ask), type="boolean")
        values = values or ("yes",)
    if not column.name:
        raise BadRequest("has neither a column nor a yes/no question; give a column, or set `ask`.")
    if (size := len("".join((column.name, column.ask, *values)))) > _MAX_CHARS:
        raise BadRequest(
            f"column, ask and values have {size:,} characters together, at most {_MAX_CHARS:,} are "
            "allowed; shorten them."
        )
    max_values = _MAX_VALUES if condition.operator == "one_of" else 1
    if not 1 <= len(values) <= max_values or any(map(is_blank, values)):
        raise BadRequest(
            f"{column.name[:80]!r}: {condition.operator} needs a value, and takes up to "
            f'{max_values}; none may be empty or a word for "unknown"; correct {[*values]}.'
        )

    name = normal_name(column.name)
    known = next((other for other in schema.columns if normal_name(other.name) == name), None)
    if known is None:
        known = replace(column, key=False, hidden=True)
        schema = checked_schema((*schema.columns, known), schema.conditions)
    for value in values:
        unordered = condition.operator in _ORDERS and _order(known, value, value) is None
        if unordered or (condition.operator != "contains" and is_mistyped(known, value)):
            raise BadRequest(
                f"{known.name!r} of type {known.type} cannot be compared with {value!r}; give a "
                f"value of that type, or another operator than {condition.operator}."
            )
    joined = (*schema.conditions, Condition(known, condition.operator, values))
    if len(joined) > MAX_CONDITIONS:
        raise BadRequest(f"too many conditions, at most {MAX_CONDITIONS} are allowed; give fewer.")
    return replace(schema, conditions=tuple(dict.fromkeys(joined)))


def state_of(condition: Condition, cell: Cell) -> CheckState:
    """Return whether a row meets or contradicts a condition, or `not_checked` if the row's value is
    not certain. `cell`: the row's cell in the condition's column.
    """
    is_sure = cell.state in ("single", "agreed")
    state = _STATES[is_met(condition, cell.value)]
    if cell.state == "given" or condition.column.key:
        return state
    best = cell.claims[:1]
    asks = {
        claim.ask
        for claim in cell.claims
        if claim.canonical == best[0].canonical and claim.support != "unsupported"
    }
    if is_sure and (state == "met" or best[0].support == "stated" or len(asks) > 1):
        return state
    return "not_checked"


def is_doubtful(schema: Schema, column: Column, claim: Claim) -> bool:
    """Return whether a claim's value in `column` contradicts a condition, although the value is
    found only in sentences that do not name the row.
    """
    return claim.support == "value_only" and any(
        condition.column.name == column.name and is_met(condition, claim.value) is False
        for condition in schema.conditions
    )


def is_met(condition: Condition, value: str) -> bool | None:
    """Return whether a value meets a condition; None if that is not certain."""
    column = condition.column
    other = condition.values[0]
    if condition.operator == "contains":
        return sought(other) in fold(value)
    if condition.operator in _ORDERS:
        order = _order(column, value, other)
        return None if order is None else order in _ORDERS[condition.operator]
    equal = [_equal(column, value, other) for other in condition.values]
    return True in equal or (None if None in equal else False)


def _equal(column: Column, value: str, other: str) -> bool | None:
    """Return whether two values are equal. Return None if that is not certain: if one text is a
    part of the other, or if `value` is not of the column's type.
    """
    if column.type == "text":
        words = sought(value)
        others = sought(other)
        return words == others or (None if words in others or others in words else False)
    if column.type in _KINDS:
        order = _order(column, value, other)
        return None if order is None else order == 0
    return (
        None if is_mistyped(column, value) else canonical(column, value) == canonical(column, other)
    )


def _order(column: Column, value: str, other: str) -> int | None:
    """Return 1 if `value` is greater than `other`, -1 if it is less, and 0 if both are equal, or if
    `value` is a date within the year or month `other`. Return None if they cannot be compared.
    """
    for kind in _KINDS.get(column.type, ()):
        typed = replace(column, type=kind)
        if is_mistyped(typed, value) or is_mistyped(typed, other):
            continue
        first = canonical(typed, value)
        second = canonical(typed, other)
        if kind == "number":
            units = units_in(value), units_in(other)
            is_comparable = not all(units) or not units[0].isdisjoint(units[1])
            return int(Decimal(first).compare(Decimal(second))) if is_comparable else None
        if first.startswith(second):
            return 0
        return None if second.startswith(first) else 2 * (first > second) - 1
    return None
