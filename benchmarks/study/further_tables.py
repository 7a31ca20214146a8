"""What the paper's tables do not show: all scores, costs, where answers are lost, and how sure differences are."""

from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from statistics import fmean, quantiles
from typing import get_args

from benchmarks.study.agreement import agreement
from benchmarks.study.pricing import dollars, merged
from benchmarks.study.provenance_table import provenance_table
from benchmarks.study.report_table import Cell, ReportTable
from benchmarks.study.result_row import Loss, Scored
from benchmarks.study.scores import METRICS, by_dataset, compared, macro, metrics_of, micro
from benchmarks.study.study_data import CellRows, Study
from router.trace.call import RoleTotal

_ROLES = ("delegation", "execution", "answer")


def further_tables(study: Study) -> list[ReportTable]:
    """What stands behind the paper's; those that have nothing to show are left out."""
    tables = [_tokens(study), _losses(study), _differences(study), _agreements(study), provenance_table(study)]
    return [table for table in tables if table.rows]


def scores_table(study: Study) -> ReportTable:
    """Of every pair on every data set."""
    names = list(dict.fromkeys(name for cell in study.cells for name in metrics_of(cell.rows)))
    rows: list[tuple[Cell, ...]] = []
    for cell in study.cells:
        groups = by_dataset(cell.rows)
        for dataset, found in groups.items():
            rows.append((cell.name, dataset, *_row(found, names)))
        if len(groups) > 1:
            rows.append((cell.name, "all, micro", *_row(cell.rows, names)))
            means = [macro(cell.rows, METRICS[name]) for name in names]
            rows.append((cell.name, "all, macro", means[0].questions, *means))
    note = (
        "Ours. EM and F1 as the official SQuAD and HotpotQA scripts compute them; folded: the same with accents and "
        "punctuation of all scripts taken away. Micro: over all questions alike; macro: the mean of the data sets."
    )
    return ReportTable("scores", "Scores by data set", ("pair", "data set", "questions", *names), tuple(rows), note)


def _row(rows: Iterable[Scored], names: Iterable[str]) -> list[Cell]:
    found = list(rows)
    scores = [micro(found, METRICS[name]) for name in names]
    return [scores[0].questions, *scores]


def costs_table(study: Study) -> ReportTable:
    """In money, tokens and time, for each question."""
    rows = tuple((cell.name, *_cost(cell.rows)) for cell in study.cells)
    columns = (
        "pair",
        "dollars an answer",
        "dollars a right answer",
        "executor tokens",
        "tokens",
        "cached, %",
        "wasted, %",
        "median latency, s",
        "95th percentile, s",
        "executor failures, %",
        "no search, %",
    )
    note = (
        "Ours, for each question, without judging. Cached: of prompt tokens at endpoints that say so; wasted: of "
        "all tokens, in calls that came to nothing. A dash is unknown: nothing is taken for zero. Latency with the "
        "sweep's concurrency; rollouts that found calls made already are left out of it."
    )
    return ReportTable("costs", "What an answer costs", columns, rows, note, digits=4)


def _cost(rows: tuple[Scored, ...]) -> list[Cell]:
    spent = merged(one for row in rows for one in row.spent)
    money, right = dollars(spent), sum(not row.wrong for row in rows)
    tokens = sum(one.prompt_tokens + one.completion_tokens for one in spent)
    told = [one for row in rows for one in row.spent if one.cached_tokens is not None]
    told_prompt = sum(one.prompt_tokens for one in told)
    latencies = [row.latency_s for row in rows if row.latency_s is not None]
    middle, late = _latencies(latencies)
    runs = sum(len(row.searches) for row in rows)
    return [
        None if money is None else money / len(rows),
        None if money is None or not right else money / right,
        fmean(row.executor_tokens for row in rows),
        tokens / len(rows),
        100 * sum(one.cached_tokens or 0 for one in told) / told_prompt if told_prompt else None,
        100 * sum(one.wasted_tokens for one in spent) / tokens if tokens else None,
        middle,
        late,
        100 * sum(row.failed for row in rows) / runs if runs else None,
        100 * sum(row.outcome == "no_search" for row in rows) / len(rows),
    ]


def _latencies(seconds: list[float]) -> tuple[float | None, float | None]:
    if len(seconds) < 2:
        return (seconds[0], None) if seconds else (None, None)
    cuts = quantiles(seconds, n=20, method="inclusive")
    return cuts[9], cuts[18]


def _tokens(study: Study) -> ReportTable:
    rows: list[tuple[Cell, ...]] = []
    for cell in study.cells:
        spent = [(one.role, one) for one in merged(one for row in cell.rows for one in row.spent)]
        checking = merged(one for row in cell.rows for one in row.checking)
        named = [*spent, *((f"{one.role}, to check", one) for one in checking)]
        rows += [(cell.name, name, one.model, *_spent(one, len(cell.rows))) for name, one in named]
    columns = ("pair", "role", "model", "calls", "prompt tokens", "of them cached", "written", "wasted", "dollars")
    note = "Ours, for each question. What judging and attributing took stands apart, and in no other table."
    return ReportTable("tokens", "Tokens and money by role", columns, tuple(rows), note, digits=3)


def _spent(one: RoleTotal, of: int) -> list[Cell]:
    money = dollars([one])
    return [
        one.attempts / of,
        one.prompt_tokens / of,
        None if one.cached_tokens is None else one.cached_tokens / of,
        one.completion_tokens / of,
        one.wasted_tokens / of,
        None if money is None else f"{money / of:.7f}",
    ]


def _losses(study: Study) -> ReportTable:
    rows: list[tuple[Cell, ...]] = []
    for cell in study.cells:
        wrong = [row for row in cell.rows if row.wrong]
        lost = Counter(row.attribution.lost_by for row in wrong if row.attribution)
        if lost:
            counts = [lost[name] for name in get_args(Loss)]
            shares = [100 * count / lost.total() for count in counts]
            rows.append((cell.name, len(cell.rows), len(wrong), lost.total(), *_interleaved(counts, shares)))
    columns = tuple(name for loss in get_args(Loss) for name in (loss, f"{loss}, %"))
    note = (
        "Ours. A wrong answer is asked for again with gold sub-queries, and with gold reports: what comes right then "
        "was lost by the role that was helped; by retrieval where no passage that was shown holds the first answer "
        "that the executor missed, or else by reading. Shares are of the wrong answers whose question has a gold "
        "decomposition."
    )
    title = "Which role loses wrong answers"
    return ReportTable("losses", title, ("pair", "rollouts", "wrong", "traced", *columns), tuple(rows), note, digits=1)


def _interleaved(counts: list[int], shares: list[float]) -> list[Cell]:
    return [value for pair in zip(counts, shares, strict=True) for value in pair]


def _differences(study: Study) -> ReportTable:
    rows: list[tuple[Cell, ...]] = []
    for old, new in combinations(study.cells, 2):
        for name in ("EM", "Judge"):
            rows += _difference(new, old, name)
    note = "Ours, in points of 100; intervals from a bootstrap over questions, paired by question."
    columns = ("pair", "beside", "score", "difference", "from", "to (95 %)")
    return ReportTable("differences", "How sure differences are", columns, tuple(rows), note)


def _difference(new: CellRows, old: CellRows, name: str) -> list[tuple[Cell, ...]]:
    judged = all(row.judged for cell in (new, old) for row in cell.rows[:1])
    found = compared(new.rows, old.rows, METRICS[name]) if judged or name != "Judge" else None
    if found is None:
        return []
    return [(new.name, old.name, name, *(100 * value for value in (found.mean, found.low, found.high)))]


def _agreements(study: Study) -> ReportTable:
    rows: list[tuple[Cell, ...]] = []
    for cell in study.cells:
        if any(row.judged for row in cell.rows):
            found = agreement(cell.rows)
            counts = (found.both, found.exact_match_only, found.judge_only, found.neither, found.unreadable)
            rows.append((cell.name, *counts, found.kappa))
    columns = ("pair", "both right", "EM only", "judge only", "both wrong", "unreadable", "Cohen's kappa")
    note = "Ours, in rollouts. Unreadable replies of the judge count as not accepted in its score, and not in kappa."
    return ReportTable("agreement", "How far judge and exact match agree", columns, tuple(rows), note, digits=3)
