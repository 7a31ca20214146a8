"""Tables that answer WideSearch's tasks, or any in their form, by the benchmark's own rules and by
stricter ones.

Responses come from a file, or from a gateway, which is asked for the tables that the file lacks. Of
several responses to a task, Avg@N is the mean, Max@N the best one, and Pass@N whether any is wholly
right.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing, nullcontext
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
from benchmarks.widesearch.scoring import Judge, RuleSet, Scores, scores_of
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
"""Reasons of a gateway that say something of what was asked: no table came of it, and another
try would be unfair.
"""
PAGE = "report.md"
PICTURE = "report.png"
_METRICS = [name for name in Scores.__struct_fields__ if name != "why"]
_DRAWN = {"success": "#1b7837", "row_f1": "#b2182b", "item_f1": "#2166ac"}
_FOLDS: Mapping[str, Callable[[Sequence[float]], float]] = {"Avg": fmean, "Max": max}
_BAR = 0.27
_NOTE = "Means over tasks, in points of 100, with their 95 % intervals by a bootstrap over tasks."


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    tasks: Annotated[Path, Meta(description="a folder with tasks.jsonl and gold/*.csv")]
    responses: (
        Annotated[Path, Meta(description="JSON lines; with --address, to be made, or added to")]
        | None
    ) = None
    address: Annotated[str, Meta(description="HOST:PORT of a gateway to be asked")] | None = None
    topology: Annotated[TableTopologyName, Meta(description="who finds and writes the tables")] = (
        "wide"
    )
    against: Annotated[Path, Meta(description="other responses, to be compared with")] | None = None
    runs: Annotated[int, Meta(ge=1, description="responses to each task")]
    judge: Annotated[bool, Meta(description="ask distillation.judge of --config")] = False
    no_judge: Annotated[
        bool, Meta(description="what a judge would judge is right where it is equal")
    ] = False
    judge_of: Annotated[Path, Meta(description="names the judge")] | None = msgspec.field(
        name="config", default=None
    )
    out: Annotated[Path, Meta(description="folder of the report")] = Path("widesearch")
    in_flight: Annotated[
        int, Meta(ge=1, description="tables, or responses to be judged, at once")
    ] = 4
    timeout: Annotated[float, Meta(gt=0, description="of a table, in seconds")] = TABLE_S


class ScoredResponse(msgspec.Struct, frozen=True):
    """One response, scored by each set of rules."""

    task: Task
    run: int
    scores: dict[RuleSet, Scores]
    tokens: dict[str, int] = {}

    @property
    def right_cells(self) -> float:
        """About the cells of the gold table that it has, keys included, by strict rules."""
        return self.scores["strict"].item_recall * self.task.rows * len(self.task.rules)


class Figures(msgspec.Struct, frozen=True):
    """The report, and the file in which it stands."""

    page: str
    tables: list[ReportTable]


async def measure(options: Options) -> Figures:
    """Ask, score, and write the report. Raises `RolegateError` and `GatewayError`."""
    if options.judge == options.no_judge or options.judge != bool(options.judge_of):
        raise BadRequest(
            "give --no-judge, or --judge with the --config whose distillation.judge is asked."
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
        task, run, said = asked
        found = said[task.instance_id][run]
        scores = {
            one: await scores_of(task, found.response or "", judge, one)
            for one in get_args(RuleSet)
        }
        return ScoredResponse(task, run, scores, found.tokens)

    opened: AbstractAsyncContextManager[Runtime | None] = nullcontext()
    if options.judge_of:
        opened = open_runtime(
            load_config(options.judge_of), complain, cache=out / "judgements.jsonl"
        )
    async with opened as runtime:
        judge = Judge(runtime.judge.role if runtime and runtime.judge else None)
        if options.judge and judge.role is None:
            raise BadRequest(
                f"{options.judge_of}: has no [distillation.judge]; add it, or give --no-judge."
            )
        every = [(task, run) for task in tasks for run in range(options.runs)]
        scored = await in_flight(
            score, [(*one, responses) for one in every], options.in_flight, "scoring"
        )
        others = await in_flight(
            score, [(*one, compared) for one in every if compared], options.in_flight, "scoring"
        )
    if judge.unreadable:
        complain(
            f"{judge.unreadable:,} replies of the judge could not be read; what they "
            "were about counts as wrong."
        )
    how = (
        "with a judge"
        if options.judge
        else "without a judge: its cells are right where they are equal"
    )
    tables = [*tables_of(scored, options.runs, others), *token_tables(scored)]
    asked = f" by {options.topology}" if options.address else ""
    write_report(
        out, f"WideSearch{asked}: {len(tasks):,} tasks, N = {options.runs}, {how}", tables, scored
    )
    return Figures(str(out / PAGE), tables)


def shown(figures: dict[str, Any]) -> None:
    """Print the page."""
    print(Path(figures["page"]).read_text("utf-8"))


async def _ask(address: str, tasks: Sequence[Task], file: Path, options: Options) -> None:
    """Ask for the responses that the file lacks, and keep them there. Raises `BadRequest` where
    questions failed, and `GatewayError` where no gateway answers.
    """
    failed: list[str] = []

    async def ask(task: Task) -> None:
        found = Response(task.instance_id, None)
        try:
            table = await client.table(
                task.query, columns_of(task), (), options.timeout, topology=options.topology
            )
            found = Response(
                task.instance_id,
                "```markdown\n"
                f"{to_markdown([Column(name) for name in table.columns], table.rows)}```",
                _tokens(table),
            )
        except GatewayError as error:
            if error.connection_broke:
                raise
            if error.reason not in _NO_TABLE:
                complain(f"{task.instance_id}: {error}")
                return failed.append(task.instance_id)
        kept.append(found)

    with closing(JsonlFile(file, Response, RESPONSE)) as kept:
        done = Counter(line.instance_id for line in kept)
        left = [
            task for run in range(options.runs) for task in tasks if done[task.instance_id] <= run
        ]
        async with AsyncClient(address) as client:
            await in_flight(ask, left, options.in_flight, "asking")
    if failed:
        raise BadRequest(
            f"{len(failed):,} of {len(left):,} questions failed; the same command asks them again."
        )


def _tokens(table: Table) -> dict[str, int]:
    """Prompt and completion tokens of all models, by role."""
    spent = Counter[str]()
    for usage in table.message.usage:
        spent[Role.Name(usage.role).removeprefix("ROLE_").lower()] += (
            usage.prompt_tokens + usage.completion_tokens
        )
    return spent


def tables_of(
    scored: Sequence[ScoredResponse], runs: int, others: Sequence[ScoredResponse] = ()
) -> list[ReportTable]:
    """A table for each set of rules and each way to fold the runs of a task: means over tasks, with
    their intervals. With `others`, to the same tasks, one more for each set of rules: how much
    better they are than these.
    """
    nothing: _Group = {}
    folds = [(name, name, fold, nothing) for name, fold in _FOLDS.items()]
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
"""The responses to each task, by its id."""


def _grouped(scored: Sequence[ScoredResponse]) -> dict[str, dict[str, list[ScoredResponse]]]:
    """All tasks, those of each language and those of each size, small ones first."""
    groups: dict[str, dict[str, list[ScoredResponse]]] = {}
    for kind in ("", "language", "size"):
        for one in sorted(scored, key=lambda one: one.task.rows):
            group = groups.setdefault(getattr(one.task, kind, "all"), {})
            group.setdefault(one.task.instance_id, []).append(one)
    return groups


def _line(
    group: str,
    tasks: _Group,
    rules: RuleSet,
    fold: Callable[[Sequence[float]], float],
    less: _Group,
) -> dict[str, ReportValue]:
    line: dict[str, ReportValue] = {"tasks": group, "number": len(tasks)}
    for metric in _METRICS:
        new, old = (
            [fold([getattr(one.scores[rules], metric) for one in each[name]]) for name in tasks]
            for each in (tasks, less or tasks)
        )
        line[metric] = paired_difference(new, old if less else [0.0] * len(new))
    return line


def token_tables(scored: Sequence[ScoredResponse]) -> list[ReportTable]:
    """A table of what responses took, by role, and what a right cell did; none where that is
    known of none.
    """
    known = [one for one in scored if one.tokens]
    roles = sorted({role for one in known for role in one.tokens})
    lines = list[dict[str, ReportValue]]()
    for group, tasks in _grouped(known).items():
        own = [one for each in tasks.values() for one in each]
        spent = Counter[str]()
        right = sum(one.right_cells for one in own)
        for one in own:
            spent.update(one.tokens)
        line: dict[str, ReportValue] = {"tasks": group, "responses": len(own)}
        line |= {role: spent[role] / len(own) for role in roles} | {"all": spent.total() / len(own)}
        lines.append(line | {"of a right cell": spent.total() / right if right else None})
    title = "Tokens of a response, and of a right cell by strict rules, keys included"
    return [ReportTable.of("tokens", title, lines, note="")] if known else []


def write_report(
    folder: Path, title: str, tables: Sequence[ReportTable], scored: Sequence[ScoredResponse]
) -> None:
    """Write the tables as Markdown, with a picture, and the scores of each response as CSV."""
    _draw(folder / PICTURE, title, {table.key: table for table in tables})
    page = [
        f"# {title}",
        f"![Bars are Avg@N, marks Max@N]({PICTURE})",
        *(table.markdown() for table in tables),
    ]
    write_atomically(folder / PAGE, "\n\n".join(page).encode())
    lines: list[Sequence[object]] = [
        ["instance_id", "language", "size", "rows", "run", "rules", *Scores.__struct_fields__]
    ]
    for one in scored:
        known = one.task.instance_id, one.task.language, one.task.size, one.task.rows, one.run
        lines += (
            [*known, rules, *msgspec.structs.astuple(found)] for rules, found in one.scores.items()
        )
    write_atomically(folder / "scores.csv", csv_text(lines).encode())


def _draw(path: Path, title: str, tables: Mapping[str, ReportTable]) -> None:
    from benchmarks.study.pictures import new_figure, saved  # they need matplotlib

    figure = new_figure(11, 4.2)
    for panel, rules in enumerate(get_args(RuleSet), 1):
        average = tables[f"{rules}-Avg"]
        best = tables[f"{rules}-Max"]
        axes = figure.add_subplot(1, 2, panel, title=average.title, ylabel="points")
        for place, (metric, color) in enumerate(_DRAWN.items()):
            column = average.columns.index(metric)
            at = [_BAR * place + group for group in range(len(average.rows))]
            axes.bar(
                at,
                [100 * row[column].mean for row in average.rows],
                _BAR,
                color=color,
                label=metric,
            )
            axes.plot(at, [100 * row[column].mean for row in best.rows], "_", color="black")
        axes.set_xticks(
            [_BAR + group for group in range(len(average.rows))], [row[0] for row in average.rows]
        )
        axes.tick_params(axis="x", labelrotation=30)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    figure.suptitle(title, fontsize=9)
    saved(figure, path)
