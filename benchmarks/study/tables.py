"""The paper's Tables 1 to 5, from our own rows."""

from collections.abc import Iterator, Sequence

from benchmarks.study.report_table import Cell, ReportTable
from benchmarks.study.scores import METRICS, Score, by_dataset, metrics_of, micro
from benchmarks.study.study_data import CellRows, Study
from executor_sft.search_counts import SearchCounts

_HEADLINE = ("EM", "F1", "Judge")
_MICRO = "Micro averages over all questions, in points of 100, ± standard error clustered by question; ours."


def paper_tables(study: Study) -> list[ReportTable]:
    """Those for which there are rows."""
    return [*_table_1(study), *_table_2(study), *_table_3(study), _table_4(study), *_table_5(study)]


def _table_1(study: Study) -> Iterator[ReportTable]:
    """From a single agent to a factorized pair of the same model."""
    alone = {cell.backbone: cell for cell in study.cells if cell.topology == "single_agent"}
    pairs = {cell.backbone: cell for cell in study.cells if cell.pair and cell.backbone == cell.executor}
    rows: list[tuple[Cell, ...]] = []
    for model, cell in alone.items():
        if model in pairs:
            first, second = _scores(cell), _scores(pairs[model])
            gains = [f"{100 * (b.mean - a.mean):+.2f}" for a, b in zip(first, second, strict=True)]
            rows.append((model, *first, *second, *gains))
    if rows:
        names = _headline(next(iter(alone.values())))
        columns = ("model", *(f"{side} {name}" for side in ("single", "factorized", "gain") for name in names))
        title = "Table 1: from a single agent to main and sub-agent of the same model"
        yield ReportTable("table-1", title, columns, tuple(rows), _MICRO)


def _table_2(study: Study) -> Iterator[ReportTable]:
    for number, (executor, cells) in enumerate(study.sweeps(backbones=True)):
        rows = tuple((cell.backbone, *_by_dataset(cell), *_scores(cell)) for cell in cells)
        title = f"Table 2: delegation capacity, with {executor} as executor"
        yield ReportTable(_key("table-2", number), title, ("backbone", *_columns(cells[0])), rows, _MICRO)


def _table_3(study: Study) -> Iterator[ReportTable]:
    for number, (backbone, cells) in enumerate(study.sweeps(backbones=False)):
        rows = [(cell.executor, *_by_dataset(cell), *_scores(cell)) for cell in cells]
        rows += [
            (f"{cell.executor} (as a searcher)", *_by_dataset(cell), *_scores(cell))
            for cell in study.cells
            if cell.topology == "searcher" and cell.backbone == backbone
        ]
        title = f"Table 3: execution capacity, with {backbone} as backbone"
        yield ReportTable(_key("table-3", number), title, ("executor", *_columns(cells[0])), tuple(rows), _MICRO)


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
    under: dict[str, set[str]] = {}
    for cell in pairs:
        under.setdefault(cell.executor, set()).add(cell.backbone)
    several = {executor for executor, backbones in under.items() if len(backbones) > 1}
    backbones = list(dict.fromkeys(cell.backbone for cell in pairs if cell.executor in several))
    rows = tuple(
        (backbone, cell.executor, *_by_dataset(cell), *_scores(cell))
        for backbone in backbones
        for cell in pairs
        if cell.backbone == backbone and cell.executor in several
    )
    if len(several) > 1 and rows:
        title = "Table 5: the same executors under several backbones"
        yield ReportTable("table-5", title, ("backbone", "executor", *_columns(pairs[0])), rows, _MICRO)


def _key(name: str, number: int) -> str:
    return f"{name}-{number + 1}" if number else name


def _headline(cell: CellRows) -> list[str]:
    return [name for name in metrics_of(cell.rows) if name in _HEADLINE]


def _scores(cell: CellRows) -> list[Score]:
    return [micro(cell.rows, METRICS[name]) for name in _headline(cell)]


def _by_dataset(cell: CellRows) -> list[Cell]:
    """By the judge, as the paper's are, or else by exact match; none where there is only one data set."""
    found = by_dataset(cell.rows)
    of = METRICS[_headline(cell)[-1] if "Judge" in _headline(cell) else "EM"]
    return [micro(rows, of) for rows in found.values()] if len(found) > 1 else []


def _columns(cell: CellRows) -> Sequence[str]:
    found, names = by_dataset(cell.rows), _headline(cell)
    by = "judge" if "Judge" in names else "EM"
    return [*([f"{dataset} {by}" for dataset in found] if len(found) > 1 else []), *names]
