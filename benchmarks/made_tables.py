"""Measure how many of the tables that `rolegate sft tables` keeps are right, for different values
of its option `--consistency`.

Reads results of `rolegate sft tables` whose seeds are requests with right rows, such as
questions.jsonl of `rolegate sft mini-world --wide`. For each value of `--consistency`, the kept
tables, and the tables that are dropped because of it, are compared with the right rows.

kept, dropped    number of tables
good             share of these tables with an item F1 of at least 0.95
item f1          mean item F1
cells right      mean share of a table's cells that are right (item precision)
cells found      mean share of the right cells that are in the table (item recall)
good kept        share of all good tables that are kept
tokens per kept  tokens of all answers, per kept table

A figure without tables has no value.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from benchmarks import harness
from executor_sft.jsonl import read_jsonl
from executor_sft.tables.agreement import Answers, made_tables
from executor_sft.tables.command import ANSWERS
from router.errors import BadConfig
from router.frozen import Frozen
from router.table.scores import TableScore, table_score
from serving.cli.command import POSITIONAL

_THRESHOLDS = (0.7, 0.8, 0.9, 0.95)
_GOOD = 0.95
_MEASURES = {"item f1": "item_f1", "cells right": "item_precision", "cells found": "item_recall"}
"""For each figure: the field of `TableScore` that is averaged over tables."""
_ADVICE = "name folders of `rolegate sft tables`"


class Options(harness.Options):
    """Options of the benchmark."""

    made: Annotated[tuple[Path, ...], POSITIONAL]
    """result folders of `rolegate sft tables`"""


class Figures(Frozen):
    """Figures of the benchmark."""

    thresholds: dict[str, dict[str, float | None]]
    """For each figure, by name: the value at each threshold of `--consistency`."""


def measure(options: Options) -> Figures:
    """Return the figures. Raises `BadConfig` if no seed has right rows."""
    answered = [
        line
        for folder in options.made
        for line in read_jsonl(folder, Answers, _ADVICE, ANSWERS)
        if line.question.rows
    ]
    if not answered:
        raise BadConfig(f"{options.made[0] / ANSWERS}: no request has right rows; {_ADVICE}.")
    columns = {str(threshold): _column(answered, threshold) for threshold in _THRESHOLDS}
    names = columns[str(_THRESHOLDS[0])]
    return Figures({name: {at: columns[at][name] for at in columns} for name in names})


def _column(answered: Sequence[Answers], threshold: float) -> dict[str, float | None]:
    scores: dict[str, list[TableScore]] = {"kept": [], "dropped": []}
    made = made_tables(answered, consistency=threshold, min_rows=3, support=0.8)
    for pair, table in zip(answered, made, strict=True):
        score = table_score(pair.schema, table.question.rows, pair.question.rows)
        scores["dropped" if table.reason else "kept"].append(score)

    column = dict[str, float | None]()
    good = Counter[str]()
    for name, group in scores.items():
        good[name] = sum(score.item_f1 >= _GOOD for score in group)
        column |= {
            name: len(group),
            f"{name}: good": _share(good[name], len(group)),
        }
        for measure, field in _MEASURES.items():
            total = sum(getattr(score, field) for score in group)
            column[f"{name}: {measure}"] = _share(total, len(group))
    tokens = sum(answer.tokens for pair in answered for answer in pair.answers)
    column["good kept"] = _share(good["kept"], good.total())
    column["tokens per kept"] = _share(tokens, len(scores["kept"]))
    return column


def _share(part: float, whole: int) -> float | None:
    """Return `part / whole`; None if `whole` is 0."""
    return part / whole if whole else None
