"""Read tasks in WideSearch's format with their gold tables, and responses to the tasks."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.widesearch.cell_rules import PREPROCESS, Criterion, Metric, Preprocess
from benchmarks.widesearch.table_text import Table, Unreadable, norm_column, read_csv
from executor_sft.jsonl import numbered_jsonl, read_jsonl
from router.errors import JSON_ERRORS, BadCorpus, explained
from router.frozen import Frozen
from router.trace.table import Column, ColumnType

RESPONSE = 'write {"instance_id": …, "response": …} on each line'
_TASK = "a task has instance_id, query, language and evaluation, which is JSON in a string"


class Rule(Frozen):
    """Rule for comparing the cells of a column: preprocessing steps, then metrics."""

    preprocess: tuple[Preprocess, ...] = ()
    metric: tuple[Metric, ...] = ()
    criterion: Criterion = None

    def prepared(self, cell: str) -> str:
        """Return the text of a cell after all preprocessing steps."""
        for name in self.preprocess:
            cell = PREPROCESS[name](cell)
        return cell


class _Evaluation(Frozen):
    """Content of a task's `evaluation`, which is JSON in a string."""

    unique_columns: tuple[str, ...]
    required: tuple[str, ...]
    eval_pipeline: dict[str, Rule]


class Task(Frozen):
    """A line of `tasks.jsonl`, with its parsed evaluation and its gold table."""

    instance_id: str
    query: str
    language: str
    evaluation: str
    keys: tuple[str, ...] = ()
    """Names of the key columns."""
    rules: dict[str, Rule] = {}
    """Rule of each column, key columns included, in the order of the gold table."""
    gold: Table = {}
    group: str = ""
    """Name of the group of the task. Tasks of a group ask about the same entities. Empty for no
    group, as in WideSearch's own tasks.
    """

    @property
    def rows(self) -> int:
        """Return the number of rows of the gold table."""
        return len(self.gold[self.keys[0]])

    @property
    def size(self) -> str:
        """Return the name of the task's size, by the number of its rows."""
        if self.rows <= 12:
            return "up to 12 rows"
        return "13 to 40 rows" if self.rows <= 40 else "over 40 rows"


class Response(Frozen):
    """A line of a file of responses. If N responses to each task are scored, the first N lines with
    the task's id are used.
    """

    instance_id: str
    """Id of the task."""
    response: str | None
    """Text that contains a table; None if there was no answer."""
    tokens: dict[str, int] = {}
    """Number of prompt and completion tokens of each role; empty if unknown."""


def read_tasks(folder: Path) -> list[Task]:
    """Return the tasks in a folder. Raises `BadConfig` if a file cannot be read, and `BadCorpus` if
    a task or its gold table is invalid.
    """
    path = folder / "tasks.jsonl"
    tasks = {
        line.instance_id: _with_gold(line, f"{path}:{number}", folder)
        for number, line in numbered_jsonl(path, Task, _TASK)
    }
    if not tasks:
        raise BadCorpus(f"{path}: has no tasks; {_TASK}.")
    return [*tasks.values()]


def _with_gold(task: Task, where: str, folder: Path) -> Task:
    """Return the task with its parsed evaluation and its gold table. `where`: place of the task,
    for error messages. Raises `BadCorpus` if the evaluation or the gold table is invalid.
    """
    try:
        evaluation = msgspec.json.decode(task.evaluation, type=_Evaluation)
    except JSON_ERRORS as error:
        raise BadCorpus(f"{where}: evaluation: {explained(error)}; {_TASK}.") from None
    rules = {name: Rule() for name in evaluation.unique_columns} | evaluation.eval_pipeline
    if not evaluation.unique_columns:
        raise BadCorpus(f"{where}: evaluation.unique_columns is empty; name the key columns in it.")
    if unequal := rules.keys() ^ evaluation.required:
        raise BadCorpus(
            f"{where}: evaluation: {', '.join(sorted(unequal))} must be in required, and also in "
            "unique_columns or eval_pipeline; or in none of the three."
        )
    path = folder / "gold" / f"{task.instance_id}.csv"
    try:
        gold = {
            norm_column(name): cells
            for name, cells in read_csv(path.read_text("utf-8-sig"), ",").items()
        }
    except (OSError, UnicodeError, Unreadable) as error:
        raise BadCorpus(
            f"{path}: cannot be read as CSV ({error}); write the gold table of {where} to it."
        ) from None
    if missing := [name for name in evaluation.required if not gold.get(name)]:
        raise BadCorpus(
            f"{path}: the columns {', '.join(missing)} are missing or empty; add them with their "
            f"values, because {where} requires them."
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
    """Return the columns of the task, as they are requested from a gateway. A column has the type
    number, date or url if its only metric compares such values. All other columns are text.
    """
    return [
        Column(name, _TYPES.get(rule.metric, "text"), name in task.keys)
        for name, rule in task.rules.items()
    ]


def read_responses(path: Path, tasks: Sequence[Task], runs: int) -> dict[str, list[Response]]:
    """Return the responses in the file `path`, by task id. Raises `BadConfig` if the file is
    invalid, and `BadCorpus` if a task has fewer than `runs` responses.
    """
    responses: dict[str, list[Response]] = {task.instance_id: [] for task in tasks}
    for line in read_jsonl(path, Response, RESPONSE):
        responses.setdefault(line.instance_id, []).append(line)
    if missing := [task.instance_id for task in tasks if len(responses[task.instance_id]) < runs]:
        raise BadCorpus(
            f"{path}: tasks with fewer than {runs} responses: {len(missing):,}, for example "
            f"{missing[0]}, which has {len(responses[missing[0]])}; add responses, with null for "
            "missing answers, or lower --runs."
        )
    return responses
