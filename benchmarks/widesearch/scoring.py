"""Score one response by two sets of rules: `official`, exactly as in WideSearch's evaluator,
including its bugs, and `strict`.
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
from router.frozen import Frozen
from router.ledger import Ledger

RuleSet = Literal["official", "strict"]
Row = dict[str, str]
"""Cells of a row, by column."""
_MIN_SCORE = 1e-9
_SHOWN = 500
"""Max characters of a list of columns or keys in a message."""


@dataclass(slots=True)
class CellJudge:
    """Compares cells with a model, in one call for a whole column. Without a role, no model is
    asked, and two cells are the same only if their normal texts (`normal_text`) are equal. Methods
    raise `UpstreamError`.
    """

    role: Role | None = None
    unreadable: int = 0
    """Number of the model's replies without a JSON block. After such a reply to a question about
    names, no names match; after one about cells, all cells of the column count as wrong.
    """
    undecided: int = 0
    """Number of pairs of cells that count as different because no model was asked."""
    _ledger: Ledger = field(default_factory=lambda: Ledger("widesearch"))

    async def aligned(self, values: Sequence[str], references: Sequence[str]) -> Mapping[str, str]:
        """Let the model match `values` with `references`. Return a mapping from each value to the
        reference of the same meaning. Values without such a reference are not in the mapping.
        """
        reply = await self._asked("align.txt", {"values": values, "references": references})
        return {value: str(reference) for value, reference in reply.items()}

    async def scores(self, pairs: Sequence[tuple[str, str]], criterion: str) -> list[float]:
        """Return a score, 0 or 1, for each pair of a response's cell and its gold cell.
        `criterion`: instruction that says when a cell is right.
        """
        if self.role is None or not pairs:
            same = [normal_text(response) == normal_text(target) for response, target in pairs]
            self.undecided += same.count(False)
            return [*map(float, same)]
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
        """Return the JSON block of the model's reply; empty if there is none. `prompt`: file with
        the system prompt. `shown`: value to show to the model as JSON.
        """
        if self.role is None:
            return {}
        system = Path(__file__).with_name(prompt).read_text("utf-8").strip()
        role = replace(self.role, system=system)
        messages = role.opening(msgspec.json.encode(shown).decode())
        text = ""
        with suppress(
            ContextTooLong
        ):  # if the response is too long for the judge, its cells are wrong
            text = (await role.ask(messages, (), self._ledger)).text
        with suppress(*JSON_ERRORS, IndexError):
            return msgspec.json.decode(
                text.split("```json")[1:][-1].partition("```")[0], type=dict[str, object]
            )
        self.unreadable += 1
        return {}


class TableScores(Frozen):
    """Scores of one response, from 0 to 1. By the official rules, scores can exceed 1."""

    success: float = 0.0
    """1 if the whole table is right, else 0."""
    row_precision: float = 0.0
    row_recall: float = 0.0
    row_f1: float = 0.0
    item_precision: float = 0.0
    item_recall: float = 0.0
    item_f1: float = 0.0
    why: str = ""
    """Reason why all scores are 0; empty if they are not."""


async def scores_of(
    task: Task,
    response: str,
    judge: CellJudge,
    rules: RuleSet,
) -> TableScores:
    """Return the scores of a response by a set of rules. All scores are 0 if the response has no
    readable table.

    By the strict rules, rows with the same key count once, columns that the task does not have are
    ignored, and all cells of a missing column are wrong. Raises `UpstreamError` if the judge fails.
    """
    try:
        return await _scores_of(task, response, judge, strict=rules == "strict")
    except (TypeError, ValueError) as error:  # WideSearch's evaluator gives zeros here, too
        return TableScores(why=str(error) or type(error).__name__)


async def _scores_of(
    task: Task,
    response: str,
    judge: CellJudge,
    *,
    strict: bool,
) -> TableScores:
    """Return the scores of a response. Both tables are read, and their columns and keys are
    matched. Rows with the same key form pairs, whose cells are scored column by column.

    Raises `Unreadable` if no table can be scored, and the errors of the metrics.
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
    """Return the table of a response, with its columns renamed to the task's columns, and the
    task's gold table. Raises `Unreadable` if there is no table, or if its columns do not match the
    task's.
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
            f"its columns are {', '.join(table)[:_SHOWN]}, but the task's columns are "
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
    """Return the rows of the response's table and of the gold table, at most one row for each key.
    If a key of the response means the same as a gold key, it is replaced by the gold key.
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
    """Return the key of a row, normalized for comparison with other keys."""
    rules = [(task.rules[name], row[name]) for name in task.keys]
    if strict:
        return tuple(strict_value((*rule.metric, "exact_match")[0], cell) for rule, cell in rules)
    return tuple(rule.prepared(cell) for rule, cell in rules)


def _aligned_keys(task: Task) -> list[str]:
    """Return the key columns whose values the judge matches by meaning."""
    return [name for name in task.keys if {"llm_judge", "exact_match"} & {*task.rules[name].metric}]


def _equal_when_sorted(task: Task, ours: Sequence[Row], theirs: Sequence[Row]) -> bool:
    """Return True if both tables have the same rows after preprocessing, in any order. WideSearch's
    evaluator then counts the whole table as right.
    """
    prepared = [
        sorted([rule.prepared(row[name]) for name, rule in task.rules.items()] for row in rows)
        for rows in (ours, theirs)
    ]
    return prepared[0] == prepared[1]


def _nothing_scored(ours: Sequence[Hashable]) -> str:
    """Return a text that says why all scores of a readable table are 0. `ours`: keys of the table's
    rows.
    """
    if not ours:
        return "its table has no rows"
    return f"none of its {len(ours)} rows has the key of a gold row; its first key is {ours[0]}"[
        :_SHOWN
    ]


async def _column(
    rule: Rule,
    cells: Sequence[tuple[str, str]],
    judge: CellJudge,
    *,
    strict: bool,
) -> list[list[float]]:
    """Return the scores of a column's cells, as one list for each metric of the column. By the
    strict rules, there is only one list: a cell is right if all metrics accept it, or if the judge
    does.

    `cells`: pairs of a response's cell and its gold cell.
    """
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
    """Return the first row with each key, in the order of the rows."""
    first = dict[Hashable, Row]()
    for row in rows:
        first.setdefault(key(row), row)
    return [*first.values()]


def _ratios(right: float, ours: int, theirs: int) -> tuple[float, float, float]:
    """Return precision, recall and F1. `right`: number of right rows or cells. `ours`, `theirs`:
    number of rows or cells in the response and in the gold table.
    """
    precision = right / ours if ours else 0.0
    recall = right / theirs if theirs else 0.0
    both = precision + recall
    return precision, recall, 2 * precision * recall / both if both > _MIN_SCORE else 0.0
