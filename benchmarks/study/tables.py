"""The tables of a report: the paper's Tables 1 to 5 from our own rows (TBSS 4), with scores, costs,
losses, how sure differences are; published figures stand in tables of their own.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from statistics import quantiles
from typing import get_args

import msgspec

from benchmarks.study.report_table import ReportTable, ReportValue
from benchmarks.study.results import CellRows, Loss, Row, Study
from benchmarks.study.scores import compared, metrics_of, micro
from benchmarks.study.spending import merged, tokens
from executor_sft.rollout import search_counts
from router.ledger.usage import dollars
from router.trace.call import layer_of

_SCORES = (
    "Ours. EM and F1 as the official SQuAD and HotpotQA scripts compute them. Micro: over "
    "all questions alike."
)
_COSTS = (
    "Ours, for each question, without judging. Wasted: of all tokens, in calls that came "
    "to nothing. A dash is "
    "unknown: nothing is taken for zero. Latency with the sweep's concurrency; rollouts "
    "that found calls made "
    "already are left out of it."
)
_TOKENS = "Ours, for each question. Judging and attributing stand apart, and in no other table."
_LOSSES = (
    "Ours. A wrong answer is asked for again with gold sub-queries, and with gold "
    "reports: one that comes right "
    "then was lost by the role that was helped; by retrieval where no passage that was "
    "shown holds the first "
    "answer that the executor missed, or else by reading. Shares are of the wrong "
    "answers whose question has a "
    "gold decomposition."
)
_DIFFERENCES = (
    "Ours, in points of 100; intervals from a bootstrap over questions, paired by question."
)
_Row = dict[str, ReportValue]


class _Published(msgspec.Struct, frozen=True):
    tables: tuple[ReportTable, ...]


def published_tables() -> tuple[ReportTable, ...]:
    """Read the paper's own figures."""
    content = Path(__file__).with_name("published.toml").read_bytes()
    return msgspec.toml.decode(content, type=_Published).tables


def tables_of(study: Study) -> list[ReportTable]:
    """Make all of our own, those that most readers look for first; those that have nothing to
    show are left out.
    """
    of = ReportTable.of
    tables = (
        of("scores", "Scores by data set", _scores(study), note=_SCORES),
        of("costs", "What an answer costs", _costs(study), note=_COSTS, digits=4),
        of(
            "table-1",
            "Table 1: from a single agent to main and sub-agent of the same model",
            _table_1(study),
        ),
        *_tables_2_and_3(study),
        of(
            "table-4",
            "Table 4: searches of each executor run",
            _table_4(study),
            note="Ours.",
            digits=3,
        ),
        of("table-5", "Table 5: the same executors under several backbones", _table_5(study)),
        of("tokens", "Tokens and money by layer", _tokens(study), note=_TOKENS, digits=3),
        of("losses", "Which role loses wrong answers", _losses(study), note=_LOSSES, digits=1),
        of("differences", "How sure differences are", _differences(study), note=_DIFFERENCES),
    )
    return [table for table in tables if table.rows]


def executor_tokens(cell: CellRows) -> float:
    """The mean of a question."""
    return tokens(cell.spent, "execution") / len(cell.rows)


def _score_columns(cell: CellRows, cells: Iterable[CellRows]) -> _Row:
    """First a score for each data set of any of `cells`, where there are several, by the judge, as
    the paper's are, or else by exact match; then micro averages over all.
    """
    rows = [row for one in cells for row in one.rows]
    names = metrics_of(rows)
    datasets = sorted({row.dataset for row in rows})
    by = "Judge" if "Judge" in names else "EM"
    each = _Row()
    for dataset in datasets if len(datasets) > 1 else ():
        own = [row for row in cell.rows if row.dataset == dataset]
        each[f"{dataset} {by.replace('Judge', 'judge')}"] = micro(own, by) if own else None
    return each | {name: micro(cell.rows, name) for name in names}


def _scores(study: Study) -> Iterator[_Row]:
    names = metrics_of(row for cell in study.cells for row in cell.rows)
    for cell in study.cells:
        groups: dict[str, list[Row]] = {}
        for row in cell.rows:
            groups.setdefault(row.dataset, []).append(row)
        for dataset, own in (
            groups | ({"all, micro": [*cell.rows]} if len(groups) > 1 else {})
        ).items():
            known: _Row = {
                "pair": cell.name,
                "data set": dataset,
                "questions": len({row.question_id for row in own}),
            }
            yield known | {name: micro(own, name) for name in names}


def _costs(study: Study) -> Iterator[_Row]:
    """In money, tokens and time, for each question."""
    for cell in study.cells:
        money = dollars(cell.spent)
        spent = tokens(cell.spent)
        right = sum(row.right for row in cell.rows)
        known_s = [row.latency_s for row in cell.rows if row.latency_s is not None]
        cuts = quantiles(known_s, n=20, method="inclusive") if len(known_s) > 1 else [None] * 19
        yield {
            "pair": cell.name,
            "dollars an answer": None if money is None else money / len(cell.rows),
            "dollars a right answer": money / right if money is not None and right else None,
            "executor tokens": executor_tokens(cell),
            "tokens": spent / len(cell.rows),
            "wasted, %": 100 * sum(one.wasted_tokens for one in cell.spent) / spent
            if spent
            else None,
            "median latency, s": cuts[9],
            "95th percentile, s": cuts[18],
        }


def _table_1(study: Study) -> Iterator[_Row]:
    """From a single agent to a factorized pair of the same model."""
    alone = {
        (cell.backbone, cell.max_turns): cell
        for cell in study.cells
        if cell.topology == "single_agent"
    }
    places = study.places
    pairs = [cell for cell in study.cells if cell.pair and cell.backbone == cell.executor]
    pairs.sort(key=lambda cell: (places[cell.backbone], cell.max_turns))
    both = [
        (alone[key], cell) for cell in pairs if (key := (cell.backbone, cell.max_turns)) in alone
    ]
    names = metrics_of(row for cells in both for cell in cells for row in cell.rows)
    for single, pair in both:
        scores = {name: (micro(single.rows, name), micro(pair.rows, name)) for name in names}
        yield {
            "model": study.labelled(_executor(pair), pair.max_turns),
            **{f"single {name}": before for name, (before, _) in scores.items()},
            **{f"factorized {name}": after for name, (_, after) in scores.items()},
            **{
                f"gain {name}": f"{100 * (new.mean - old.mean):+.2f}"
                for name, (old, new) in scores.items()
            },
        }


def _tables_2_and_3(study: Study) -> Iterator[ReportTable]:
    for table, capacity, varied, fixed in (
        (2, "delegation", "backbone", "executor"),
        (3, "execution", "executor", "backbone"),
    ):
        for number, sweep in enumerate(study.sweeps(backbones=table == 2), 1):
            every = sweep.cells.values()
            rows = (
                {varied: model, **_score_columns(cell, every)}
                for model, cell in sweep.cells.items()
            )
            label = study.labelled(sweep.fixed, sweep.max_turns)
            title = f"Table {table}: {capacity} capacity, with {label} as {fixed}"
            key = f"table-{table}-{number}" if number > 1 else f"table-{table}"
            yield ReportTable.of(key, title, rows)


def _table_4(study: Study) -> Iterator[_Row]:
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
    """Executors that stand under several backbones."""
    pairs = [cell for cell in study.cells if cell.pair]
    places = study.places
    under: dict[tuple[str, int], set[str]] = {}
    for cell in pairs:
        under.setdefault((cell.executor, cell.max_turns), set()).add(cell.backbone)
    shown = [cell for cell in pairs if len(under[cell.executor, cell.max_turns]) > 1]
    shown.sort(key=lambda cell: (places[cell.backbone], cell.max_turns, places[cell.executor]))
    for cell in shown if len({cell.executor for cell in shown}) > 1 else ():
        known: _Row = {
            "backbone": study.labelled(cell.backbone, cell.max_turns),
            "executor": _executor(cell),
        }
        yield known | _score_columns(cell, shown)


def _tokens(study: Study) -> Iterator[_Row]:
    for cell in study.cells:
        checking = merged(one for row in cell.rows for one in row.checking)
        count = len(cell.rows)
        spent = [(", ".join(filter(None, (layer_of(one), one.manager))), one) for one in cell.spent]
        for role, one in [*spent, *((f"{one.role}, to check", one) for one in checking)]:
            money = dollars([one])
            yield {
                "pair": cell.name,
                "role": role,
                "model": one.model,
                "calls": one.attempts / count,
                "prompt tokens": one.prompt_tokens / count,
                "of them cached": None if one.cached_tokens is None else one.cached_tokens / count,
                "written": one.completion_tokens / count,
                "wasted": one.wasted_tokens / count,
                "dollars": None if money is None else f"{money / count:.7f}",
            }


def _losses(study: Study) -> Iterator[_Row]:
    for cell in study.cells:
        wrong = [row for row in cell.rows if not row.right]
        lost = Counter(row.attribution.lost_by for row in wrong if row.attribution)
        if traced := lost.total():
            known: _Row = {
                "pair": cell.name,
                "rollouts": len(cell.rows),
                "wrong": len(wrong),
                "traced": traced,
            }
            yield known | {f"{role}, %": 100 * lost[role] / traced for role in get_args(Loss)}


def _differences(study: Study) -> Iterator[_Row]:
    for old, new in combinations(study.cells, 2):
        for metric in ("EM", "Judge"):
            both = all(metric in metrics_of(cell.rows) for cell in (old, new))
            if both and (found := compared(new.rows, old.rows, metric)):
                points: _Row = {
                    "difference": 100 * found.mean,
                    "from": 100 * found.low,
                    "to (95 %)": 100 * found.high,
                }
                yield {"pair": new.name, "beside": old.name, "score": metric, **points}


def _executor(pair: CellRows) -> str:
    """A homogeneous pair may stand beside a factorized one of the same models."""
    return f"{pair.executor} (homogeneous)" if pair.topology == "homogeneous" else pair.executor
