"""The columns of scores that all rows of one table share."""

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.study.report_table import Cell
from benchmarks.study.scores import METRICS, by_dataset, headline, micro
from benchmarks.study.study_data import CellRows


@dataclass(frozen=True, slots=True)
class ScoreColumns:
    """First a score for each data set, by the judge, as the paper's are, or else by exact match; then micro averages
    over all.
    """

    datasets: tuple[str, ...]
    """None where there is only one."""
    metrics: tuple[str, ...]

    @classmethod
    def of(cls, cells: Iterable[CellRows]) -> "ScoreColumns":
        """Those for which any of the cells has rows."""
        rows = [row for cell in cells for row in cell.rows]
        datasets = tuple(sorted(by_dataset(rows)))
        return cls(datasets if len(datasets) > 1 else (), tuple(headline(rows)))

    @property
    def names(self) -> tuple[str, ...]:
        """Their headings."""
        by = "judge" if self._by == "Judge" else self._by
        return (*(f"{dataset} {by}" for dataset in self.datasets), *self.metrics)

    def values(self, cell: CellRows) -> tuple[Cell, ...]:
        """A cell's; None for a data set of which it has no rows yet."""
        found, of = by_dataset(cell.rows), METRICS[self._by]
        each = (micro(found[name], of) if name in found else None for name in self.datasets)
        return (*each, *(micro(cell.rows, METRICS[name]) for name in self.metrics))

    @property
    def _by(self) -> str:
        return "Judge" if "Judge" in self.metrics else "EM"
