"""The paper's Tables 1 to 5, from our own rows."""

from collections.abc import Iterator

from benchmarks.study.report_table import Cell, Gain, ReportTable
from benchmarks.study.score_columns import ScoreColumns
from benchmarks.study.scores import METRICS, headline, micro
from benchmarks.study.study_data import CellRows, Study
from executor_sft.rollout import SearchCounts

_MICRO = "Micro averages over all questions, in points of 100, ± standard error clustered by question; ours."


def paper_tables(study: Study) -> list[ReportTable]:
    """Those for which there are rows."""
    return [*_table_1(study), *_table_2(study), *_table_3(study), _table_4(study), *_table_5(study)]


def _table_1(study: Study) -> Iterator[ReportTable]:
    """From a single agent to a factorized pair of the same model."""
    alone = {(cell.backbone, cell.max_turns): cell for cell in study.cells if cell.topology == "single_agent"}
    pairs = [cell for cell in study.cells if cell.pair and cell.backbone == cell.executor]
    places = study.places
    pairs.sort(key=lambda cell: (places[cell.backbone], cell.max_turns))
    beside = [(alone[key], cell) for cell in pairs if (key := (cell.backbone, cell.max_turns)) in alone]
    names = headline([row for both in beside for cell in both for row in cell.rows])
    rows: list[tuple[Cell, ...]] = []
    for single, pair in beside:
        first, second = ([micro(cell.rows, METRICS[name]) for name in names] for cell in (single, pair))
        gains = [Gain(100 * (b.mean - a.mean)) for a, b in zip(first, second, strict=True)]
        rows.append((study.labelled(_executor(pair), pair.max_turns), *first, *second, *gains))
    if rows:
        columns = ("model", *(f"{side} {name}" for side in ("single", "factorized", "gain") for name in names))
        title = "Table 1: from a single agent to main and sub-agent of the same model"
        yield ReportTable("table-1", title, columns, tuple(rows), _MICRO)


def _table_2(study: Study) -> Iterator[ReportTable]:
    for number, sweep in enumerate(study.sweeps(backbones=True)):
        scores = ScoreColumns.of(sweep.cells)
        rows = tuple((cell.backbone, *scores.values(cell)) for cell in sweep.cells)
        title = f"Table 2: delegation capacity, with {study.labelled(sweep.fixed, sweep.max_turns)} as executor"
        yield ReportTable(_key("table-2", number), title, ("backbone", *scores.names), rows, _MICRO)


def _table_3(study: Study) -> Iterator[ReportTable]:
    for number, sweep in enumerate(study.sweeps(backbones=False)):
        named = [(cell.executor, cell) for cell in sweep.cells]
        named += [
            (f"{cell.executor} (as a searcher)", cell)
            for cell in study.cells
            if cell.topology == "searcher" and (cell.backbone, cell.max_turns) == (sweep.fixed, sweep.max_turns)
        ]
        scores = ScoreColumns.of(cell for _, cell in named)
        rows = tuple((name, *scores.values(cell)) for name, cell in named)
        title = f"Table 3: execution capacity, with {study.labelled(sweep.fixed, sweep.max_turns)} as backbone"
        yield ReportTable(_key("table-3", number), title, ("executor", *scores.names), rows, _MICRO)


def _table_4(study: Study) -> ReportTable:
    rows: list[tuple[Cell, ...]] = []
    for cell in filter(lambda cell: cell.executor, study.cells):
        counts = SearchCounts.of(searches for row in cell.rows for searches in row.searches)
        shares = (100 * count / max(1, counts.invocations) for count in (counts.one, counts.more))
        one, more = shares
        rows.append((cell.name, counts.invocations, counts.average, counts.none, counts.one, one, counts.more, more))
    columns = ("pair", "runs", "searches a run", "none", "one search", "one, %", "two or more", "two or more, %")
    return ReportTable("table-4", "Table 4: searches of each executor run", columns, tuple(rows), "Ours.", digits=3)


def _table_5(study: Study) -> Iterator[ReportTable]:
    """Executors that stand under several backbones."""
    pairs = [cell for cell in study.cells if cell.pair]
    under: dict[tuple[str, int], set[str]] = {}
    for cell in pairs:
        under.setdefault((cell.executor, cell.max_turns), set()).add(cell.backbone)
    shown = [cell for cell in pairs if len(under[cell.executor, cell.max_turns]) > 1]
    places = study.places
    shown.sort(key=lambda cell: (places[cell.backbone], cell.max_turns, places[cell.executor]))
    if len({cell.executor for cell in shown}) > 1:
        scores = ScoreColumns.of(shown)
        rows = tuple(
            (study.labelled(cell.backbone, cell.max_turns), _executor(cell), *scores.values(cell)) for cell in shown
        )
        title = "Table 5: the same executors under several backbones"
        yield ReportTable("table-5", title, ("backbone", "executor", *scores.names), rows, _MICRO)


def _key(name: str, number: int) -> str:
    return f"{name}-{number + 1}" if number else name


def _executor(pair: CellRows) -> str:
    """A homogeneous pair may stand beside a factorized one of the same models."""
    return f"{pair.executor} (homogeneous)" if pair.topology == "homogeneous" else pair.executor
