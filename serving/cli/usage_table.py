"""Tokens by role and model, for a terminal."""

from collections.abc import Iterable, Sequence

from rich.markup import escape
from rich.table import Table
from rolegate.v1.usage_pb2 import Role, RoleUsage


def usage_table(usage: Sequence[RoleUsage]) -> Table:
    """A row each, and a sum."""
    table = Table("role", "model", title="tokens by role", title_justify="left")
    for column in ("calls", "prompt", "of these cached", "completion"):
        table.add_column(column, justify="right")
    for row in usage:
        table.add_row(
            Role.Name(row.role).removeprefix("ROLE_").lower(),
            escape(row.model),
            _attempts(row),
            str(row.prompt_tokens),
            str(row.cached_tokens) if row.HasField("cached_tokens") else "unknown",
            str(row.completion_tokens),
        )
    total = [sum(getattr(row, field) for row in usage) for field in ("attempts", "prompt_tokens", "completion_tokens")]
    table.add_section()
    table.add_row("all", "", str(total[0]), str(total[1]), "", str(total[2]))
    return table


def _attempts(row: RoleUsage) -> str:
    unknown = row.attempts_without_usage
    return f"{row.attempts} ({unknown} unknown)" if unknown else str(row.attempts)


def summed(usage: Iterable[RoleUsage]) -> list[RoleUsage]:
    """Sums by role and model; what no row knows stays unknown."""
    sums: dict[tuple[Role, str], RoleUsage] = {}
    for row in usage:
        total = sums.setdefault((row.role, row.model), RoleUsage(role=row.role, model=row.model))
        for field, count in row.ListFields():
            if field.name not in ("role", "model"):
                setattr(total, field.name, getattr(total, field.name) + count)
    return list(sums.values())
