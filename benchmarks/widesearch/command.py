"""Scores of tables on WideSearch tasks, or tasks in their format, by the benchmark's own rules and
by stricter ones.

Responses come from a file; with --address, a gateway is asked for those that the file lacks. Over N
responses to a task, Avg@N is the mean, Max@N the best score, and Pass@N whether any is fully right.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing, nullcontext
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta
from rolegate.client import AsyncClient, GatewayError, Table
from rolegate.client.requests import TABLE_S, TableTopologyName
from rolegate.client.text import csv_text
from rolegate.v1.usage_pb2 import Role

from benchmarks import harness
from benchmarks.load import in_flight
from benchmarks.study.report_table import ReportTable, ReportValue
from benchmarks.widesearch.scoring import CellJudge, RuleSet, TableScores, scores_of
from benchmarks.widesearch.tasks import (
    RESPONSE,
    Response,
    Task,
    columns_of,
    read_responses,
    read_tasks,
)
from executor_sft.evaluate import paired_difference
from executor_sft.jsonl import JsonlFile
from executor_sft.runtime import Runtime, open_runtime
from router.errors import BadRequest
from router.table.table_text import to_markdown
from router.trace.table import Column
from serving.config.file import load_config
from serving.dependencies import need
from serving.files import write_atomically
from serving.terminal import complain

_NO_TABLE = {"MALFORMED_OUTPUT", "OUT_OF_TIME", "BUDGET_EXHAUSTED"}
"""Reasons of gateway errors that count as a response without a table; a retry would be unfair."""
PAGE = "report.md"
PICTURE = "report.png"
_METRICS = [name for name in TableScores.__struct_fields__ if name != "why"]
_DRAWN = {"success": "#1b7837", "row_f1": "#b2182b", "item_f1": "#2166ac"}
_FOLDS: Mapping[str, Callable[[Sequence[float]], float]] = {"Avg": fmean, "Max": max}
_BAR_WIDTH = 0.27
_NOTE = "Means over tasks, in points of 100, with 95 % intervals by a bootstrap over tasks."


class Options(harness.Options, frozen=True, kw_only=True):
    """Options of the benchmark."""

    tasks: Annotated[Path, Meta(description="folder with tasks.jsonl and gold/*.csv")]
    responses: (
        Annotated[Path, Meta(description="file of responses (JSON lines); --address adds to it")]
        | None
    ) = None
    address: Annotated[str, Meta(description="HOST:PORT of a gateway to ask")] | None = None
    topology: Annotated[TableTopologyName, Meta(description="topology of the tables")] = "wide"
    against: Annotated[Path, Meta(description="other responses to compare with")] | None = None
    runs: Annotated[int, Meta(ge=1, description="responses per task")]
    judge: Annotated[bool, Meta(description="ask distillation.judge of --config")] = False
    no_judge: Annotated[bool, Meta(description="compare by equality what a judge would judge")] = (
        False
    )
    judge_of: Annotated[Path, Meta(description="config of the judge")] | None = msgspec.field(
        name="config", default=None
    )
    out: Annotated[Path, Meta(description="folder of the report")] = Path("widesearch")
    in_flight: Annotated[int, Meta(ge=1, description="concurrent tables or judged responses")] = 4
    timeout: Annotated[float, Meta(gt=0, description="max seconds per table")] = TABLE_S


class ScoredResponse(msgspec.Struct, frozen=True):
    """Response with its scores by each set of rules."""

    task: Task
    run: int
    scores: dict[RuleSet, TableScores]
    tokens: dict[str, int] = {}

    @property
    def right_cells(self) -> float:
        """Return the approximate number of right cells by strict rules, keys included."""
        return self.scores["strict"].item_recall * self.task.rows * len(self.task.rules)


class Figures(msgspec.Struct, frozen=True):
    """Tables of the report, and its file."""

    page: str
    tables: list[ReportTable]


async def measure(options: Options) -> Figures:
    """Ask, score, and write the report. Raises `RolegateError` and `GatewayError`."""
    if options.judge == options.no_judge or options.judge != bool(options.judge_of):
        raise BadRequest(
            "give --no-judge, or --judge with --config, whose distillation.judge is asked."
        )
    if not (options.address or options.responses):
        raise BadRequest("nothing to score; give --responses FILE, or --address HOST:PORT.")
    need("widesearch", "dateparser", "matplotlib", "pandas")
    tasks = read_tasks(options.tasks)
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    file = options.responses or out / f"responses.{options.topology}.jsonl"
    if options.address:
        await _ask(options.address, tasks, file, options)
    responses = read_responses(file, tasks, options.runs)
    compared = read_responses(options.against, tasks, options.runs) if options.against else {}

    async def score(asked: tuple[Task, int, Mapping[str, Sequence[Response]]]) -> ScoredResponse:
        task, run, by_task = asked
        response = by_task[task.instance_id][run]
        scores = {
            rules: await scores_of(task, response.response or "", judge, rules)
            for rules in get_args(RuleSet)
        }
        return ScoredResponse(task, run, scores, response.tokens)

    opened: AbstractAsyncContextManager[Runtime | None] = nullcontext()
    if options.judge_of:
        opened = open_runtime(
            load_config(options.judge_of), complain, cache=out / "judgements.jsonl"
        )
    async with opened as runtime:
        judge = CellJudge(runtime.judge.role if runtime and runtime.judge else None)
        if options.judge and judge.role is None:
            raise BadRequest(
                f"{options.judge_of}: has no [distillation.judge]; add it, or give --no-judge."
            )
        runs = list(product(tasks, range(options.runs)))
        scored = await in_flight(
            score, [(*run, responses) for run in runs], options.in_flight, "scoring"
        )
        others = await in_flight(
            score, [(*run, compared) for run in runs if compared], options.in_flight, "scoring"
        )
    if judge.unreadable:
        complain(
            f"{judge.unreadable:,} replies of the judge could not be read; "
            "their cells count as wrong."
        )
    how = "with a judge" if options.judge else "without a judge: equal cells are right"
    tables = [*tables_of(scored, options.runs, others), *token_tables(scored)]
    asked = f" by {options.topology}" if options.address else ""
    write_report(
        out, f"WideSearch{asked}: {len(tasks):,} tasks, N = {options.runs}, {how}", tables, scored
    )
    return Figures(str(out / PAGE), tables)


def shown(figures: dict[str, Any]) -> None:
    """Print the page."""
    print(Path(figures["page"]).read_text("utf-8"))


async def _ask(
    address: str,
    tasks: Sequence[Task],
    file: Path,
    options: Options,
) -> None:
    """Ask for the responses that the file lacks, and append them. Raises `BadRequest` if questions
    failed, and `GatewayError` if no gateway answers.
    """
    failed: list[str] = []

    async def ask(task: Task) -> None:
        try:
            table = await client.table(
                task.query, columns_of(task), (), options.timeout, topology=options.topology
            )
        except GatewayError as error:
            if error.connection_broke:
                raise
            if error.reason not in _NO_TABLE:
                complain(f"{task.instance_id}: {error}")
                failed.append(task.instance_id)
                return
            kept.append(Response(task.instance_id, None))
        else:
            text = to_markdown([Column(name) for name in table.columns], table.rows)
            kept.append(Response(task.instance_id, f"```markdown\n{text}```", _tokens(table)))

    with closing(JsonlFile(file, Response, RESPONSE)) as kept:
        done = Counter(line.instance_id for line in kept)
        left = [
            task for run in range(options.runs) for task in tasks if done[task.instance_id] <= run
        ]
        async with AsyncClient(address) as client:
            await in_flight(ask, left, options.in_flight, "asking")
    if failed:
        raise BadRequest(
            f"{len(failed):,} of {len(left):,} questions failed; "
            "run the same command to ask them again."
        )


def _tokens(table: Table) -> dict[str, int]:
    """Return the prompt and completion tokens of all models, by role."""
    spent = Counter[str]()
    for usage in table.message.usage:
        spent[Role.Name(usage.role).removeprefix("ROLE_").lower()] += (
            usage.prompt_tokens + usage.completion_tokens
        )
    return spent


def tables_of(
    scored: Sequence[ScoredResponse], runs: int, others: Sequence[ScoredResponse] = ()
) -> list[ReportTable]:
    """Return a table for each set of rules and each fold over the runs of a task, with means over
    tasks and their intervals. With `others`, responses to the same tasks, add a table for each set
    of rules with the differences to their scores.
    """
    none: _Group = {}
    folds = [(name, name, fold, none) for name, fold in _FOLDS.items()]
    if others:
        folds.append(("Avg", "difference", fmean, _grouped(others)["all"]))
    return [
        ReportTable.of(
            f"{rules}-{key}",
            f"{rules.capitalize()}, {name}@{runs}" + ", less that of the others" * bool(old),
            [_line(group, tasks, rules, fold, old) for group, tasks in _grouped(scored).items()],
            note=_NOTE,
        )
        for rules in get_args(RuleSet)
        for name, key, fold, old in folds
    ]


_Group = Mapping[str, Sequence[ScoredResponse]]
"""Responses to tasks, by task id."""


def _grouped(scored: Sequence[ScoredResponse]) -> dict[str, dict[str, list[ScoredResponse]]]:
    """Group responses: all tasks, tasks by language, and tasks by size, from small to large."""
    groups: dict[str, dict[str, list[ScoredResponse]]] = {}
    for kind in ("", "language", "size"):
        for response in sorted(scored, key=lambda response: response.task.rows):
            group = groups.setdefault(getattr(response.task, kind, "all"), {})
            group.setdefault(response.task.instance_id, []).append(response)
    return groups


def _line(
    group: str,
    tasks: _Group,
    rules: RuleSet,
    fold: Callable[[Sequence[float]], float],
    less: _Group,
) -> dict[str, ReportValue]:
    """Return the means of a group of tasks; with `less`, of the differences to its scores."""
    line: dict[str, ReportValue] = {"tasks": group, "number": len(tasks)}
    for metric in _METRICS:
        new = [_folded(responses, rules, metric, fold) for responses in tasks.values()]
        old = [0.0] * len(new)
        if less:
            old = [_folded(less[name], rules, metric, fold) for name in tasks]
        line[metric] = paired_difference(new, old)
    return line


def _folded(
    responses: Sequence[ScoredResponse],
    rules: RuleSet,
    metric: str,
    fold: Callable[[Sequence[float]], float],
) -> float:
    return fold([getattr(response.scores[rules], metric) for response in responses])


def token_tables(scored: Sequence[ScoredResponse]) -> list[ReportTable]:
    """Return a table of tokens per response, by role, and per right cell; none if all tokens are
    unknown.
    """
    known = [response for response in scored if response.tokens]
    roles = sorted(set[str]().union(*(response.tokens for response in known)))
    lines = list[dict[str, ReportValue]]()
    for group, tasks in _grouped(known).items():
        own = list(chain.from_iterable(tasks.values()))
        right = sum(response.right_cells for response in own)
        spent = Counter[str]()
        for response in own:
            spent.update(response.tokens)
        line: dict[str, ReportValue] = {"tasks": group, "responses": len(own)}
        line |= {role: spent[role] / len(own) for role in roles} | {"all": spent.total() / len(own)}
        lines.append(line | {"of a right cell": spent.total() / right if right else None})
    title = "Tokens of a response, and of a right cell by strict rules, keys included"
    return [ReportTable.of("tokens", title, lines, note="")] if known else []


def write_report(
    folder: Path,
    title: str,
    tables: Sequence[ReportTable],
    scored: Sequence[ScoredResponse],
) -> None:
    """Write the tables as Markdown, a figure, and the scores of each response as CSV."""
    _draw(folder / PICTURE, title, {table.key: table for table in tables})
    page = [
        f"# {title}",
        f"![Bars are Avg@N, marks Max@N]({PICTURE})",
        *(table.markdown() for table in tables),
    ]
    write_atomically(folder / PAGE, "\n\n".join(page).encode())
    lines: list[Sequence[object]] = [
        ["instance_id", "language", "size", "rows", "run", "rules", *TableScores.__struct_fields__]
    ]
    for response in scored:
        task = response.task
        known = task.instance_id, task.language, task.size, task.rows, response.run
        lines += (
            [*known, rules, *msgspec.structs.astuple(scores)]
            for rules, scores in response.scores.items()
        )
    write_atomically(folder / "scores.csv", csv_text(lines).encode())


def _draw(path: Path, title: str, tables: Mapping[str, ReportTable]) -> None:
    from benchmarks.study.pictures import new_figure, saved  # needs matplotlib

    figure = new_figure(11, 4.2)
    for panel, rules in enumerate(get_args(RuleSet), 1):
        average = tables[f"{rules}-Avg"]
        best = tables[f"{rules}-Max"]
        axes = figure.add_subplot(1, 2, panel, title=average.title, ylabel="points")
        for place, (metric, color) in enumerate(_DRAWN.items()):
            column = average.columns.index(metric)
            at = [_BAR_WIDTH * place + group for group in range(len(average.rows))]
            axes.bar(
                at,
                [100 * row[column].mean for row in average.rows],
                _BAR_WIDTH,
                color=color,
                label=metric,
            )
            axes.plot(at, [100 * row[column].mean for row in best.rows], "_", color="black")
        axes.set_xticks(
            [_BAR_WIDTH + group for group in range(len(average.rows))],
            [row[0] for row in average.rows],
        )
        axes.tick_params(axis="x", labelrotation=30)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    figure.suptitle(title, fontsize=9)
    saved(figure, path)
