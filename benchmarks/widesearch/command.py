"""Score tables on the tasks of WideSearch, or on tasks in its format, by WideSearch's own rules and
by stricter rules.

Responses are read from a file. Responses that are not in the file yet are requested and added: with
--address, from a gateway; with --topology wide_written or wide_single, from the models of --config.
Each task gets N responses (--runs N). Avg@N is the mean of their scores, and Max@N the best score.
Max@N of the metric success is therefore the share of tasks with a fully right response (Pass@N).
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing, nullcontext
from functools import partial
from importlib.metadata import version
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta
from rolegate.client import AsyncClient, GatewayError
from rolegate.client.text import csv_text
from rolegate.v1 import table_service_pb2 as pb
from rolegate.v1.usage_pb2 import Role

from benchmarks import harness
from benchmarks.baselines.written_tables import Writing, writing, written_table
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
from executor_sft.command import Count
from executor_sft.evaluate import paired_difference
from executor_sft.jsonl import JsonlFile
from executor_sft.runtime import Runtime, open_runtime, spread
from router.errors import BadRequest, UpstreamError
from router.frozen import Frozen
from router.table.table_text import to_markdown
from router.trace.call import totals
from router.trace.table import Column
from serving.config.file import load_config
from serving.dependencies import need
from serving.files import write_atomically
from serving.terminal import complain

_NO_TABLE = {"MALFORMED_OUTPUT", "OUT_OF_TIME", "BUDGET_EXHAUSTED"}
"""If the gateway's error has one of these reasons, it counts as a response without a table. The
request is not repeated, because the task would then have more attempts than other tasks.
"""
_FENCED = "```markdown\n{}```"
PAGE = "report.md"
_METRICS = [name for name in TableScores.__struct_fields__ if name != "why"]
_FOLDS: Mapping[str, Callable[[Sequence[float]], float]] = {"Avg": fmean, "Max": max}
"""Ways to combine the scores of all responses to a task into one score: functions by name."""
_NOTE = (
    "Means over tasks, in points of 100, with 95 % intervals from a bootstrap over groups of tasks "
    "that share entities (`group` in tasks.jsonl; a task without a group counts as one group)."
)
_Asked = tuple[Task, int]
"""A task, and the number of the response to it, from 0."""
_LOCKED = "dateparser==1.2.1 pandas==2.3.0"
"""Versions in WideSearch's lock file (2025-08-12). Other versions parse some texts differently."""


class Options(harness.Options, kw_only=True):
    """Options of the benchmark."""

    tasks: Path
    """folder with the tasks: tasks.jsonl, and the right tables gold/*.csv"""
    responses: Path | None = None
    """file of responses (JSON lines). Missing responses are requested, and appended to this file
    (default: a file in the folder --out)
    """
    address: str | None = None
    """address HOST:PORT of a gateway from which to request missing responses (default: request
    none)
    """
    topology: Literal["wide", Writing] = "wide"
    """how missing responses are made: wide (the gateway at --address fills the table cell by cell),
    wide_written (executors search, and the answerer writes the table), or wide_single (one model
    searches and writes the table). The last two need --config
    """
    against: Path | None = None
    """second file of responses to the same tasks. The report then also has the differences between
    the scores of both files (default: no comparison)
    """
    runs: Count
    """number of responses to each task"""
    judge: bool = False
    """let a model, [distillation.judge] of --config, decide whether cells and column names mean the
    same as those of the right table. Either this option or --no-judge is needed
    """
    no_judge: bool = False
    """use no judge: cells and column names are right only if their texts are equal to those of the
    right table
    """
    models: Path | None = msgspec.field(name="config", default=None)
    """config file with the judge (for --judge) and the models (for --topology wide_written or
    wide_single)
    """
    out: Path = Path("widesearch")
    """folder to write the report to"""
    in_flight: Count = 4
    """number of tables to fill, or of responses to score, at the same time"""
    timeout: Annotated[float, Meta(gt=0)] = 1800.0
    """max seconds to fill a table"""
    ray: str | None = None
    """Ray cluster to work on: local (this machine's cores), or HOST:PORT of the cluster's head;
    only with --topology wide_written or wide_single (default: work in this process)
    """


class ScoredResponse(Frozen):
    """A response with its scores by both sets of rules."""

    task: Task
    run: int
    """Number of the response among all responses to the task, from 0."""
    scores: dict[RuleSet, TableScores]
    tokens: dict[str, int] = {}
    """Number of prompt and completion tokens of each role; empty if unknown."""

    @property
    def right_cells(self) -> float:
        """Return the number of right cells by strict rules, including key columns. It is
        approximate, because it is computed from the recall.
        """
        return self.scores["strict"].item_recall * self.task.rows * len(self.task.rules)


class Figures(Frozen):
    """Tables of the report, and its path."""

    page: str
    """Path of the Markdown file."""
    tables: list[ReportTable]


async def measure(options: Options) -> Figures:
    """Request missing responses, score all responses, and write the report. Raises `RolegateError`
    for bad options or files, and `GatewayError` if the gateway cannot be reached.
    """
    written = options.topology != "wide"
    if options.judge == options.no_judge:
        raise BadRequest("give exactly one of --judge and --no-judge.")
    if (options.judge or written) != bool(options.models):
        raise BadRequest(
            f"--config: {'leave it out' if options.models else 'give one'}; it names the models "
            "for --judge and for the topologies wide_written and wide_single, and only for these."
        )
    if written and options.address:
        raise BadRequest(
            f"--topology {options.topology}: works without a gateway; leave out --address."
        )
    if options.ray and not written:
        raise BadRequest(
            "--ray: works only with the topologies wide_written and wide_single; leave --ray out."
        )
    if not (options.address or options.responses or written):
        raise BadRequest(
            "there are no responses to score; give --responses FILE, or --address HOST:PORT."
        )
    need("widesearch", "dateparser", "pandas")
    tasks = read_tasks(options.tasks)
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    file = options.responses or out / f"responses.{options.topology}.jsonl"
    compared = read_responses(options.against, tasks, options.runs) if options.against else {}

    async def score(by_task: Mapping[str, Sequence[Response]], asked: _Asked) -> ScoredResponse:
        task, run = asked
        response = by_task[task.instance_id][run]
        scores = {
            rules: await scores_of(task, response.response or "", judge, rules)
            for rules in get_args(RuleSet)
        }
        return ScoredResponse(task, run, scores, response.tokens)

    opened: AbstractAsyncContextManager[Runtime | None] = nullcontext()
    if options.models:
        opened = open_runtime(load_config(options.models), complain, cache=out / "calls.jsonl")
    async with opened as runtime:
        if options.address:
            async with AsyncClient(options.address) as client:
                await _ask(partial(_from_gateway, client, options.timeout), tasks, file, options)
        elif runtime and options.topology != "wide":
            # Takes a runtime, and returns the function that requests a response
            work = partial(partial, _from_models, options.topology, options.timeout)
            await _ask(spread(runtime, work, options.ray), tasks, file, options)
        responses = read_responses(file, tasks, options.runs)
        judge = CellJudge(runtime.judge.role if runtime and runtime.judge else None)
        if options.judge and judge.role is None:
            raise BadRequest(
                f"{options.models}: has no [distillation.judge]; add it, or give --no-judge."
            )
        runs = list(product(tasks, range(options.runs)))
        scored = await in_flight(partial(score, responses), runs, options.in_flight, "scoring")
        others = await in_flight(
            partial(score, compared), runs if compared else [], options.in_flight, "scoring"
        )
    if judge.unreadable:
        complain(
            f"{judge.unreadable:,} replies of the judge could not be parsed; their cells count as "
            "wrong."
        )
    how = "with a judge" if options.judge else "without a judge: equal cells are right"
    tables = [*tables_of(scored, options.runs, others), *token_tables(scored)]
    asked = f" by {options.topology}" if options.address or written else ""
    notes = [_versions()]
    if judge.undecided:
        notes.append(
            f"{judge.undecided:,} cells differ from the gold cell, but a judge might accept them; "
            "they count as wrong, for each set of rules."
        )
    write_report(
        out,
        f"WideSearch{asked}: {len(tasks):,} tasks, N = {options.runs}, {how}",
        tables,
        scored,
        notes,
    )
    return Figures(str(out / PAGE), tables)


def _versions() -> str:
    """Return a text that names the installed versions of dateparser and pandas, on which scores
    depend. It warns if WideSearch's lock file has other versions.
    """
    installed = f"dateparser=={version('dateparser')} pandas=={version('pandas')}"
    text = f"Read with {installed}."
    if installed != _LOCKED:
        text += (
            " Other versions than those of WideSearch's lock file read some texts differently, such"
            f" as Q2 2021 as another date; to compare, install {_LOCKED}."
        )
    return text


def shown(figures: dict[str, Any]) -> None:
    """Print the report."""
    print(Path(figures["page"]).read_text("utf-8"))


async def _ask(
    ask: Callable[[_Asked], Awaitable[Response]],
    tasks: Sequence[Task],
    file: Path,
    options: Options,
) -> None:
    """Request the responses that `file` does not have yet, and append them to the file.

    `ask`: returns a response to a task. Raises `BadRequest` if tasks failed, and `GatewayError` if
    the gateway cannot be reached.
    """
    failed = list[str]()

    async def attempt(asked: _Asked) -> None:
        task, _ = asked
        try:
            kept.append(await ask(asked))
        except (GatewayError, UpstreamError) as error:
            if isinstance(error, GatewayError) and error.connection_broke:
                raise
            complain(f"{task.instance_id}: {error}")
            failed.append(task.instance_id)

    with closing(JsonlFile(file, Response, RESPONSE)) as kept:
        done = Counter(line.instance_id for line in kept)
        left = [
            (task, run)
            for run in range(options.runs)
            for task in tasks
            if done[task.instance_id] <= run
        ]
        await in_flight(attempt, left, options.in_flight, "asking")
    if failed:
        raise BadRequest(
            f"{len(failed):,} of {len(left):,} tables failed; the same command requests only "
            "these again."
        )


async def _from_gateway(
    client: AsyncClient,
    timeout_s: float,
    asked: _Asked,
) -> Response:
    """Return a gateway's response to a task. The response has no table if the gateway could not
    fill one. The gateway's report cache is not used, because it would lower the token counts.
    """
    task, _ = asked
    columns = [
        pb.Column(name=column.name, key=column.key, type=f"COLUMN_TYPE_{column.type.upper()}")
        for column in columns_of(task)
    ]
    try:
        table = await client.table(task.query, columns, (), timeout_s, no_cache=True)
    except GatewayError as error:
        if error.reason in _NO_TABLE:
            return Response(task.instance_id, None)
        raise
    text = to_markdown([Column(name) for name in table.columns], table.rows)
    tokens = Counter[str]()
    for usage in table.message.usage:
        role = Role.Name(usage.role).removeprefix("ROLE_").lower()
        tokens[role] += usage.prompt_tokens + usage.completion_tokens
    return Response(task.instance_id, _FENCED.format(text), tokens)


async def _from_models(
    topology: Writing,
    timeout_s: float,
    runtime: Runtime,
    asked: _Asked,
) -> Response:
    """Let models write a whole table, and return it as a response to the task. The number of the
    response is the models' seed.
    """
    task, run = asked
    loop = writing(runtime.sampled(run), topology)
    context = runtime.context(timeout_s)
    text = await written_table(loop, task.query, columns_of(task), context)
    tokens = Counter[str]()
    for total in totals(context.ledger.calls):
        tokens[total.role] += total.prompt_tokens + total.completion_tokens
    return Response(task.instance_id, text and _FENCED.format(text), tokens)


def tables_of(
    scored: Sequence[ScoredResponse], runs: int, others: Sequence[ScoredResponse]
) -> list[ReportTable]:
    """Return the report's tables of scores: for both sets of rules (official and strict), one with
    Avg@N and one with Max@N. The tables have means over tasks, with confidence intervals.

    `runs`: number of responses to each task. `others`: responses of `--against`; if not empty,
    further tables have the differences between both.
    """
    none: _Group = {}
    folds = [(name, name, fold, none) for name, fold in _FOLDS.items()]
    if others:
        folds.append(("Avg", "difference", fmean, _grouped(others)["all"]))
    return [
        ReportTable.of(
            f"{rules}-{key}",
            f"{rules.capitalize()}, {name}@{runs}" + ", minus that of --against" * bool(old),
            [_line(group, tasks, rules, fold, old) for group, tasks in _grouped(scored).items()],
            note=_NOTE,
        )
        for rules in get_args(RuleSet)
        for name, key, fold, old in folds
    ]


_Group = Mapping[str, Sequence[ScoredResponse]]
"""Responses to tasks, by task id."""


def _grouped(scored: Sequence[ScoredResponse]) -> dict[str, dict[str, list[ScoredResponse]]]:
    """Return groups of responses by name: all tasks, the tasks of each language, and the tasks of
    each size, from small to large. Each group maps task ids to responses.
    """
    groups = dict[str, dict[str, list[ScoredResponse]]]()
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
    """Return the row of a group of tasks, with the mean of each metric over the tasks. `fold`:
    combines the scores of all responses to a task. `less`: other responses to these tasks, whose
    scores are subtracted; empty to subtract nothing.
    """
    line: dict[str, ReportValue] = {"tasks": group, "number": len(tasks)}
    groups = [responses[0].task.group or name for name, responses in tasks.items()]
    for metric in _METRICS:
        new = [_folded(responses, rules, metric, fold) for responses in tasks.values()]
        old = [0.0] * len(new)
        if less:
            old = [_folded(less[name], rules, metric, fold) for name in tasks]
        line[metric] = paired_difference(new, old, groups=groups)
    return line


def _folded(
    responses: Sequence[ScoredResponse],
    rules: RuleSet,
    metric: str,
    fold: Callable[[Sequence[float]], float],
) -> float:
    return fold([getattr(response.scores[rules], metric) for response in responses])


def token_tables(scored: Sequence[ScoredResponse]) -> list[ReportTable]:
    """Return one table: the number of tokens of each role per response, and of all roles per right
    cell. Return no table if no response has token counts.
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
    notes: Sequence[str],
) -> None:
    """Write the report to `folder`: the tables and `notes` as Markdown, and the scores of each
    response as CSV.
    """
    page = [f"# {title}", *(table.markdown() for table in tables), *notes]
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
