"""Tasks in WideSearch's format with their gold tables, and responses to them, read from files."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.widesearch.cell_rules import PREPROCESS, Criterion, Metric, Preprocess
from benchmarks.widesearch.table_text import Table, Unreadable, norm_column, read_csv
from executor_sft.jsonl import read_jsonl
from router.errors import BadCorpus
from router.trace.table import Column, ColumnType

RESPONSE = 'write {"instance_id": …, "response": …} on each line'
_TASK = "a task has instance_id, query, language and evaluation, which is JSON in a string"


class Rule(msgspec.Struct, frozen=True):
    """Preprocessing and metrics of one column."""

    preprocess: tuple[Preprocess, ...] = ()
    metric: tuple[Metric, ...] = ()
    criterion: Criterion = None

    def prepared(self, cell: str) -> str:
        """Return the cell after all preprocessing."""
        for name in self.preprocess:
            cell = PREPROCESS[name](cell)
        return cell


class _Evaluation(msgspec.Struct, frozen=True):
    unique_columns: tuple[str, ...]
    required: tuple[str, ...]
    eval_pipeline: dict[str, Rule]


class Task(msgspec.Struct, frozen=True):
    """Line of `tasks.jsonl`, with its parsed evaluation and its gold table."""

    instance_id: str
    query: str
    language: str
    evaluation: str
    keys: tuple[str, ...] = ()
    rules: dict[str, Rule] = {}
    """Rules by column, in the order of the gold table, keys included."""
    gold: Table = {}

    @property
    def rows(self) -> int:
        """Return the number of rows of the gold table."""
        return len(self.gold[self.keys[0]])

    @property
    def size(self) -> str:
        """Return the size class of the task."""
        if self.rows <= 12:
            return "up to 12 rows"
        return "13 to 40 rows" if self.rows <= 40 else "over 40 rows"


class Response(msgspec.Struct, frozen=True):
    """Line of a file of responses; the first N responses to a task are its runs."""

    instance_id: str
    response: str | None
    """Text with a table; None if there was no response."""
    tokens: dict[str, int] = {}
    """Prompt and completion tokens by role; empty if unknown."""


def read_tasks(folder: Path) -> list[Task]:
    """Read the tasks of a folder. Raises `BadConfig` and `BadCorpus`."""
    path = folder / "tasks.jsonl"
    tasks = {
        line.instance_id: _with_gold(line, f"{path}:{number}", folder)
        for number, line in read_jsonl(path, Task, _TASK)
    }
    if not tasks:
        raise BadCorpus(f"{path}: has no tasks; {_TASK}.")
    return [*tasks.values()]


def _with_gold(task: Task, where: str, folder: Path) -> Task:
    """Add the parsed evaluation and the gold table to a task. Raises `BadCorpus`."""
    try:
        evaluation = msgspec.json.decode(task.evaluation, type=_Evaluation)
    except msgspec.DecodeError as error:
        raise BadCorpus(f"{where}: evaluation: {error}; {_TASK}.") from None
    rules = {name: Rule() for name in evaluation.unique_columns} | evaluation.eval_pipeline
    if not evaluation.unique_columns or set(rules) != set(evaluation.required):
        raise BadCorpus(
            f"{where}: required and eval_pipeline differ, or unique_columns is empty; "
            "name every column."
        )
    path = folder / "gold" / f"{task.instance_id}.csv"
    try:
        gold = {
            norm_column(name): cells
            for name, cells in read_csv(path.read_text("utf-8-sig"), ",").items()
        }
    except (OSError, UnicodeError, Unreadable) as error:
        raise BadCorpus(
            f"{path}: cannot be read ({error}); write the gold table of {where} there."
        ) from None
    if missing := [name for name in evaluation.required if not gold.get(name)]:
        raise BadCorpus(
            f"{path}: has no rows under {', '.join(missing)}; add them, as {where} requires them."
        )
    rules = {name: rules[name] for name in evaluation.required}
    gold = {name: gold[name] for name in evaluation.required}
    return msgspec.structs.replace(task, keys=evaluation.unique_columns, rules=rules, gold=gold)


_TYPES: dict[tuple[Metric, ...], ColumnType] = {
    ("number_near",): "number",
    ("date_near",): "date",
    ("url_match",): "url",
}


def columns_of(task: Task) -> list[Column]:
    """Return the columns to ask for. A column with a single metric has the type of that metric;
    others are text.
    """
    return [
        Column(name, _TYPES.get(rule.metric, "text"), name in task.keys)
        for name, rule in task.rules.items()
    ]


def read_responses(path: Path, tasks: Sequence[Task], runs: int) -> dict[str, list[Response]]:
    """Read the responses of a file by task. Raises `BadConfig`, and `BadCorpus` if a task has fewer
    than `runs`.
    """
    responses: dict[str, list[Response]] = {task.instance_id: [] for task in tasks}
    for _, line in read_jsonl(path, Response, RESPONSE):
        responses.setdefault(line.instance_id, []).append(line)
    if missing := [task.instance_id for task in tasks if len(responses[task.instance_id]) < runs]:
        raise BadCorpus(
            f"{path}: {len(missing):,} tasks have fewer than {runs} responses, {missing[0]} has "
            f"{len(responses[missing[0]])}; add them, with null where nothing was answered, "
            "or give fewer --runs."
        )
    return responses
