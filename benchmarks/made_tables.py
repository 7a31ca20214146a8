"""`rolegate bench made-tables`: how far the agreement of two answers vouches for a made table.

Reads results of `rolegate sft tables` whose seeds are requests with right rows, such as the
questions of wide mini worlds. At each threshold of consistency, the kept and the dropped tables are
compared with the right rows. Dropped tables are taken as they would have been made.

good         share of tables that are good: with an item F1 of at least 0.95
item f1, cells right, cells found   means of item F1, of the share of the table's cells that are
             right (precision), and of the right cells that are in the table (recall)
good kept    share of the good tables that are kept
tokens       of all answers, per kept table
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from benchmarks import harness
from executor_sft.jsonl import read_jsonl
from executor_sft.rollout import mean
from executor_sft.tables.agreement import Answers, made_tables
from executor_sft.tables.command import ANSWERS
from router.errors import BadConfig
from router.table.scores import TableScore, table_score
from router.trace.table import Schema
from serving.cli.command import POSITIONAL

_THRESHOLDS = (0.7, 0.8, 0.9, 0.95)
_GOOD = 0.95
_ADVICE = "name folders of `rolegate sft tables`"


class Options(harness.Options, frozen=True, kw_only=True):
    """Options of the benchmark."""

    made: Annotated[tuple[Path, ...], POSITIONAL]
    """result folders of `rolegate sft tables`"""


class Figures(msgspec.Struct, frozen=True):
    """Figures of the benchmark."""

    lines: list[dict[str, float]]
    """Figures at each threshold."""


def measure(options: Options) -> Figures:
    """Return the figures. Raises `BadConfig` if no seed has right rows."""
    answered = [
        line
        for folder in options.made
        for _, line in read_jsonl(folder, Answers, _ADVICE, ANSWERS)
        if line.question.rows
    ]
    if not answered:
        raise BadConfig(f"{options.made[0] / ANSWERS}: no request has right rows; {_ADVICE}.")
    return Figures([_line(answered, threshold) for threshold in _THRESHOLDS])


def _line(answered: Sequence[Answers], threshold: float) -> dict[str, float]:
    scores: dict[str, list[TableScore]] = {"kept": [], "dropped": []}
    made = made_tables(answered, consistency=threshold, min_rows=3, support=0.8)
    for pair, table in zip(answered, made, strict=True):
        assert pair.question.table
        schema = Schema(pair.question.table.columns)
        score = table_score(schema, table.question.rows, pair.question.rows)
        scores["dropped" if table.reason else "kept"].append(score)

    line: dict[str, float] = {"consistency": threshold}
    good = Counter[str]()
    for name, group in scores.items():
        good[name] = sum(score.item_f1 >= _GOOD for score in group)
        line |= {
            name: len(group),
            f"{name}_good": good[name] / max(1, len(group)),
            f"{name}_item_f1": mean(score.item_f1 for score in group),
            f"{name}_cells_right": mean(score.item_precision for score in group),
            f"{name}_cells_found": mean(score.item_recall for score in group),
        }
    tokens = sum(answer.tokens for pair in answered for answer in pair.answers)
    line["good_kept"] = good["kept"] / max(1, good.total())
    line["tokens_per_kept"] = tokens / max(1, len(scores["kept"]))
    return line
