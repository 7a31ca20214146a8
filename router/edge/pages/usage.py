"""The page with usage: tokens, cost, durations and failures over time, and the tenants' quotas."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, get_args

from aiohttp import web

from router.access import Accounts, Spent, Tenant, caller
from router.edge.pages.runs import unix_time
from router.edge.pages.site import Site
from router.errors import BadRequest
from router.ledger import UsageQuery
from router.ledger.usage import Bucket, Dimension, UsageRow, Usages
from router.runs import RunFilter, Runs
from router.trace.call import added

_HOUR_S = 3600
_SPANS: dict[str, tuple[float, Bucket]] = {
    "day": (24 * _HOUR_S, "hour"),
    "week": (7 * 24 * _HOUR_S, "day"),
    "month": (31 * 24 * _HOUR_S, "day"),
    "year": (366 * 24 * _HOUR_S, "month"),
}
"""The time spans that users can choose. Each name has two values: the length of the span in
seconds, and the time that one bar of the chart covers.
"""
_SERIES = 6
"""Max number of series in the chart: there is one colour for each. If there are more groups, the
last series is the sum of the remaining groups.
"""
_LABELS: dict[Bucket, str] = {"hour": "%d %b %H:00", "day": "%d %b", "month": "%b %Y"}


def add_usage(site: Site, usages: Usages, accounts: Accounts, runs: Runs) -> None:
    """Add the page with usage to `site`."""

    async def usage(request: web.Request) -> web.Response:
        asked = request.query
        user = caller()
        query, span = _query(asked, user.tenant)
        report = await usages.usage(query)
        starts = _starts(query)
        shown = RunFilter(query.tenant, start=query.start, end=query.end)
        figures = await runs.figures(shown, list(starts.values()), user)
        groups = _groups(report.rows, query.by[0])
        series = list(groups)
        if len(series) > _SERIES:
            series[_SERIES - 1 :] = ["others"]
        tenants = [tenant for tenant in await accounts.tenants() if user.sees(tenant.name)]
        return await site.render(
            request,
            "usage.html",
            asked=asked,
            span=span,
            spans=list(_SPANS),
            by=query.by[0],
            dimensions=get_args(Dimension),
            runs=report.runs,
            groups=groups,
            series=series,
            columns=_columns(report.rows, query, series, starts),
            figures=dict(zip(starts, figures, strict=True)),
            left=[
                each for tenant in tenants if tenant.name for each in await _left(accounts, tenant)
            ],
        )

    site.get("/usage", usage)


def _query(asked: Any, tenant: str | None) -> tuple[UsageQuery, str]:
    """Return the query of usage and the name of its time span. `asked`: the query of the URL.
    `tenant`: the user's tenant, to which the query is limited; None for an operator. Raises
    `BadRequest` for invalid fields.
    """
    span = asked.get("span", "day")
    by = asked.get("by", "role")
    if span not in _SPANS:
        raise BadRequest(f"span: must be one of {', '.join(_SPANS)}, got {span[:40]!r}.")
    if by not in get_args(Dimension):
        raise BadRequest(f"by: must be one of {', '.join(get_args(Dimension))}, got {by[:40]!r}.")
    length_s, bucket = _SPANS[span]
    end = unix_time(asked["until"]) if asked.get("until") else time.time()
    # The span consists of whole hours, because the calls of deleted runs are only kept as sums of
    # an hour.
    start = (end - length_s) // _HOUR_S * _HOUR_S
    stop = -(-end // _HOUR_S) * _HOUR_S
    return UsageQuery(
        start,
        stop,
        tenant or asked.get("tenant") or None,
        (by,),
        bucket,
    ), span


def _groups(rows: tuple[UsageRow, ...], by: Dimension) -> dict[str, UsageRow]:
    """Return the sums over the whole time span by group; the group with the most prompt tokens is
    first.
    """
    members = defaultdict[str, list[UsageRow]](list)
    for row in rows:
        members[getattr(row, by) or "none"].append(row)
    sums = {name: UsageRow(**added(each)) for name, each in members.items()}
    return dict(sorted(sums.items(), key=lambda group: (-group[1].prompt_tokens, group[0])))


def _starts(query: UsageQuery) -> dict[str, float]:
    """Return the start of each hour, day or month of the time span, as a dict from labels to Unix
    times. The first start may be before the time span.
    """
    form = _LABELS[query.bucket or "hour"]
    step = _HOUR_S if query.bucket == "hour" else 24 * _HOUR_S
    starts = dict[str, float]()
    for at in range(int(query.start or 0) // step * step, int(query.end or 0), step):
        starts.setdefault(time.strftime(form, time.gmtime(at)), at)
    return starts


def _columns(
    rows: tuple[UsageRow, ...],
    query: UsageQuery,
    series: Sequence[str],
    starts: Mapping[str, float],
) -> dict[str, dict[str, tuple[int, int]]]:
    """Return the bars of the chart: for every hour, day or month of the time span, tokens and
    billionths of a dollar by series. Groups without a series are added to the last series.

    `starts`: see `_starts`; only its keys are used, the labels of the hours, days or months.
    """
    form = _LABELS[query.bucket or "hour"]
    columns: dict[str, dict[str, tuple[int, int]]] = {label: {} for label in starts}
    for row in rows:
        column = time.strftime(form, time.gmtime(row.bucket_start or 0))
        group = getattr(row, query.by[0]) or "none"
        name = group if group in series else series[-1]
        tokens, nano_usd = columns[column].get(name, (0, 0))
        tokens += row.prompt_tokens + row.completion_tokens
        columns[column][name] = tokens, nano_usd + (row.nano_usd or 0)
    return columns


async def _left(accounts: Accounts, tenant: Tenant) -> list[tuple[str, str, int, int]]:
    """Return four values for each limit of a tenant per day or month: the tenant's name, the unit
    and period of the limit (such as `tokens a day`), the limit, and the amount spent in the current
    period.
    """
    now = datetime.now(UTC)
    periods = {"day": f"{now:%Y-%m-%d}", "month": f"{now:%Y-%m}"}
    spent = {entry.period: entry for entry in await accounts.spending(tenant.name)}
    return [
        (tenant.name, f"{what} a {period}", limit, getattr(spent.get(at, Spent(at)), what))
        for period, at in periods.items()
        for what in ("requests", "tokens", "nano_usd")
        if (limit := getattr(tenant, f"{what}_per_{period}")) is not None
    ]
