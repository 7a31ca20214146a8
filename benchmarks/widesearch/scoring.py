"""Scores of one response: `official`, as WideSearch's evaluator computes them, its bugs included, and `strict`."""

from collections.abc import Hashable, Sequence
from typing import Literal

import msgspec

from benchmarks.widesearch.cell_rules import normal_text, official_score, strict_same, strict_value
from benchmarks.widesearch.judge import Judge
from benchmarks.widesearch.table_text import Table, Unreadable, official_table, plain, plain_table, typed
from benchmarks.widesearch.tasks import Rule, Task

RuleSet = Literal["official", "strict"]
_LEAST = 1e-9
_ALIGNED = {"llm_judge", "exact_match"}
"""Metrics of key columns whose values the judge aligns."""


class Scores(msgspec.Struct, frozen=True):
    """Scores of one response, shares of 1; official ones may be higher."""

    success: float = 0.0
    row_precision: float = 0.0
    row_recall: float = 0.0
    row_f1: float = 0.0
    item_precision: float = 0.0
    item_recall: float = 0.0
    item_f1: float = 0.0
    why: str = ""
    """Why nothing could be scored; empty otherwise."""


async def scores_of(task: Task, response: str, judge: Judge, rules: RuleSet) -> Scores:
    """Score a response; one that cannot be read has zeros. Raises `UpstreamError`."""
    try:
        return await (_official if rules == "official" else _strict)(task, response, judge)
    except (TypeError, ValueError) as error:  # metrics of the original end so, too
        return Scores(why=str(error))


async def _official(task: Task, response: str, judge: Judge) -> Scores:
    found, gold = official_table(response), {name: typed(cells) for name, cells in task.gold.items()}
    if set(found) != set(gold):
        names = await judge.aligned([*found], [*gold])
        renamed = [names.get(name, name) for name in found]
        if set(renamed) != set(gold) or len(renamed) > len(gold):
            raise Unreadable(f"its columns are {', '.join(found)}")
        found = dict(zip(renamed, found.values(), strict=True))
    found, gold = (_first(table, _rows(table, task.keys)) for table in (found, gold))
    aligned = [name for name in task.keys if _ALIGNED & {*task.rules[name].metric}]
    for name in aligned:
        same = await judge.aligned(found[name], gold[name])
        found[name] = [same.get(cell, cell) for cell in found[name]]
    ours, theirs = (_rows(_prepared(table, task, task.keys), task.keys) for table in (found, gold))
    pairs, scores = _pairs(ours, theirs), list[list[float]]()
    for name, rule in task.others.items():
        cells = [(rule.prepared(found[name][at]), rule.prepared(gold[name][gold_at])) for at, gold_at in pairs]
        for metric in dict.fromkeys(rule.metric):
            if metric == "llm_judge":
                scores.append(await judge.scores(cells, str(rule.criterion)))
            else:
                scores.append([official_score(metric, *pair, rule.near) for pair in cells])
    result = _scores(task, scores, len(pairs), (len(ours), len(theirs)))
    if not aligned and [*found] == [*gold] and len(ours) == len(theirs):  # the original's second way to success
        one, other = (sorted(_rows(_prepared(table, task, [*gold]), [*gold])) for table in (found, gold))
        result = msgspec.structs.replace(result, success=max(result.success, float(one == other)))
    return result


async def _strict(task: Task, response: str, judge: Judge) -> Scores:
    """Cells of missing columns are wrong, other columns ignored, and a key counts once, however it is written."""
    found, gold = plain_table(response), {name: [*map(plain, cells)] for name, cells in task.gold.items()}
    if missing := gold.keys() - found.keys():
        names = await judge.aligned([*(found.keys() - gold.keys())], [*missing])
        found = {new if (new := names.get(name, "")) in missing else name: cells for name, cells in found.items()}
    if missing := set(task.keys) - found.keys():
        raise Unreadable(f"there is no column {', '.join(missing)}")
    for name in task.keys:
        if _ALIGNED & {*task.rules[name].metric}:
            found[name] = await _aligned(found[name], gold[name], judge)
    ours, theirs = ([_key(task, row) for row in _rows(table, task.keys)] for table in (found, gold))
    found, gold = _first(found, ours), _first(gold, theirs)
    pairs = _pairs([*dict.fromkeys(ours)], [*dict.fromkeys(theirs)])
    scores = [
        await _strict_scores(rule, [(found[name][at], gold[name][gold_at]) for at, gold_at in pairs], judge)
        if name in found
        else [0.0] * len(pairs)
        for name, rule in task.others.items()
    ]
    return _scores(task, scores, len(pairs), (len({*ours}), len({*theirs})), len(gold.keys() & found.keys()))


async def _aligned(values: Sequence[str], golds: Sequence[str], judge: Judge) -> list[str]:
    """Gold values in the place of those that mean the same; the judge is asked only about those that are left over."""
    ours, theirs = ({normal_text(value): value for value in column} for column in (values, golds))
    left, free = ([one[key] for key in one if key not in other] for one, other in ((ours, theirs), (theirs, ours)))
    same = await judge.aligned(left, free) if left and free else {}
    return [same.get(ours[normal_text(value)], value) for value in values]


async def _strict_scores(rule: Rule, cells: Sequence[tuple[str, str]], judge: Judge) -> list[float]:
    """1 for cells that are right by all metrics; the judge is asked only about those that are not equal."""
    right = [all(strict_same(metric, *pair, rule.near) for metric in rule.metric) for pair in cells]
    left = [pair for pair, equal in zip(cells, right, strict=True) if not equal]
    judged = iter(await judge.scores(left, str(rule.criterion)) if "llm_judge" in rule.metric else ())
    return [1.0 if equal else next(judged, 0.0) for equal in right]


def _key(task: Task, row: Sequence[str]) -> Hashable:
    """The values of a row's key cells."""
    rules = [task.rules[name] for name in task.keys]
    return tuple(
        strict_value(next(iter(rule.metric), "exact_match"), cell) for rule, cell in zip(rules, row, strict=True)
    )


def _rows(table: Table, names: Sequence[str]) -> list[tuple[str, ...]]:
    return list(zip(*(table[name] for name in names), strict=True))


def _prepared(table: Table, task: Task, names: Sequence[str]) -> Table:
    return {name: [*map(task.rules[name].prepared, table[name])] for name in names}


def _first(table: Table, keys: Sequence[Hashable]) -> Table:
    """The rows whose keys do not stand above them."""
    rows = sorted({key: at for at, key in reversed([*enumerate(keys)])}.values())
    return {name: [cells[at] for at in rows] for name, cells in table.items()}


def _pairs(ours: Sequence[Hashable], theirs: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Each row of the response with each gold row of the same key."""
    places: dict[Hashable, list[int]] = {}
    for at, key in enumerate(theirs):
        places.setdefault(key, []).append(at)
    return [(at, gold_at) for at, key in enumerate(ours) for gold_at in places.get(key, ())]


def _scores(
    task: Task, columns: Sequence[Sequence[float]], pairs: int, rows: tuple[int, int], present: int = 0
) -> Scores:
    """Scores from those of the pairs, by column, and the numbers of rows, ours and the gold ones. `present`: columns of
    the response that count; 0 for all.
    """
    right, items = sum(map(min, zip([1.0] * pairs, *columns, strict=True))), sum(map(sum, columns))
    width, (ours, theirs) = len(task.rules), rows
    by_row = _ratios(right, ours, theirs)
    by_item = _ratios(items + len(task.keys) * pairs, ours * (present or width), theirs * width)
    return Scores(float({*by_row, *by_item} == {1.0}), *by_row, *by_item)


def _ratios(right: float, ours: int, theirs: int) -> tuple[float, float, float]:
    """Precision, recall and F1."""
    precision, recall = right / ours if ours else 0.0, right / theirs if theirs else 0.0
    both = precision + recall
    return precision, recall, 2 * precision * recall / both if both > _LEAST else 0.0
