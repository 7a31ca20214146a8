"""Tables of a report: Tables 1 to 5 of the TBSS paper (section 4) with a sweep's results, and
further tables with scores, costs, losses and differences. The numbers that the paper published are
in separate tables.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from statistics import quantiles
from typing import get_args

import msgspec

from benchmarks.study.report_table import ReportTable, ReportValue
from benchmarks.study.results import CellRows, QuestionResult, Study
from benchmarks.study.scores import compared, metrics_of, micro
from executor_sft.rollout import search_counts
from router.frozen import Frozen
from router.ledger.usage import dollars
from router.trace.attribution import Loss
from router.trace.call import layer_of

_SCORES = (
    "Our results. EM and F1 are computed as in the official scripts of SQuAD and HotpotQA. Micro: "
    "all questions have the same weight."
)
_COSTS = (
    "Our results, per answer, without the judge's cost. Wasted: share of all tokens that were "
    "spent in calls whose result was not used. A dash means unknown, not zero. Latencies are those "
    "at the sweep's concurrency, without answers that used the call cache."
)
_TOKENS = "Our results, per answer, without the judge's tokens."
_LOSSES = (
    "Our results. To find the role that caused a wrong answer, the run is searched for the right "
    "answer. Percentages are shares of the wrong answers whose role was found (traced)."
)
_DIFFERENCES = (
    "Our results, in points of 100. Intervals are from a bootstrap over questions, paired by "
    "question."
)
_Row = dict[str, ReportValue]


class _Published(Frozen):
    """Content of `published.toml`."""

    tables: tuple[ReportTable, ...]


def published_tables() -> tuple[ReportTable, ...]:
    """Return the tables with the numbers that the paper published."""
    content = Path(__file__).with_name("published.toml").read_bytes()
    return msgspec.toml.decode(content, type=_Published).tables


def tables_of(study: Study) -> list[ReportTable]:
    """Return all tables that have rows, the most important tables first."""
    of = ReportTable.of
    title_1 = "Table 1: from a single agent to main and sub-agent of the same model"
    title_4 = "Table 4: searches of each executor run"
    title_5 = "Table 5: the same executors under several backbones"
    differences = _differences(study)
    tables = (
        of("scores", "Scores by data set", _scores(study), note=_SCORES),
        of(
            "costs",
            "What an answer costs",
            _costs(study),
            note=_COSTS,
            digits=4,
        ),
        of("table-1", title_1, _table_1(study)),
        *_tables_2_and_3(study),
        of(
            "table-4",
            title_4,
            _table_4(study),
            note="Our results.",
            digits=3,
        ),
        of("table-5", title_5, _table_5(study)),
        of(
            "tokens",
            "Tokens and money by layer",
            _tokens(study),
            note=_TOKENS,
            digits=3,
        ),
        of(
            "losses",
            "Which role loses wrong answers",
            _losses(study),
            note=_LOSSES,
            digits=1,
        ),
        of("differences", "Differences with their intervals", differences, note=_DIFFERENCES),
    )
    return [table for table in tables if table.rows]


def _score_columns(cell: CellRows, cells: Iterable[CellRows]) -> _Row:
    """Return the columns with a cell's scores: if there are several data sets, a column for each;
    then a column for each metric, with the average over all questions. As in the paper, the score
    of a data set is the judge's; without a judge, the exact match. `cells`: all cells of the table.
    """
    rows = [row for other in cells for row in other.rows]
    names = metrics_of(rows)
    datasets = sorted({row.dataset for row in rows})
    metric = "Judge" if "Judge" in names else "EM"
    columns = _Row()
    for dataset in datasets if len(datasets) > 1 else ():
        own = [row for row in cell.rows if row.dataset == dataset]
        columns[f"{dataset} {metric.replace('Judge', 'judge')}"] = (
            micro(own, metric) if own else None
        )
    return columns | {name: micro(cell.rows, name) for name in names}


def _scores(study: Study) -> Iterator[_Row]:
    """Yield rows with the scores of each cell on each data set, and on all data sets together."""
    names = metrics_of(row for cell in study.cells for row in cell.rows)
    for cell in study.cells:
        groups = dict[str, list[QuestionResult]]()
        for row in cell.rows:
            groups.setdefault(row.dataset, []).append(row)
        if len(groups) > 1:
            groups["all, micro"] = [*cell.rows]
        for dataset, own in groups.items():
            known: _Row = {
                "pair": cell.name,
                "data set": dataset,
                "questions": len({row.question_id for row in own}),
            }
            yield known | {name: micro(own, name) for name in names}


def _costs(study: Study) -> Iterator[_Row]:
    """Yield a row for each cell with money, tokens and time per answer."""
    for cell in study.cells:
        money = dollars(cell.spent)
        wasted = sum(total.wasted_tokens for total in cell.spent) / len(cell.rows)
        right = sum(row.right for row in cell.rows)
        known_s = [row.latency_s for row in cell.rows if row.latency_s is not None]
        cuts = quantiles(known_s, n=20, method="inclusive") if len(known_s) > 1 else [None] * 19
        yield {
            "pair": cell.name,
            "dollars an answer": None if money is None else money / len(cell.rows),
            "dollars a right answer": money / right if money is not None and right else None,
            "executor tokens": cell.tokens("execution"),
            "tokens": cell.tokens(),
            "wasted, %": 100 * wasted / cell.tokens() if cell.tokens() else None,
            "median latency, s": cuts[9],
            "95th percentile, s": cuts[18],
        }


def _table_1(study: Study) -> Iterator[_Row]:
    """Yield a row for each model that works both as a single agent and in all roles."""
    alone = {cell.backbone: cell for cell in study.cells if cell.topology == "single_agent"}
    both = [
        (alone[pair.backbone], pair)
        for pair in study.pairs
        if pair.backbone == pair.executor and pair.backbone in alone
    ]
    names = metrics_of(row for cells in both for cell in cells for row in cell.rows)
    for single, pair in both:
        scores = {name: (micro(single.rows, name), micro(pair.rows, name)) for name in names}
        yield {
            "model": pair.backbone,
            **{f"single {name}": before for name, (before, _) in scores.items()},
            **{f"factorized {name}": after for name, (_, after) in scores.items()},
            **{
                f"gain {name}": f"{100 * (after.mean - before.mean):+.2f}"
                for name, (before, after) in scores.items()
            },
        }


def _tables_2_and_3(study: Study) -> Iterator[ReportTable]:
    """Yield a table for each series in which only the backbone or only the executor varies."""
    for table, capacity, varied, constant in (
        (2, "delegation", "backbone", "executor"),
        (3, "execution", "executor", "backbone"),
    ):
        for number, (fixed, cells) in enumerate(study.sweeps(backbones=table == 2), 1):
            rows = (
                {varied: model, **_score_columns(cell, cells.values())}
                for model, cell in cells.items()
            )
            title = f"Table {table}: {capacity} capacity, with {fixed} as {constant}"
            key = f"table-{table}-{number}" if number > 1 else f"table-{table}"
            yield ReportTable.of(key, title, rows)


def _table_4(study: Study) -> Iterator[_Row]:
    """Yield a row for each cell with the searches of its executors."""
    for cell in filter(lambda cell: cell.executor, study.cells):
        counts = search_counts(searches for row in cell.rows for searches in row.searches)
        yield {
            "pair": cell.name,
            "runs": counts["invocations"],
            "searches a run": counts["average"],
            "none": counts["none"],
            "one search": counts["one"],
            "one, %": 100 * counts["one"] / max(1, counts["invocations"]),
            "two or more": counts["more"],
            "two or more, %": 100 * counts["more"] / max(1, counts["invocations"]),
        }


def _table_5(study: Study) -> Iterator[_Row]:
    """Yield a row for each cell whose executor works with several backbones."""
    backbones = Counter(cell.executor for cell in study.pairs)
    shown = [cell for cell in study.pairs if backbones[cell.executor] > 1]
    for cell in shown if len({cell.executor for cell in shown}) > 1 else ():
        known: _Row = {"backbone": cell.backbone, "executor": cell.executor}
        yield known | _score_columns(cell, shown)


def _tokens(study: Study) -> Iterator[_Row]:
    """Yield a row for each role of each cell, with the role's calls, tokens and cost per answer."""
    for cell in study.cells:
        count = len(cell.rows)
        for total in cell.spent:
            money = dollars([total])
            cached = total.cached_tokens
            yield {
                "pair": cell.name,
                "role": ", ".join(filter(None, (layer_of(total), total.manager))),
                "model": total.model,
                "calls": total.attempts / count,
                "prompt tokens": total.prompt_tokens / count,
                "of them cached": None if cached is None else cached / count,
                "written": total.completion_tokens / count,
                "wasted": total.wasted_tokens / count,
                "dollars": None if money is None else f"{money / count:.7f}",
            }


def _losses(study: Study) -> Iterator[_Row]:
    """Yield a row for each cell with the share of wrong answers that each role caused."""
    for cell in study.cells:
        wrong = [row for row in cell.rows if not row.right]
        lost = Counter(row.lost_by for row in wrong if row.lost_by)
        if traced := lost.total():
            known: _Row = {
                "pair": cell.name,
                "rollouts": len(cell.rows),
                "wrong": len(wrong),
                "traced": traced,
            }
            yield known | {f"{role}, %": 100 * lost[role] / traced for role in get_args(Loss)}


def _differences(study: Study) -> Iterator[_Row]:
    """Yield, for each pair of cells and each metric, a row with the difference between the two
    scores.
    """
    for old, new in combinations(study.cells, 2):
        for metric in ("EM", "Judge"):
            both = all(metric in metrics_of(cell.rows) for cell in (old, new))
            if both and (difference := compared(new.rows, old.rows, metric)):
                yield {
                    "pair": new.name,
                    "compared with": old.name,
                    "score": metric,
                    "difference": 100 * difference.mean,
                    "from": 100 * difference.low,
                    "to (95 %)": 100 * difference.high,
                }
