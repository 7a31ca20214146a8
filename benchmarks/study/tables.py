"""The tables of a report: the paper's Tables 1 to 5 from our own rows (TBSS 4), with scores, costs, losses, how sure
differences are, and provenance; published figures stand in tables of their own.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import combinations
from operator import attrgetter
from pathlib import Path
from statistics import quantiles
from typing import get_args

import msgspec

from benchmarks.study.report_table import Cell, Gain, ReportTable, build_table
from benchmarks.study.results import CellRows, Study
from benchmarks.study.rows import Loss
from benchmarks.study.scores import Score, compared, metrics_of, micro
from benchmarks.study.spending import dollars, merged, tokens
from executor_sft.evaluate import Difference
from executor_sft.rollout import SearchCounts
from router.trace.call import RoleTotal

_SHOWN = 12
"""Characters of a hash: enough to tell two apart, and to find the whole one in `results.jsonl`."""
_MICRO = "Micro averages over all questions, in points of 100, ± standard error clustered by question; ours."
Columns = Mapping[str, Callable[[CellRows], Cell]]
_PAIR: Columns = {"pair": attrgetter("name")}


class _Published(msgspec.Struct, frozen=True):
    tables: tuple[ReportTable, ...]


def published_tables() -> dict[str, ReportTable]:
    """Read the paper's own figures, by key."""
    content = Path(__file__).with_name("published.toml").read_bytes()
    return {table.key: table for table in msgspec.toml.decode(content, type=_Published).tables}


def tables_of(study: Study) -> list[ReportTable]:
    """Make all of our own, those that most readers look for first; those that have nothing to show are left out."""
    paper = (_table_1(study), *_table_2(study), *_table_3(study), _table_4(study), _table_5(study))
    further = (_tokens(study), _losses(study), _differences(study), _provenance(study))
    return [table for table in (_scores(study), costs_table(study), *paper, *further) if table.rows]


def executor_tokens(cell: CellRows) -> float:
    """The mean of a question."""
    return tokens(cell.spent, "execution") / len(cell.rows)


def _score(cell: CellRows, metric: str, dataset: str | None = None) -> Score | None:
    rows = [row for row in cell.rows if dataset in (None, row.dataset)]
    return micro(rows, metric) if rows else None


def _score_columns(cells: Iterable[CellRows]) -> Columns:
    """First a score for each data set, where there are several, by the judge, as the paper's are, or else by exact
    match; then micro averages over all.
    """
    rows = [row for cell in cells for row in cell.rows]
    names, datasets = metrics_of(rows), sorted({row.dataset for row in rows})
    by = "Judge" if "Judge" in names else "EM"
    each: Columns = {
        f"{dataset} {by.replace('Judge', 'judge')}": partial(_score, metric=by, dataset=dataset)
        for dataset in datasets
        if len(datasets) > 1
    }
    return {**each, **{name: partial(_score, metric=name) for name in names}}


def _scores(study: Study) -> ReportTable:
    names = metrics_of(row for cell in study.cells for row in cell.rows)
    items: list[tuple[CellRows, str | None]] = []
    for cell in study.cells:
        datasets = list(dict.fromkeys(row.dataset for row in cell.rows))
        items += [(cell, dataset) for dataset in (*datasets, *([None] if len(datasets) > 1 else []))]

    def questions(item: tuple[CellRows, str | None]) -> int:
        return len({row.question_id for row in item[0].rows if item[1] in (None, row.dataset)})

    columns: dict[str, Callable[[tuple[CellRows, str | None]], Cell]] = {
        "pair": lambda item: item[0].name,
        "data set": lambda item: item[1] or "all, micro",
        "questions": questions,
    }
    for name in names:
        columns[name] = partial(lambda item, metric: _score(item[0], metric, item[1]), metric=name)
    note = "Ours. EM and F1 as the official SQuAD and HotpotQA scripts compute them. Micro: over all questions alike."
    return build_table("scores", "Scores by data set", items, columns, note=note)


def costs_table(study: Study) -> ReportTable:
    """In money, tokens and time, for each question."""

    def right(cell: CellRows) -> int:
        return sum(row.right for row in cell.rows)

    def money(cell: CellRows, of: int) -> float | None:
        known = dollars(cell.spent)
        return known / of if known is not None and of else None

    def wasted(cell: CellRows) -> float | None:
        whole = tokens(cell.spent)
        return 100 * sum(one.wasted_tokens for one in cell.spent) / whole if whole else None

    def latency_s(cell: CellRows, place: int) -> float | None:
        known = [row.latency_s for row in cell.rows if row.latency_s is not None]
        return quantiles(known, n=20, method="inclusive")[place] if len(known) > 1 else None

    columns: Columns = {
        **_PAIR,
        "dollars an answer": lambda cell: money(cell, len(cell.rows)),
        "dollars a right answer": lambda cell: money(cell, right(cell)),
        "executor tokens": executor_tokens,
        "tokens": lambda cell: tokens(cell.spent) / len(cell.rows),
        "wasted, %": wasted,
        "median latency, s": partial(latency_s, place=9),
        "95th percentile, s": partial(latency_s, place=18),
    }
    note = (
        "Ours, for each question, without judging. Wasted: of all tokens, in calls that came to nothing. A dash is "
        "unknown: nothing is taken for zero. Latency with the sweep's concurrency; rollouts that found calls made "
        "already are left out of it."
    )
    return build_table("costs", "What an answer costs", study.cells, columns, note=note, digits=4)


def _table_1(study: Study) -> ReportTable:
    """From a single agent to a factorized pair of the same model."""
    alone = {(cell.backbone, cell.max_turns): cell for cell in study.cells if cell.topology == "single_agent"}
    places = study.places
    pairs = [cell for cell in study.cells if cell.pair and cell.backbone == cell.executor]
    pairs.sort(key=lambda cell: (places[cell.backbone], cell.max_turns))
    items = [(alone[key], cell) for cell in pairs if (key := (cell.backbone, cell.max_turns)) in alone]

    def side(both: tuple[CellRows, CellRows], at: int, metric: str) -> Cell:
        return micro(both[at].rows, metric)

    def gain(both: tuple[CellRows, CellRows], metric: str) -> Cell:
        before, after = (micro(cell.rows, metric).mean for cell in both)
        return Gain(100 * (after - before))

    names = metrics_of(row for both in items for cell in both for row in cell.rows)
    columns: dict[str, Callable[[tuple[CellRows, CellRows]], Cell]] = {
        "model": lambda both: study.labelled(_executor(both[1]), both[1].max_turns),
        **{f"single {name}": partial(side, at=0, metric=name) for name in names},
        **{f"factorized {name}": partial(side, at=1, metric=name) for name in names},
        **{f"gain {name}": partial(gain, metric=name) for name in names},
    }
    title = "Table 1: from a single agent to main and sub-agent of the same model"
    return build_table("table-1", title, items, columns, note=_MICRO)


def _table_2(study: Study) -> Iterator[ReportTable]:
    for number, sweep in enumerate(study.sweeps(backbones=True), 1):
        columns: Columns = {"backbone": attrgetter("backbone"), **_score_columns(sweep.cells)}
        title = f"Table 2: delegation capacity, with {study.labelled(sweep.fixed, sweep.max_turns)} as executor"
        yield build_table(_key("table-2", number), title, sweep.cells, columns, note=_MICRO)


def _table_3(study: Study) -> Iterator[ReportTable]:
    def executor(cell: CellRows) -> str:
        return f"{cell.executor} (as a searcher)" if cell.topology == "searcher" else cell.executor

    searchers = [cell for cell in study.cells if cell.topology == "searcher"]
    for number, sweep in enumerate(study.sweeps(backbones=False), 1):
        place = sweep.fixed, sweep.max_turns
        cells = [*sweep.cells, *(cell for cell in searchers if (cell.backbone, cell.max_turns) == place)]
        columns: Columns = {"executor": executor, **_score_columns(cells)}
        title = f"Table 3: execution capacity, with {study.labelled(*place)} as backbone"
        yield build_table(_key("table-3", number), title, cells, columns, note=_MICRO)


def _table_4(study: Study) -> ReportTable:
    Item = tuple[CellRows, SearchCounts]
    items = [
        (cell, SearchCounts.of(count for row in cell.rows for count in row.searches))
        for cell in study.cells
        if cell.executor
    ]
    columns: dict[str, Callable[[Item], Cell]] = {
        "pair": lambda item: item[0].name,
        "runs": lambda item: item[1].invocations,
        "searches a run": lambda item: item[1].average,
        "none": lambda item: item[1].none,
        "one search": lambda item: item[1].one,
        "one, %": lambda item: 100 * item[1].one / max(1, item[1].invocations),
        "two or more": lambda item: item[1].more,
        "two or more, %": lambda item: 100 * item[1].more / max(1, item[1].invocations),
    }
    return build_table("table-4", "Table 4: searches of each executor run", items, columns, note="Ours.", digits=3)


def _table_5(study: Study) -> ReportTable:
    """Executors that stand under several backbones."""
    pairs, places = [cell for cell in study.cells if cell.pair], study.places
    under: dict[tuple[str, int], set[str]] = {}
    for cell in pairs:
        under.setdefault((cell.executor, cell.max_turns), set()).add(cell.backbone)
    shown = [cell for cell in pairs if len(under[cell.executor, cell.max_turns]) > 1]
    shown.sort(key=lambda cell: (places[cell.backbone], cell.max_turns, places[cell.executor]))
    if len({cell.executor for cell in shown}) < 2:
        shown = []
    columns: Columns = {
        "backbone": lambda cell: study.labelled(cell.backbone, cell.max_turns),
        "executor": _executor,
        **_score_columns(shown),
    }
    return build_table("table-5", "Table 5: the same executors under several backbones", shown, columns, note=_MICRO)


def _tokens(study: Study) -> ReportTable:
    Item = tuple[CellRows, str, RoleTotal]
    items: list[Item] = []
    for cell in study.cells:
        checking = merged(one for row in cell.rows for one in row.checking)
        items += [(cell, one.role, one) for one in cell.spent]
        items += [(cell, f"{one.role}, to check", one) for one in checking]

    def mean(item: Item, name: str) -> float | None:
        count = getattr(item[2], name)
        return None if count is None else count / len(item[0].rows)

    def money(item: Item) -> str | None:
        known = dollars([item[2]])
        return None if known is None else f"{known / len(item[0].rows):.7f}"

    columns: dict[str, Callable[[Item], Cell]] = {
        "pair": lambda item: item[0].name,
        "role": lambda item: item[1],
        "model": lambda item: item[2].model,
        "calls": partial(mean, name="attempts"),
        "prompt tokens": partial(mean, name="prompt_tokens"),
        "of them cached": partial(mean, name="cached_tokens"),
        "written": partial(mean, name="completion_tokens"),
        "wasted": partial(mean, name="wasted_tokens"),
        "dollars": money,
    }
    note = "Ours, for each question. Judging and attributing stand apart, and in no other table."
    return build_table("tokens", "Tokens and money by role", items, columns, note=note, digits=3)


def _losses(study: Study) -> ReportTable:
    Item = tuple[CellRows, Counter[Loss]]
    counted = [
        (cell, Counter(row.attribution.lost_by for row in cell.rows if not row.right and row.attribution))
        for cell in study.cells
    ]

    def share(item: Item, role: Loss) -> float:
        return 100 * item[1][role] / item[1].total()

    columns: dict[str, Callable[[Item], Cell]] = {
        "pair": lambda item: item[0].name,
        "rollouts": lambda item: len(item[0].rows),
        "wrong": lambda item: sum(not row.right for row in item[0].rows),
        "traced": lambda item: item[1].total(),
        **{f"{role}, %": partial(share, role=role) for role in get_args(Loss)},
    }
    note = (
        "Ours. A wrong answer is asked for again with gold sub-queries, and with gold reports: one that comes right "
        "then was lost by the role that was helped; by retrieval where no passage that was shown holds the first "
        "answer that the executor missed, or else by reading. Shares are of the wrong answers whose question has a "
        "gold decomposition."
    )
    items = [item for item in counted if item[1]]
    return build_table("losses", "Which role loses wrong answers", items, columns, note=note, digits=1)


def _differences(study: Study) -> ReportTable:
    Item = tuple[CellRows, CellRows, str, Difference]
    items: list[Item] = []
    for old, new in combinations(study.cells, 2):
        for metric in ("EM", "Judge"):
            both = all(metric in metrics_of(cell.rows) for cell in (old, new))
            if both and (found := compared(new.rows, old.rows, metric)):
                items.append((new, old, metric, found))
    columns: dict[str, Callable[[Item], Cell]] = {
        "pair": lambda item: item[0].name,
        "beside": lambda item: item[1].name,
        "score": lambda item: item[2],
        "difference": lambda item: 100 * item[3].mean,
        "from": lambda item: 100 * item[3].low,
        "to (95 %)": lambda item: 100 * item[3].high,
    }
    note = "Ours, in points of 100; intervals from a bootstrap over questions, paired by question."
    return build_table("differences", "How sure differences are", items, columns, note=note)


def _provenance(study: Study) -> ReportTable:
    """A row for each role of each pair; fields in which all rows are alike stand above them."""
    made_by = [(cell.name, study.made_by[cell.name]) for cell in study.cells]
    items = [(name, made, role, one) for name, made in made_by for role, one in made.roles.items()]
    alike = dict.fromkeys(
        f"Corpus {(made.corpus_sha256 or 'unknown')[:_SHOWN]}, index {(made.index or 'unknown')[:_SHOWN]}, embedder "
        f"{made.embedder}; at most {made.max_rounds} rounds of {made.max_sub_queries} sub-queries, top-{made.top_k}; "
        + ", ".join(f"{name} {version}" for name, version in made.versions.items())
        for _, made in made_by
    )
    columns: dict[str, Callable[..., Cell]] = {
        "pair": lambda item: item[0],
        "role": lambda item: item[2],
        "model": lambda item: item[3].model,
        "prompt (SHA-256)": lambda item: item[3].prompt_sha256[:_SHOWN],
        "temperature": lambda item: f"{item[3].temperature:g}",
        "top p": lambda item: f"{item[3].top_p:g}",
        "max tokens": lambda item: item[3].max_tokens,
        "turns": lambda item: item[1].max_turns,
        "searches": lambda item: item[1].max_searches,
    }
    return build_table("provenance", "What made these figures", items, columns, note="; ".join(alike))


def _key(name: str, number: int) -> str:
    return f"{name}-{number}" if number > 1 else name


def _executor(pair: CellRows) -> str:
    """A homogeneous pair may stand beside a factorized one of the same models."""
    return f"{pair.executor} (homogeneous)" if pair.topology == "homogeneous" else pair.executor
