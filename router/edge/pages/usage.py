"""Usage: tokens and money over time, what other models would have cost, and what is left of
quotas.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple, get_args

import msgspec
from aiohttp import web

from router.access import Accounts, Spent, Tenant
from router.edge.pages.charts import Chart, bars
from router.edge.pages.formats import count, money
from router.edge.pages.frame import Frame, identity
from router.edge.pages.runs import unix_time
from router.errors import BadRequest
from router.ledger import UsageQuery
from router.ledger.usage import (
    Bucket,
    Dimension,
    Instead,
    UsageRow,
    Usages,
    dollars,
    with_other_models,
)
from router.trace import Price, RoleName
from router.trace.call import RoleTotal, added

_HOUR_S = 3600
_SPANS: dict[str, tuple[float, Bucket]] = {
    "day": (24 * _HOUR_S, "hour"),
    "week": (7 * 24 * _HOUR_S, "day"),
    "month": (31 * 24 * _HOUR_S, "day"),
    "year": (366 * 24 * _HOUR_S, "month"),
}
"""Choices of time, each with how it is split."""
_LABELS: dict[Bucket, str] = {"hour": "%d %b %H:00", "day": "%d %b", "month": "%b %Y"}
PriceOf = Callable[[str], Price | None]


class Left(NamedTuple):
    """A limit of a tenant, and what has been spent of it."""

    tenant: str
    of: str
    limit: int
    spent: int


def add_usage(frame: Frame, usages: Usages, accounts: Accounts, price_of: PriceOf) -> None:
    """Add the page. `price_of`: the price of a model by its name; may block for seconds."""

    async def usage(request: web.Request) -> web.Response:
        asked = request.query
        found = identity(request)
        query, span = _query(asked, found.tenant)
        report = await usages.usage(query)
        whole = await usages.usage(
            msgspec.structs.replace(query, by=("role", "model", "manager"), bucket=None)
        )
        booked = msgspec.convert(whole.rows, list[RoleTotal], from_attributes=True)
        instead = {
            role: text
            for role in get_args(RoleName)
            if (text := asked.get(f"instead_{role}", "").strip())
        }
        others = list[RoleTotal]()
        problem = ""
        try:
            others = await _with(instead, booked, price_of) if instead else []
        except BadRequest as error:  # the rest of the page stays as it is
            problem = str(error)
        tenants = [each for each in await accounts.tenants() if found.sees(each.name)]
        return await frame.render(
            request,
            "usage.html",
            400 if problem else 200,
            asked=asked,
            span=span,
            spans=list(_SPANS),
            by=query.by[0],
            dimensions=get_args(Dimension),
            runs=report.runs,
            groups=_groups(report.rows, query.by[0]),
            charts=_charts(report.rows, query),
            booked=booked,
            instead=instead,
            others=others,
            problem=problem,
            sums=(dollars(booked), dollars(others)),
            left=[
                each for tenant in tenants if tenant.name for each in await _left(accounts, tenant)
            ],
        )

    frame.get("/usage", usage, section="Usage")


def _query(asked: Any, tenant: str | None) -> tuple[UsageQuery, str]:
    """The calls that are summed, and the choice of time. Raises `BadRequest`."""
    span = asked.get("span", "day")
    by = asked.get("by", "role")
    if span not in _SPANS or by not in get_args(Dimension):
        raise BadRequest("There is no such choice of usage.")
    length_s, bucket = _SPANS[span]
    end = unix_time(asked["until"]) if asked.get("until") else time.time()
    # Of an hour that has begun, the calls may be deleted
    start = (end - length_s) // _HOUR_S * _HOUR_S
    stop = -(-end // _HOUR_S) * _HOUR_S
    return UsageQuery(start, stop, tenant or asked.get("tenant") or None, (by,), bucket), span


def _groups(rows: tuple[UsageRow, ...], by: Dimension) -> dict[str, UsageRow]:
    """The sums over all time, by what they are grouped by."""
    members = defaultdict[str, list[UsageRow]](list)
    for row in rows:
        members[getattr(row, by) or ""].append(row)
    return {name: UsageRow(**added(each)) for name, each in sorted(members.items())}


def _charts(rows: tuple[UsageRow, ...], query: UsageQuery) -> dict[str, Chart]:
    """Tokens and money over time, of the same series in the same order: those with most tokens
    first.
    """
    form = _LABELS[query.bucket or "hour"]
    by = query.by[0]
    columns = list(dict.fromkeys(time.strftime(form, time.gmtime(at)) for at in _times(query)))
    largest_first = sorted(_groups(rows, by).items(), key=lambda each: -each[1].prompt_tokens)
    tokens, spent = (
        {name or "none": dict[str, int]() for name, _ in largest_first} for _ in range(2)
    )
    for row in rows:
        column = time.strftime(form, time.gmtime(row.bucket_start or 0))
        name = getattr(row, by) or "none"
        tokens[name][column] = row.prompt_tokens + row.completion_tokens
        spent[name][column] = row.nano_usd or 0
    return {"Tokens": bars(tokens, columns, count), "Money": bars(spent, columns, money)}


def _times(query: UsageQuery) -> Iterator[float]:
    """The beginnings of all hours in the span, or of all days."""
    step = _HOUR_S if query.bucket == "hour" else 24 * _HOUR_S
    at = (query.start or 0.0) // step * step
    end = query.end or 0.0
    while at < end:
        yield at
        at += step


async def _with(
    instead: dict[RoleName, str], booked: list[RoleTotal], price_of: PriceOf
) -> list[RoleTotal]:
    """The same traffic with other models. Raises `BadRequest`."""
    try:
        others = {role: Instead.parse(text) for role, text in instead.items()}
    except ValueError as error:
        raise BadRequest(f"{error}.") from None
    prices: dict[str, Price] = {}
    for model in {other.model for other in others.values()}:
        if (price := await asyncio.to_thread(price_of, model)) is None:
            raise BadRequest(
                f"Nobody knows the price of {model!r}; the operator sets it in [prices] "
                "of the config."
            )
        prices[model] = price
    return with_other_models(booked, prices, others)


async def _left(accounts: Accounts, tenant: Tenant) -> list[Left]:
    """The limits of a tenant."""
    limits = {
        (what, period): limit
        for period in ("day", "month")
        for what in ("requests", "tokens", "nano_usd")
        if (limit := getattr(tenant, f"{what}_per_{period}")) is not None
    }
    if not limits:
        return []
    now = datetime.now(UTC)
    sums = {entry.period: entry for entry in await accounts.spending(tenant.name)}
    of = {"day": f"{now:%Y-%m-%d}", "month": f"{now:%Y-%m}"}
    return [
        Left(
            tenant.name, f"{what} a {period}", limit, getattr(sums.get(of[period], Spent("")), what)
        )
        for (what, period), limit in limits.items()
    ]
