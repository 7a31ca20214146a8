"""Whether the sums that are kept are those of the rows that they are kept of."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from router.call import Call
from router.role_total import sum_known
from router.store.hourly_usage import hourly_usage
from router.store.problem import Problem
from router.store.schema import SPENDING, USAGE_HOURS
from router.store.spending import periods
from router.store.sums import COUNTS, MOST

_HOUR_S = 3600
_GROUPS = tuple(column.name for column in USAGE_HOURS.primary_key.columns)
_Key = tuple[Any, ...]


class Sums:
    """What runs and calls add up to."""

    def __init__(self) -> None:
        self._hours: dict[_Key, list[int | None]] = {}
        self._reserved: dict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
        self._spent: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._oldest, self._longest = float("inf"), 0.0

    def add_run(self, row: Row[Any]) -> None:
        """A row of `runs`: what it holds for its answer."""
        self._oldest, self._longest = min(self._oldest, row.started_at), max(self._longest, row.duration_s)
        self._reserve(row.tenant, row.started_at, row.held_tokens, row.held_nano_usd)
        self._spend(row.tenant, row.started_at, requests=1)

    def add_open(self, call: Call) -> None:
        """A call that has not ended: what is reserved for it."""
        self._reserve(call.tenant, call.started_at, call.reserved.tokens, call.reserved.nano_usd or 0)

    def add_ended(self, calls: Sequence[Call]) -> None:
        """Calls that have ended: what they spent."""
        for call in calls:
            charged = call.charged
            self._spend(call.tenant, call.started_at, tokens=charged.tokens, nano_usd=charged.nano_usd or 0)
        for row in hourly_usage(calls):
            key, counts = tuple(row[name] for name in _GROUPS), [row[name] for name in COUNTS]
            known = self._hours.get(key, [None] * len(COUNTS))
            self._hours[key] = [sum_known([*pair]) for pair in zip(known, counts, strict=True)]  # type: ignore[list-item]

    def check_hours(self, connection: Connection) -> Iterator[Problem]:
        """What is wrong with `usage_hours`. Of hours whose runs are partly deleted, it may hold more."""
        whole_from = (self._oldest + self._longest) // _HOUR_S + 2
        summed = dict(self._hours)
        columns = [USAGE_HOURS.c[name] for name in (*_GROUPS, *COUNTS)]
        for row in connection.execution_options(yield_per=1000).execute(select(*columns)):
            key, booked = tuple(row[: len(_GROUPS)]), list(row[len(_GROUPS) :])
            counts = summed.pop(key, [0] * len(COUNTS))
            pairs = zip(COUNTS, counts, booked, strict=True)
            whole = row.hour >= whole_from
            if wrong := [name for name, count, sum_ in pairs if _differ(count, sum_, whole=whole)]:
                what = "not" if whole else "less than"
                yield Problem(_hour(key), f"is {what} what the calls add up to: {', '.join(wrong)}")
        for key in summed:
            yield Problem(_hour(key), "is missing, though there are calls of that hour")

    def check_spending(self, connection: Connection, now: float) -> Iterator[Problem]:
        """Find what is wrong with `spending`: reservations are those of what is under way; what is spent in the day and
        the month of `now`, which limits go by, may be more than runs and calls add up to, as runs are deleted, and
        never less.
        """
        reserved = dict(self._reserved)
        rows = {(row.tenant, row.period): row for row in connection.execute(select(SPENDING))}
        booked = {key: (row.reserved_tokens, row.reserved_nano_usd) for key, row in rows.items()}
        for key, spent in sorted(item for item in self._spent.items() if item[0][1] in periods(now)):
            of_row = {name: getattr(rows[key], name) if key in rows else 0 for name in spent}
            for name in (name for name, count in spent.items() if min(count, MOST) > of_row[name]):
                said = f"{name} is {of_row[name]}, less than the {spent[name]} of its runs and calls"
                yield Problem(f"spending of {key[0]}, {key[1]}", said)
        for key in sorted(reserved.keys() | booked.keys()):
            tokens, nano_usd = reserved.get(key, (0, 0))
            if (tokens, nano_usd) != (found := booked.get(key, (0, 0))):
                yield Problem(
                    f"spending of {key[0]}, {key[1]}",
                    f"{found[0]} tokens and {found[1]} nano-dollars are reserved, but open calls and answers to come "
                    f"reserve {tokens} and {nano_usd}",
                )

    def _reserve(self, tenant: str, at: float, tokens: int, nano_usd: int) -> None:
        for period in periods(at):
            known = self._reserved[tenant, period]
            self._reserved[tenant, period] = known[0] + tokens, known[1] + nano_usd

    def _spend(self, tenant: str, at: float, **counts: int) -> None:
        for period in periods(at):
            self._spent[tenant, period].update(counts)


def _differ(count: int | None, booked: int | None, *, whole: bool) -> bool:
    return count != booked if whole else (count or 0) > (booked or 0)


def _hour(key: _Key) -> str:
    named = dict(zip(_GROUPS, key, strict=True))
    version = f" {named['executor_version']}" if named["executor_version"] else ""
    what = f"{named['role']} {named['model']}{version} at {named['deployment']}"
    return f"usage of {named['tenant']} in the hour {named['hour']} ({what})"
