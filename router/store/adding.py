"""Sums that are kept in rows."""

from functools import cache
from typing import Any

from sqlalchemy import Column, ColumnElement, Table, case, func, literal_column
from sqlalchemy.dialects import postgresql, sqlite

from router.store.sums import whole


@cache
def adding(table: Table, dialect: str) -> Any:
    """A statement that inserts rows of sums, or adds to those that are there, as far as these count. Unknown and known
    is what is known.
    """
    insert = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(table)
    sums = {
        column.name: _sum(column, insert.excluded[column.name]) for column in table.columns if not column.primary_key
    }
    return insert.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=sums)


def _sum(column: Column[Any], more: ColumnElement[Any]) -> ColumnElement[Any]:
    if not column.nullable:
        return whole(column) + more
    return case((more.is_(None), column), else_=func.coalesce(whole(column), literal_column("0")) + more)
