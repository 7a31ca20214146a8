"""How often executors search (TBSS Table 4)."""

from collections.abc import Iterable, Mapping

import msgspec
from rich.table import Table


class SearchCounts(msgspec.Struct, frozen=True):
    """Of one executor's runs."""

    invocations: int
    """How many runs."""
    searches: int
    """In all of them."""
    none: int
    """Runs without a search."""
    one: int
    more: int
    """Runs with two or more."""

    @classmethod
    def of(cls, searches: Iterable[int]) -> "SearchCounts":
        """`searches`: how many each run made."""
        counts = list(searches)
        ones, nones = counts.count(1), counts.count(0)
        return cls(len(counts), sum(counts), nones, ones, len(counts) - ones - nones)

    @property
    def average(self) -> float:
        """Searches of a run; 0 where there are no runs."""
        return self.searches / max(1, self.invocations)


def search_table(executors: Mapping[str, SearchCounts]) -> Table:
    """A row for each executor."""
    table = Table("executor", title="Searches of each executor run", title_justify="left")
    for column in ("runs", "searches a run", "none", "one", "two or more"):
        table.add_column(column, justify="right")
    for name, counts in executors.items():
        shares = (_share(count, counts.invocations) for count in (counts.none, counts.one, counts.more))
        table.add_row(name, f"{counts.invocations:,}", f"{counts.average:.3f}", *shares)
    return table


def _share(count: int, of: int) -> str:
    return f"{count:,} ({count / max(1, of):.2%})"
