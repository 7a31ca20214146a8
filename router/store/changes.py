"""What a batch writes: one statement for each kind of change, whatever the number of rows."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sqlalchemy import Connection, Dialect, bindparam, null

from router.call import Call
from router.store.adding import adding
from router.store.call_row import ended_row
from router.store.direct import write_rows
from router.store.hourly_usage import hourly_usage
from router.store.schema import CALLS, RUNS, SPENDING, USAGE_HOURS
from router.store.spending import Key, Tally

Row = dict[str, object]
_OF_RUN = RUNS.c.run_id == bindparam("_run_id")
_OF_CALL = (CALLS.c.run_id == bindparam("_run_id")) & (CALLS.c.number == bindparam("_number"))
_ENDED_CALL = (
    "outcome counted prompt_tokens cached_tokens completion_tokens reasoning_tokens wasted_tokens nano_usd"
    " first_token_s duration_s"
).split()
_ENDED_RUN = "status outcome duration_s held_tokens held_nano_usd trace_bytes trace".split()

_BEGIN, _OPEN = RUNS.insert(), CALLS.insert()
_LET_GO = RUNS.update().where(_OF_RUN).values(request_id=null())
_HOLD = RUNS.update().where(_OF_RUN).values({name: bindparam(name) for name in ("held_tokens", "held_nano_usd")})
_SETTLE = CALLS.update().where(_OF_CALL).values({name: bindparam(name) for name in _ENDED_CALL})
_END = RUNS.update().where(_OF_RUN).values({name: bindparam(name) for name in _ENDED_RUN})
_DISCARD, _FORGET = CALLS.delete().where(_OF_CALL), RUNS.delete().where(_OF_RUN)


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows, by what is to become of them, in the order in which that is written."""

    let_go: list[Row] = field(default_factory=list)
    """Runs whose `request_id` may be used again."""
    begun: dict[str, Row] = field(default_factory=dict)
    """By their identifiers."""
    opened: list[Row] = field(default_factory=list)
    settled: list[Call] = field(default_factory=list)
    discarded: list[Row] = field(default_factory=list)
    """Calls that were never made."""
    held: list[Row] = field(default_factory=list)
    ended: list[Row] = field(default_factory=list)
    forgotten: list[Row] = field(default_factory=list)
    """Runs that never began."""

    def write(self, connection: Connection, spending: dict[Key, Tally]) -> None:
        """Write all of it, and what `spending` adds to the rows of tenants and periods."""
        dialect = connection.dialect.name
        for statement, rows in (
            (_LET_GO, self.let_go),
            (_BEGIN, [*self.begun.values()]),
            (_OPEN, self.opened),
            (_SETTLE, [ended_row(call) for call in self.settled]),
            (_DISCARD, self.discarded),
            (_HOLD, self.held),
            (_END, self.ended),
            (_FORGET, self.forgotten),
            (adding(SPENDING, dialect), _spending_rows(spending)),
            (adding(USAGE_HOURS, dialect), hourly_usage(self.settled)),
        ):
            if rows:
                write_rows(connection, _text(statement, connection.dialect, tuple(rows[0])), rows)


@cache
def _text(statement: Any, dialect: Dialect, columns: tuple[str, ...]) -> str:
    """What the driver gets, which is called without SQLAlchemy's work for each row."""
    return str(statement.compile(dialect=dialect, column_keys=columns))


def _spending_rows(spending: dict[Key, Tally]) -> list[Row]:
    return [
        {
            "tenant": tenant,
            "period": period,
            "requests": tally.requests,
            "tokens": tally.tokens,
            "nano_usd": tally.nano_usd,
            "reserved_tokens": tally.reserved_tokens,
            "reserved_nano_usd": tally.reserved_nano_usd,
        }
        for (tenant, period), tally in spending.items()
    ]
