"""Scores of one response: `official`, as WideSearch's evaluator computes them, bugs included, and
`strict`.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.widesearch.cell_rules import normal_text, official_score, strict_same, strict_value
from benchmarks.widesearch.table_text import (
    Table,
    Unreadable,
    official_table,
    plain,
    plain_table,
    typed,
)
from benchmarks.widesearch.tasks import Rule, Task
from router.calls import Role
from router.errors import JSON_ERRORS, ContextTooLong
from router.ledger import Ledger

RuleSet = Literal["official", "strict"]
Row = dict[str, str]
"""Cells by column."""
_MIN_SCORE = 1e-9
_SHOWN = 500


@dataclass(slots=True)
class CellJudge:
    """Asks a model about a whole column at a time. Without a role no model is asked: only cells
    with equal normal texts are the same. Methods raise `UpstreamError`.
    """

    role: Role | None = None
    unreadable: int = 0
    """Number of replies without a JSON block; these align nothing, or make a whole column wrong."""
    _ledger: Ledger = field(default_factory=lambda: Ledger("widesearch"))

    async def aligned(self, values: Sequence[str], references: Sequence[str]) -> Mapping[str, str]:
        """Return the reference that means the same, by value."""
        reply = await self._asked("align.txt", {"values": values, "references": references})
        return {value: str(reference) for value, reference in reply.items()}

    async def scores(self, pairs: Sequence[tuple[str, str]], criterion: str) -> list[float]:
        """Return a score, 0 or 1, for each pair of response and target."""
        if self.role is None or not pairs:
            return [
                float(normal_text(response) == normal_text(target)) for response, target in pairs
            ]
        shown = {
            f"idx_{at}": {"response": response, "target": target}
            for at, (response, target) in enumerate(pairs)
        }
        reply = await self._asked("score.txt", {"criterion": criterion, "pairs": shown})
        return [
            float(score) if isinstance(score := reply.get(name), int | float) else 0.0
            for name in shown
        ]

    async def _asked(self, prompt: str, shown: object) -> dict[str, object]:
        if self.role is None:
            return {}
        system = Path(__file__).with_name(prompt).read_text("utf-8").strip()
        role = replace(self.role, system=system)
        messages = role.opening(msgspec.json.encode(shown).decode())
        text = ""
        with suppress(ContextTooLong):  # because of the response
            text = (await role.ask(messages, (), self._ledger)).text
        with suppress(*JSON_ERRORS, IndexError):
            return msgspec.json.decode(
                text.split("```json")[1:][-1].partition("```")[0], type=dict[str, object]
            )
        self.unreadable += 1
        return {}


class TableScores(msgspec.Struct, frozen=True):
    """Scores of one response, shares of 1; official ones may be higher."""

    success: float = 0.0
    row_precision: float = 0.0
    row_recall: float = 0.0
    row_f1: float = 0.0
    item_precision: float = 0.0
    item_recall: float = 0.0
    item_f1: float = 0.0
    why: str = ""
    """Reason why the response scores nothing; empty otherwise."""


async def scores_of(
    task: Task,
    response: str,
    judge: CellJudge,
    rules: RuleSet,
) -> TableScores:
    """Score a response; an unreadable one scores zero. Under strict rules, rows with the same key
    count once, extra columns are ignored, and cells of missing columns are wrong. Raises
    `UpstreamError`.
    """
    try:
        return await _scores_of(task, response, judge, strict=rules == "strict")
    except (TypeError, ValueError) as error:  # as in the original
        return TableScores(why=str(error) or type(error).__name__)


async def _scores_of(
    task: Task,
    response: str,
    judge: CellJudge,
    *,
    strict: bool,
) -> TableScores:
    """Score a response: read both tables, align columns and keys, pair rows by key, then score the
    cells of the paired rows column by column. Raises `Unreadable` and errors of the metrics.
    """
    table, gold = await _tables(task, response, judge, strict=strict)
    ours, theirs = await _keyed_rows(
        task,
        table,
        gold,
        judge,
        strict=strict,
    )

    key = partial(_key, task, strict=strict)
    by_key: dict[Hashable, list[Row]] = defaultdict(list)
    for row in theirs:
        by_key[key(row)].append(row)
    pairs = [(row, other) for row in ours for other in by_key.get(key(row), ())]

    columns = [[1.0] * len(pairs) for _ in task.keys]
    for name in [name for name in gold if name not in task.keys]:
        if pairs and name in table:
            cells = [(row[name], other[name]) for row, other in pairs]
            columns += await _column(task.rules[name], cells, judge, strict=strict)
        else:
            columns.append([0.0] * len(pairs))

    by_row = _ratios(sum(map(min, zip(*columns, strict=True))), len(ours), len(theirs))
    width = len(gold.keys() & table.keys())
    by_item = _ratios(sum(map(sum, columns)), len(ours) * width, len(theirs) * len(gold))
    success = {*by_row, *by_item} == {1.0}
    if not (success or strict or _aligned_keys(task)) and [*table] == [*gold]:
        success = _equal_when_sorted(task, ours, theirs)
    scores = TableScores(float(success), *by_row, *by_item)
    if scores.item_f1:
        return scores
    return msgspec.structs.replace(scores, why=_nothing_scored([*map(key, ours)]))


async def _tables(
    task: Task,
    response: str,
    judge: CellJudge,
    *,
    strict: bool,
) -> tuple[Table, Table]:
    """Return the table of a response, with its columns renamed to those of the task, and the gold
    table. Raises `Unreadable`.
    """
    table = (plain_table if strict else official_table)(response)
    gold = {
        name: [*map(plain, cells)] if strict else typed(cells) for name, cells in task.gold.items()
    }
    different = gold.keys() - table.keys() if strict else gold.keys() ^ table.keys()
    if not different:
        return table, gold

    names = await judge.aligned([*table], [*gold])
    renamed = [names.get(name, name) for name in table]
    if {*task.keys} - {*renamed} if strict else sorted(renamed) != sorted(gold):
        raise Unreadable(
            f"its columns are {', '.join(table)[:_SHOWN]}, and those of the task are "
            f"{', '.join(gold)[:_SHOWN]}"
        )
    return dict(zip(renamed, table.values(), strict=True)), gold


async def _keyed_rows(
    task: Task,
    table: Table,
    gold: Table,
    judge: CellJudge,
    *,
    strict: bool,
) -> tuple[list[Row], list[Row]]:
    """Return the rows of both tables, each key once; keys of the response that mean the same as
    gold keys are replaced by these.
    """
    tables = (
        [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        for columns in (table, gold)
    )
    ours, theirs = (_unique(rows, lambda row: tuple(map(row.get, task.keys))) for rows in tables)
    for name in _aligned_keys(task):
        same = await judge.aligned([row[name] for row in ours], [row[name] for row in theirs])
        ours = [row | {name: same.get(row[name], row[name])} for row in ours]
    if not strict:
        return ours, theirs
    key = partial(_key, task, strict=True)
    return _unique(ours, key), _unique(theirs, key)


def _key(task: Task, row: Row, *, strict: bool) -> Hashable:
    """Return the key of a row, as it is compared."""
    rules = [(task.rules[name], row[name]) for name in task.keys]
    if strict:
        return tuple(strict_value((*rule.metric, "exact_match")[0], cell) for rule, cell in rules)
    return tuple(rule.prepared(cell) for rule, cell in rules)


def _aligned_keys(task: Task) -> list[str]:
    """Return the key columns in which a judge aligns values."""
    return [name for name in task.keys if {"llm_judge", "exact_match"} & {*task.rules[name].metric}]


def _equal_when_sorted(task: Task, ours: Sequence[Row], theirs: Sequence[Row]) -> bool:
    """Compare all prepared rows in sorted order, which is the original's second way to success."""
    prepared = [
        sorted([rule.prepared(row[name]) for name, rule in task.rules.items()] for row in rows)
        for rows in (ours, theirs)
    ]
    return prepared[0] == prepared[1]


def _nothing_scored(ours: Sequence[Hashable]) -> str:
    """Return why a readable table scores nothing, from the keys of its rows."""
    if not ours:
        return "its table has no rows"
    return f"none of its {len(ours)} rows has the key of a right one; its first is {ours[0]}"[
        :_SHOWN
    ]


async def _column(
    rule: Rule,
    cells: Sequence[tuple[str, str]],
    judge: CellJudge,
    *,
    strict: bool,
) -> list[list[float]]:
    """Return the scores of a column's cells by each metric; under strict rules, by all together."""
    prepared = [(rule.prepared(response), rule.prepared(target)) for response, target in cells]
    judged = (
        await judge.scores(prepared, str(rule.criterion))
        if "llm_judge" in rule.metric
        else [0.0] * len(cells)
    )
    if strict:
        same = (
            all(strict_same(metric, *pair, rule.criterion) for metric in rule.metric)
            for pair in cells
        )
        return [[*map(max, judged, map(float, same))]]
    return [
        judged
        if metric == "llm_judge"
        else [official_score(metric, *pair, rule.criterion) for pair in prepared]
        for metric in dict.fromkeys(rule.metric)
    ]


def _unique(rows: Sequence[Row], key: Callable[[Row], Hashable]) -> list[Row]:
    """Return the first row of each key."""
    return [*reversed({key(row): row for row in reversed(rows)}.values())]


def _ratios(right: float, ours: int, theirs: int) -> tuple[float, float, float]:
    """Return precision, recall and F1."""
    precision = right / ours if ours else 0.0
    recall = right / theirs if theirs else 0.0
    both = precision + recall
    return precision, recall, 2 * precision * recall / both if both > _MIN_SCORE else 0.0
