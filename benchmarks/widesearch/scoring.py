"""Scores of one response: `official`, as WideSearch's evaluator computes them, its bugs
included, and `strict`.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.widesearch.cell_rules import normal_text, official_score, strict_same, strict_value
from benchmarks.widesearch.table_text import Unreadable, official_table, plain, plain_table, typed
from benchmarks.widesearch.tasks import Rule, Task
from router.calls import Role
from router.errors import JSON_ERRORS, ContextTooLong
from router.ledger import Ledger

RuleSet = Literal["official", "strict"]
Row = dict[str, str]
"""Cells by column."""
_LEAST = 1e-9
_SHOWN = 500


@dataclass(slots=True)
class Judge:
    """Asks a model about a whole column at a time; methods raise `UpstreamError`. Without a role
    nobody is asked: only what is equal, once normalised, is the same.
    """

    role: Role | None = None
    unreadable: int = 0
    """Replies without a block of JSON: nothing was aligned then, or all of a column was wrong."""
    _ledger: Ledger = field(default_factory=lambda: Ledger("widesearch"))

    async def aligned(self, values: Sequence[str], references: Sequence[str]) -> Mapping[str, str]:
        """References by the values that mean the same."""
        found = await self._asked("align.txt", {"values": values, "references": references})
        return {value: str(reference) for value, reference in found.items()}

    async def scores(self, pairs: Sequence[tuple[str, str]], criterion: str) -> list[float]:
        """A score, 0 or 1, for each response and target."""
        if self.role is None or not pairs:
            return [
                float(normal_text(response) == normal_text(target)) for response, target in pairs
            ]
        shown = {
            f"idx_{at}": {"response": one, "target": other} for at, (one, other) in enumerate(pairs)
        }
        found = await self._asked("score.txt", {"criterion": criterion, "pairs": shown})
        return [
            float(score) if isinstance(score := found.get(name), int | float) else 0.0
            for name in shown
        ]

    async def _asked(self, prompt: str, shown: object) -> dict[str, object]:
        if self.role is None:
            return {}
        role = replace(
            self.role, system=Path(__file__).with_name(prompt).read_text("utf-8").strip()
        )
        text = ""
        with suppress(ContextTooLong):  # the response is
            text = (
                await role.ask(role.opening(msgspec.json.encode(shown).decode()), (), self._ledger)
            ).text
        with suppress(*JSON_ERRORS, IndexError):
            return msgspec.json.decode(
                text.split("```json")[1:][-1].partition("```")[0], type=dict[str, object]
            )
        self.unreadable += 1
        return {}


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
    """The reason why it scores nothing; empty otherwise."""


async def scores_of(task: Task, response: str, judge: Judge, rules: RuleSet) -> Scores:
    """Score a response; one that cannot be read has zeros. Strictly, rows of one key count once,
    columns that were not asked for not at all, and cells of missing columns are wrong. Raises
    `UpstreamError`.
    """
    try:
        return await _scores_of(task, response, judge, strict=rules == "strict")
    except (TypeError, ValueError) as error:  # metrics of the original end so, too
        return Scores(why=str(error) or type(error).__name__)


async def _scores_of(task: Task, response: str, judge: Judge, *, strict: bool) -> Scores:
    keys = {name: task.rules[name] for name in task.keys}

    def key(row: Row) -> Hashable:
        by_metric = (
            strict_value((*rule.metric, "exact_match")[0], row[name]) for name, rule in keys.items()
        )
        return tuple(
            by_metric if strict else (rule.prepared(row[name]) for name, rule in keys.items())
        )

    found = (plain_table if strict else official_table)(response)
    gold = {
        name: [*map(plain, cells)] if strict else typed(cells) for name, cells in task.gold.items()
    }
    if gold.keys() - found.keys() if strict else gold.keys() ^ found.keys():
        names = await judge.aligned([*found], [*gold])
        renamed = [names.get(name, name) for name in found]
        if keys.keys() - {*renamed} if strict else sorted(renamed) != sorted(gold):
            ours_are = ", ".join(found)[:_SHOWN]
            raise Unreadable(
                f"its columns are {ours_are}, and those of the task are {', '.join(gold)[:_SHOWN]}"
            )
        found = dict(zip(renamed, found.values(), strict=True))
    tables = (
        [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        for table in (found, gold)
    )
    ours, theirs = (_unique(rows, lambda row: tuple(map(row.get, keys))) for rows in tables)
    aligned = [name for name, rule in keys.items() if {"llm_judge", "exact_match"} & {*rule.metric}]
    for name in aligned:
        same = await judge.aligned([row[name] for row in ours], [row[name] for row in theirs])
        ours = [row | {name: same.get(row[name], row[name])} for row in ours]
    if strict:
        ours = _unique(ours, key)
        theirs = _unique(theirs, key)
    by_key: dict[Hashable, list[Row]] = defaultdict(list)
    for row in theirs:
        by_key[key(row)].append(row)
    pairs = [(row, other) for row in ours for other in by_key.get(key(row), ())]
    columns = [[1.0] * len(pairs) for _ in keys]
    for name in [name for name in gold if name not in keys]:
        cells = [(row[name], other[name]) for row, other in pairs] if name in found else []
        columns += (
            await _column(task.rules[name], cells, judge, strict=strict)
            if cells
            else [[0.0] * len(pairs)]
        )
    by_row = _ratios(sum(map(min, zip(*columns, strict=True))), len(ours), len(theirs))
    width = len(gold.keys() & found.keys())
    by_item = _ratios(sum(map(sum, columns)), len(ours) * width, len(theirs) * len(gold))
    whole = {*by_row, *by_item} == {1.0}
    # The original's second way to success
    if not (whole or strict or aligned) and [*found] == [*gold]:
        rules = task.rules.items()
        both = [
            sorted([rule.prepared(row[name]) for name, rule in rules] for row in rows)
            for rows in (ours, theirs)
        ]
        whole = both[0] == both[1]
    scores = Scores(float(whole), *by_row, *by_item)
    return (
        scores
        if scores.item_f1
        else msgspec.structs.replace(scores, why=_nothing_scored([*map(key, ours)]))
    )


def _nothing_scored(ours: Sequence[Hashable]) -> str:
    """Return the reason why a table that was read scores nothing, from the keys of its rows."""
    if not ours:
        return "its table has no rows"
    return f"none of its {len(ours)} rows has the key of a right one; its first is {ours[0]}"[
        :_SHOWN
    ]


async def _column(
    rule: Rule, cells: Sequence[tuple[str, str]], judge: Judge, *, strict: bool
) -> list[list[float]]:
    """Scores of the cells of one column by each metric; strictly, by all of them together."""
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
    """The first row of each key."""
    return [*reversed({key(row): row for row in reversed(rows)}.values())]


def _ratios(right: float, ours: int, theirs: int) -> tuple[float, float, float]:
    """Precision, recall and F1."""
    precision = right / ours if ours else 0.0
    recall = right / theirs if theirs else 0.0
    both = precision + recall
    return precision, recall, 2 * precision * recall / both if both > _LEAST else 0.0
