"""The usage page: tokens and cost over time, cost with other models, and quotas."""

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
from router.edge.pages.runs import unix_time
from router.edge.pages.site import Site, identity
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
"""Time spans, each with its length in seconds and its bucket."""
_LABELS: dict[Bucket, str] = {"hour": "%d %b %H:00", "day": "%d %b", "month": "%b %Y"}
PriceOf = Callable[[str], Price | None]


class Left(NamedTuple):
    """Limit of a tenant, and what was spent of it."""

    tenant: str
    of: str
    limit: int
    spent: int


def add_usage(
    site: Site,
    usages: Usages,
    accounts: Accounts,
    price_of: PriceOf,
) -> None:
    """Add the page. `price_of`: returns the price of a model; may block for seconds."""

    async def usage(request: web.Request) -> web.Response:
        asked = request.query
        user = identity(request)
        query, span = _query(asked, user.tenant)
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
        except BadRequest as error:  # shown on the page, which is complete otherwise
            problem = str(error)
        tenants = [tenant for tenant in await accounts.tenants() if user.sees(tenant.name)]
        return await site.render(
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

    site.get("/usage", usage, section="Usage")


def _query(asked: Any, tenant: str | None) -> tuple[UsageQuery, str]:
    """Return the query and the time span. Raises `BadRequest`."""
    span = asked.get("span", "day")
    by = asked.get("by", "role")
    if span not in _SPANS or by not in get_args(Dimension):
        raise BadRequest(
            f"span must be one of {', '.join(_SPANS)}, and by must be one of "
            f"{', '.join(get_args(Dimension))}."
        )
    length_s, bucket = _SPANS[span]
    end = unix_time(asked["until"]) if asked.get("until") else time.time()
    # Whole hours, as older calls are deleted by the hour.
    start = (end - length_s) // _HOUR_S * _HOUR_S
    stop = -(-end // _HOUR_S) * _HOUR_S
    return UsageQuery(start, stop, tenant or asked.get("tenant") or None, (by,), bucket), span


def _groups(rows: tuple[UsageRow, ...], by: Dimension) -> dict[str, UsageRow]:
    """Return the sums over the whole span by group."""
    members = defaultdict[str, list[UsageRow]](list)
    for row in rows:
        members[getattr(row, by) or ""].append(row)
    return {name: UsageRow(**added(each)) for name, each in sorted(members.items())}


def _charts(rows: tuple[UsageRow, ...], query: UsageQuery) -> dict[str, Chart]:
    """Return charts of tokens and cost over time, with the same series in the same order: most
    tokens first.
    """
    form = _LABELS[query.bucket or "hour"]
    by = query.by[0]
    columns = list(dict.fromkeys(time.strftime(form, time.gmtime(at)) for at in _times(query)))
    largest_first = sorted(_groups(rows, by).items(), key=lambda group: -group[1].prompt_tokens)
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
    """Yield the start of every hour, or day, of the span."""
    step = _HOUR_S if query.bucket == "hour" else 24 * _HOUR_S
    at = (query.start or 0.0) // step * step
    end = query.end or 0.0
    while at < end:
        yield at
        at += step


async def _with(
    instead: dict[RoleName, str], booked: list[RoleTotal], price_of: PriceOf
) -> list[RoleTotal]:
    """Return the same traffic with other models. Raises `BadRequest`."""
    try:
        others = {role: Instead.parse(text) for role, text in instead.items()}
    except ValueError as error:
        raise BadRequest(f"{error}.") from None
    prices: dict[str, Price] = {}
    for model in {other.model for other in others.values()}:
        if (price := await asyncio.to_thread(price_of, model)) is None:
            raise BadRequest(
                f"The price of {model!r} is unknown; the operator sets it in [prices]."
            )
        prices[model] = price
    return with_other_models(booked, prices, others)


async def _left(accounts: Accounts, tenant: Tenant) -> list[Left]:
    """Return the limits of a tenant, and what was spent of each."""
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
