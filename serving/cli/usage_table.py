"""Tokens and cost, for a terminal."""

from collections.abc import Iterable, Sequence
from datetime import UTC

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Column, Table
from rolegate.v1.usage_pb2 import Role, RoleUsage
from rolegate.v1.usage_service_pb2 import UsageRow

TIMES = {"hour": "%Y-%m-%d %H:%M", "day": "%Y-%m-%d", "month": "%Y-%m"}
"""How the beginning of a bucket is shown."""


def usage_table(usage: Iterable[RoleUsage]) -> Table:
    """A row for each role and model, and a sum."""
    return grouped_table([UsageRow(usage=row) for row in usage], ("role", "model"))


def grouped_table(rows: Sequence[UsageRow], by: Sequence[str], bucket: str | None = None) -> Table:
    """A row for each group, and a sum. `by`: names of `labels`."""
    sums = [row.usage for row in rows]
    wasted = any(row.wasted_tokens for row in sums)
    groups = (*([Column(bucket, no_wrap=True)] if bucket else []), *(Column(name, overflow="fold") for name in by))
    table = Table(*groups, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for column in ("calls", "prompt", "cached", "written", *(["wasted"] if wasted else []), "cost"):
        table.add_column(column, justify="right", overflow="fold")
    for row in rows:
        times = [row.bucket_start_time.ToDatetime(UTC).strftime(TIMES[bucket])] if bucket else []
        table.add_row(*times, *(escape(labels(row)[name]) or "–" for name in by), *_figures(row.usage, wasted=wasted))
    table.add_section()
    blank = [""] * (len(by) + bool(bucket) - 1)
    table.add_row("all", *blank, *_figures(total(sums), wasted=wasted))
    return table


def labels(row: UsageRow) -> dict[str, str]:
    """What sums can be split by, as it is called in options and tables."""
    role = Role.Name(row.usage.role).removeprefix("ROLE_").lower() if row.usage.role else ""
    return {"tenant": row.tenant, "role": role, "model": row.usage.model, "version": row.executor_version}


def summed(usage: Iterable[RoleUsage]) -> list[RoleUsage]:
    """Sums by role and model; what no row knows stays unknown."""
    groups: dict[tuple[Role, str], list[RoleUsage]] = {}
    for row in usage:
        groups.setdefault((row.role, row.model), []).append(row)
    sums = [total(rows) for rows in groups.values()]
    for (role, model), row in zip(groups, sums, strict=True):
        row.role, row.model = role, model
    return sums


def total(usage: Iterable[RoleUsage]) -> RoleUsage:
    """One sum over all; what no row knows stays unknown."""
    sums = RoleUsage()
    for row in usage:
        for field, count in row.ListFields():
            if field.name not in ("role", "model"):
                setattr(sums, field.name, getattr(sums, field.name) + count)
    return sums


def cost(nano_usd: int | None, attempts: int, unknown: int) -> str:
    """Dollars for so many attempts, of which the cost of `unknown` is not known."""
    if nano_usd is None:
        return "unknown" if attempts else "$0"
    dollars = nano_usd / 1e9
    return (f"${dollars:,.4f}" if dollars >= 1 else f"${dollars:.6f}") + (f" ({unknown} unknown)" if unknown else "")


def uncounted(row: RoleUsage) -> bool:
    """True where the usage of none of its attempts is known."""
    return 0 < row.attempts == row.attempts_without_usage


def _figures(row: RoleUsage, *, wasted: bool) -> list[str]:
    unknown = f" ({row.attempts_without_usage} unknown)" if row.attempts_without_usage else ""
    nano_usd = row.cost_nano_usd if row.HasField("cost_nano_usd") else None
    read, written, lost = (
        "unknown" if uncounted(row) else f"{tokens:,}"
        for tokens in (row.prompt_tokens, row.completion_tokens, row.wasted_tokens)
    )
    return [
        f"{row.attempts:,}{unknown}",
        read,
        f"{row.cached_tokens / max(row.prompt_tokens, 1):.0%}" if row.HasField("cached_tokens") else "unknown",
        written,
        *([lost] if wasted else []),
        cost(nano_usd, row.attempts, row.attempts_without_cost),
    ]
