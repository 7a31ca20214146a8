"""Tables that answer WideSearch's tasks, or any in their form, scored as WideSearch's own evaluator does, and strictly.

Responses come from a file, or from a gateway, which is asked for those that the file lacks. Of several responses to each
task, Avg@N is the mean, Max@N the best one, and Pass@N whether any is wholly right.
"""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta
from rolegate.client import AsyncClient, GatewayError

from benchmarks import harness
from benchmarks.load import in_flight
from benchmarks.study.report import ReportTable
from benchmarks.widesearch.judge import opened_judge
from benchmarks.widesearch.report import PAGE, Row, tables_of, write_report
from benchmarks.widesearch.scoring import RuleSet, scores_of
from benchmarks.widesearch.tasks import RESPONSE, Response, Task, by_run, read_responses, read_tasks
from executor_sft.jsonl import JsonlFile
from router.errors import BadRequest
from serving.dependencies import need
from serving.terminal import complain

_NO_TABLE = {"MALFORMED_OUTPUT", "OUT_OF_TIME", "BUDGET_EXHAUSTED"}
"""Reasons of a gateway that say something of what was asked: no table came of it, and another try would be unfair."""


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    tasks: Annotated[Path, Meta(description="a folder with tasks.jsonl and gold/*.csv")]
    responses: Annotated[Path, Meta(description="JSON lines; with --address, to be made, or added to")] | None = None
    address: Annotated[str, Meta(description="HOST:PORT of a gateway to be asked")] | None = None
    runs: Annotated[int, Meta(ge=1, description="responses to each task")]
    judge: Annotated[bool, Meta(description="ask distillation.judge of --config")] = False
    no_judge: Annotated[bool, Meta(description="what a judge would judge is right where it is equal")] = False
    judge_config: Annotated[Path, Meta(description="names the judge")] | None = msgspec.field(
        name="config", default=None
    )
    out: Annotated[Path, Meta(description="folder of the report")] = Path("widesearch")
    in_flight: Annotated[int, Meta(ge=1, description="questions, or responses to be judged, at once")] = 4
    timeout: Annotated[float, Meta(gt=0, description="of a question, in seconds")] = 600.0


class Figures(msgspec.Struct, frozen=True):
    """The report."""

    title: str
    page: str
    """The file in which it stands."""
    unreadable_responses: dict[RuleSet, int]
    """Those without a table that could be scored."""
    unreadable_verdicts: int
    """Replies of the judge."""
    tables: list[ReportTable]


async def measure(options: Options) -> Figures:
    """Ask, score, and write the report. Raises `RolegateError` and `GatewayError`."""
    if options.judge == options.no_judge or options.judge != bool(options.judge_config):
        raise BadRequest("give --no-judge, or --judge with the --config whose distillation.judge is asked.")
    if not (options.address or options.responses):
        raise BadRequest("nothing to score; give --responses FILE, or --address HOST:PORT.")
    need("widesearch", "dateparser", "matplotlib")
    tasks, out = read_tasks(options.tasks), options.out
    out.mkdir(parents=True, exist_ok=True)
    file = options.responses or out / "responses.jsonl"
    if options.address:
        await _ask(options.address, tasks, file, options)
    responses = read_responses(file, tasks, options.runs)
    async with opened_judge(options.judge_config, out / "judgements.jsonl") as judge:

        async def score(item: tuple[Task, int]) -> Row:
            task, run = item
            text = responses[task.instance_id][run]
            return Row(task, run, {rules: await scores_of(task, text, judge, rules) for rules in get_args(RuleSet)})

        asked = [(task, run) for task in tasks for run in range(options.runs)]
        rows = await in_flight(score, asked, options.in_flight, "scoring")
    how = "with a judge" if options.judge else "without a judge: its cells by equality, once normalised"
    title = f"WideSearch: {len(tasks):,} tasks, {options.runs} runs, {how}"
    unreadable = {rules: sum(bool(row.scores[rules].why) for row in rows) for rules in get_args(RuleSet)}
    tables = tables_of(rows, options.runs)
    lead = ", ".join(f"{count:,} by {rules} rules" for rules, count in unreadable.items())
    lead = f"Without a table that could be scored: {lead}. Replies of the judge that say nothing: {judge.unreadable:,}."
    write_report(out, title, lead, tables, rows)
    return Figures(title, str(out / PAGE), unreadable, judge.unreadable, tables)


def shown(figures: dict[str, Any]) -> None:
    """Print the page."""
    print(Path(figures["page"]).read_text("utf-8"))


async def _table_of(client: AsyncClient, task: Task, timeout_s: float) -> str | None:
    """A text with a table that answers the task; None where there is none. Raises `GatewayError`."""
    try:
        return (await client.ask(task.query, timeout_s)).answer
    except GatewayError as error:
        if error.reason in _NO_TABLE:
            return None
        raise


async def _ask(address: str, tasks: Sequence[Task], file: Path, options: Options) -> None:
    """Ask for the responses that the file lacks, and keep them there. Raises `BadRequest` where questions failed, and
    `GatewayError` where no gateway answers.
    """
    with closing(JsonlFile(file, Response, RESPONSE)) as kept:
        done, failed = by_run(kept, file), list[str]()

        async def ask(item: tuple[Task, int]) -> None:
            task, run = item
            try:
                kept.append(Response(task.instance_id, await _table_of(client, task, options.timeout), run))
            except GatewayError as error:
                if error.connection_broke:
                    raise
                failed.append(f"{task.instance_id}, run {run}: {error}")
                complain(failed[-1])

        asked = [(task, run) for run in range(options.runs) for task in tasks]
        left = [(task, run) for task, run in asked if run not in done.get(task.instance_id, {})]
        async with AsyncClient(address) as client:
            await in_flight(ask, left, options.in_flight, "asking")
    if failed:
        raise BadRequest(f"{len(failed):,} of {len(left):,} questions failed; the same command asks them again.")
