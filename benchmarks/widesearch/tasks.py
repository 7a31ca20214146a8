"""Tasks in WideSearch's form with their gold tables, and responses to them, as they stand in
files.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rolegate.v1.table_service_pb2 import Column

from benchmarks.widesearch.cell_rules import PREPROCESS, Criterion, Metric, Preprocess
from benchmarks.widesearch.table_text import Table, Unreadable, norm_column, read_csv
from executor_sft.jsonl import read_jsonl
from router.errors import BadCorpus

RESPONSE = 'write {"instance_id": …, "response": …} on each line'
_TASK = "a task has instance_id, query, language and evaluation, which is JSON as text"


class Rule(msgspec.Struct, frozen=True):
    """Preprocessing and metrics of one column."""

    preprocess: tuple[Preprocess, ...] = ()
    metric: tuple[Metric, ...] = ()
    criterion: Criterion = None

    def prepared(self, cell: str) -> str:
        """The cell after all preprocessing."""
        for name in self.preprocess:
            cell = PREPROCESS[name](cell)
        return cell


class _Evaluation(msgspec.Struct, frozen=True):
    unique_columns: tuple[str, ...]
    required: tuple[str, ...]
    eval_pipeline: dict[str, Rule]


class Task(msgspec.Struct, frozen=True):
    """A line of `tasks.jsonl`, and with it what its evaluation and its gold file say."""

    instance_id: str
    query: str
    language: str
    evaluation: str
    keys: tuple[str, ...] = ()
    rules: dict[str, Rule] = {}
    """By column, in the order of the gold table, keys included."""
    gold: Table = {}

    @property
    def rows(self) -> int:
        """Rows of the gold table."""
        return len(self.gold[self.keys[0]])

    @property
    def size(self) -> str:
        """Its class of sizes."""
        return (
            "up to 12 rows"
            if self.rows <= 12
            else "13 to 40 rows"
            if self.rows <= 40
            else "over 40 rows"
        )


class Response(msgspec.Struct, frozen=True):
    """A line of a file of responses; the first ones to a task are its runs."""

    instance_id: str
    response: str | None
    """A text in which a table is looked for; None where there was none."""
    tokens: dict[str, int] = {}
    """Prompt and completion tokens by role; empty where they are not known."""


def read_tasks(folder: Path) -> list[Task]:
    """The tasks of a folder. Raises `BadConfig` and `BadCorpus`, with the file and what to do."""
    path = folder / "tasks.jsonl"
    tasks = {
        line.instance_id: _whole(line, f"{path}:{at}", folder)
        for at, line in read_jsonl(path, Task, _TASK)
    }
    if not tasks:
        raise BadCorpus(f"{path}: has no tasks; {_TASK}.")
    return [*tasks.values()]


def _whole(task: Task, where: str, folder: Path) -> Task:
    try:
        told = msgspec.json.decode(task.evaluation, type=_Evaluation)
    except msgspec.DecodeError as error:
        raise BadCorpus(f"{where}: evaluation: {error}; {_TASK}.") from None
    rules = {name: Rule() for name in told.unique_columns} | told.eval_pipeline
    if not told.unique_columns or set(rules) != set(told.required):
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
    if missing := [name for name in told.required if not gold.get(name)]:
        raise BadCorpus(
            f"{path}: has no rows under {', '.join(missing)}; add them, as {where} requires them."
        )
    rules = {name: rules[name] for name in told.required}
    gold = {name: gold[name] for name in told.required}
    return msgspec.structs.replace(task, keys=told.unique_columns, rules=rules, gold=gold)


_TYPES: dict[tuple[Metric, ...], str] = {
    ("number_near",): "NUMBER",
    ("date_near",): "DATE",
    ("url_match",): "URL",
}


def columns_of(task: Task) -> list[Column]:
    """The columns that a gateway is asked for: with the type that the only metric tells, and
    text where in doubt.
    """
    return [
        Column(
            name=name, key=name in task.keys, type=f"COLUMN_TYPE_{_TYPES.get(rule.metric, 'TEXT')}"
        )
        for name, rule in task.rules.items()
    ]


def read_responses(path: Path, tasks: Sequence[Task], runs: int) -> dict[str, list[Response]]:
    """The responses of a file by task. Raises `BadCorpus` where a task has fewer than `runs`,
    and `BadConfig`.
    """
    found: dict[str, list[Response]] = {task.instance_id: [] for task in tasks}
    for _, line in read_jsonl(path, Response, RESPONSE):
        found.setdefault(line.instance_id, []).append(line)
    if missing := [task.instance_id for task in tasks if len(found[task.instance_id]) < runs]:
        raise BadCorpus(
            f"{path}: {len(missing):,} tasks have fewer than {runs} responses, {missing[0]} has "
            f"{len(found[missing[0]])}; add them, with null where nothing was answered, "
            "or give fewer --runs."
        )
    return found
