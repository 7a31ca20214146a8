"""`rolegate sft mine`: roll out logged questions again, with the teacher as executor.

Reads the config's store: answers and tables, failures included, but none of tenants that have opted
out and none whose texts were not kept. Which answers are right is known from right answers that
feedback tells, or from the judge; that somebody liked an answer does not make it right. Of tables
nothing has to be known. Unless one tenant is named, no tenant's word stands for more than a quarter
of the questions. Prints what that would take and asks; then it does what `rolegate sft rollout`
does.
"""

import argparse
import asyncio
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from rich.console import Console

from executor_sft.command import agreed, show
from executor_sft.jsonl import read_json
from executor_sft.questions import HeldOut, Question, question_key
from executor_sft.rollout import RolloutOptions, begin_step, roll_out_step, teacher_config
from executor_sft.step import write_json
from router.errors import BadRequest, NotFound, StoreFailed
from router.models import Usage
from router.runs import RunFilter
from router.runs.archive import Archive
from router.store import SQLArchive
from router.table import TableRequest
from router.trace import Call, Price, RoleName, Run, Trajectory
from router.trace.call import totals
from router.trace.run import Feedback, right_answers
from router.trace.values import NOT_FOUND, TableRun, by_executors
from router.versions.gate import within_share
from serving.cli.options import FORMATS, time_argument
from serving.cli.store import opened_store
from serving.config.config import Config
from serving.config.file import load_config
from serving.config.prices import prices_of
from serving.terminal import complain

SELECTION = "selection.json"
SOURCE = "logged"
_PAGE = 100


class Options(RolloutOptions, frozen=True, kw_only=True):
    """Options of the step."""

    since: Annotated[str, Meta(description=FORMATS)] | None = None
    until: Annotated[str, Meta(description="runs that started before")] | None = None
    tenant: Annotated[str, Meta(description="one tenant's only")] | None = None
    evaluation: Annotated[
        tuple[Path, ...], Meta(description="files of questions to leave out")
    ] = ()
    yes: Annotated[bool, Meta(description="do not ask")] = False


class Counts(msgspec.Struct):
    """Logged runs that were read, by what became of them."""

    read: int = 0
    """Answers and tables that have ended, of tenants that let their runs train."""
    redacted: int = 0
    """Their texts were not kept."""
    unreadable: int = 0
    """Their traces are damaged, or written by another release."""
    evaluation: int = 0
    """Questions that must not be trained on."""
    nearly_evaluation: int = 0
    """Questions that are nearly such ones."""
    evaluation_sub_query: int = 0
    """They asked such a one on their way."""
    right_answer_unknown: int = 0
    """No feedback tells the right answer, and there is no judge."""
    same_question: int = 0
    same_sub_queries: int = 0
    over_limit: int = 0
    over_share: int = 0
    """Their tenant's word would stand for too many of them."""
    selected: int = 0


class Selection(msgspec.Struct, frozen=True):
    """The questions that `mine` rolls out; kept in its folder, as the store goes on changing."""

    questions: list[Question]
    """Each with the id of its run."""
    counts: Counts


async def select(
    log: Archive, wanted: RunFilter, evaluation: HeldOut, *, judge: bool, limit: int | None = None
) -> tuple[Selection, list[Call]]:
    """The logged questions that can be rolled out again, newest first (of those that are the same,
    the newest), and the calls of their runs.

    `wanted` leaves out tenants that have opted out. `evaluation`: what to leave out. `judge`:
    whether somebody can tell right answers that no feedback tells. Raises `StoreFailed`.
    """
    counts = Counts()
    chosen = list[tuple[Question, tuple[Call, ...], str]]()
    asked: set[str] = set()
    worked_on: set[frozenset[str]] = set()
    async for run in _ended(log, wanted, counts):
        outer = run.result.executions if isinstance(run.result, Trajectory | TableRun) else ()
        executions = (*(one for one in outer if one.work), *by_executors(outer))
        sub_queries = frozenset(question_key(execution.sub_query) for execution in executions)
        if run.redacted:
            counts.redacted += 1
        elif likeness := evaluation.likeness(run.request):
            counts.evaluation += likeness == "same"
            counts.nearly_evaluation += likeness == "near"
        elif any(evaluation.likeness(execution.sub_query) for execution in executions):
            counts.evaluation_sub_query += 1
        elif not (
            (question := question_of(run, told := await log.feedback(run.id))).golds
            or question.table
            or judge
        ):
            counts.right_answer_unknown += 1
        elif question.key in asked:
            counts.same_question += 1
        elif sub_queries and sub_queries in worked_on:
            counts.same_sub_queries += 1
        else:
            asked.add(question.key)
            worked_on.add(sub_queries)
            if limit is not None and len(chosen) >= limit:
                counts.over_limit += 1
            else:
                by_client = question.golds and all(
                    said.tenant for said in told if said.right_answer.strip()
                )
                chosen.append(
                    (question, run.calls, run.tenant if by_client and wanted.tenant is None else "")
                )
    kept = within_share(chosen, lambda one: one[2])
    counts.selected = len(kept)
    counts.over_share = len(chosen) - len(kept)
    return Selection([question for question, _, _ in kept], counts), [
        call for _, calls, _ in kept for call in calls
    ]


def question_of(run: Run, feedback: Sequence[Feedback]) -> Question:
    """The run's question with what was said: right answers, the operator's alone where there are
    any; and the run's own as a wrong one, if the last verdict was that it is.
    """
    result = run.result
    if isinstance(result, TableRun):
        closed = bool(result.asks) and all(ask.row for ask in result.asks)
        table = TableRequest(
            run.request, result.schema.columns, result.given, closed, result.max_rows
        )
        return Question(run.id, run.request, (), SOURCE, table=table)
    answer = (
        result.answer if isinstance(result, Trajectory) and result.outcome != "out_of_scope" else ""
    )
    if answer == NOT_FOUND:
        answer = ""
    verdicts = [said.good for said in feedback if said.good is not None]
    rejected = (answer,) if answer and verdicts and not verdicts[-1] else ()
    return Question(run.id, run.request, right_answers(feedback), SOURCE, rejected)


async def _ended(log: Archive, wanted: RunFilter, counts: Counts) -> AsyncIterator[Run]:
    """The runs that have ended and can be read."""
    page = ""
    while True:
        listed = await log.list(wanted, _PAGE, page)
        for summary in listed.runs:
            tabular = summary.kind == "table" and summary.outcome not in (None, "out_of_scope")
            if summary.status == "running" or not (tabular or summary.kind == "answer"):
                continue
            try:
                run = await log.load(summary.id)
            except NotFound:
                continue  # deleted meanwhile
            except StoreFailed as error:
                if not isinstance(error.__cause__, zlib.error | msgspec.DecodeError):
                    raise
                counts.read = counts.read + 1
                counts.unreadable = counts.unreadable + 1
                continue
            counts.read += 1
            yield run
        if not (page := listed.next_page):
            return


_TIMES: Mapping[str, tuple[RoleName, float]] = {
    # Once, and at most again, where other reports lead to other ends
    "delegation": ("delegation", 2.0),
    # 40 % of its runs search twice (TBSS Table 4), and may be tried again, three times
    "teacher": ("execution", 2.2),
    "student": ("execution", 1.0),
    "answer": ("answer", 2.0),
}
"""The logged role whose tokens each of them is expected to need, and how many times."""


def estimate(
    calls: Sequence[Call], prices: Mapping[str, Price | None]
) -> dict[str, dict[str, float | None]]:
    """The tokens and dollars that each role is expected to need. `calls`: of the logged runs;
    unknown tokens count like the mean of the others. The judge, asked little, is left out.
    """
    needed: dict[str, dict[str, float | None]] = {}
    for name, (role, times) in _TIMES.items():
        prompt = completion = 0.0
        for total in totals(calls):
            if total.role == role and (known := total.attempts - total.attempts_without_usage):
                prompt += times * total.attempts / known * total.prompt_tokens
                completion += times * total.attempts / known * total.completion_tokens
        usage = Usage(round(prompt), round(completion))
        price = prices[name]
        dollars = None if price is None else price.cost(usage) / 1e9
        tokens = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
        }
        needed[name] = {**tokens, "dollars": dollars}
    return needed


def run(options: Options) -> int:
    """Run the step; the exit status, 1 where it was not agreed to."""
    chosen = options.out / SELECTION
    selection = None
    if not chosen.exists():
        selection = asyncio.run(_selected(load_config(options.config), options))
        if selection is None:
            return 1
    inputs = {f"evaluation {path}": path for path in options.evaluation}
    step = begin_step(
        "mine",
        options,
        inputs,
        {name: getattr(options, name) for name in ("since", "until", "tenant")},
    )
    if selection is not None:
        write_json(chosen, selection)
    selection = read_json(chosen, Selection, "begin in a new folder")
    return roll_out_step(step, options, selection.questions, msgspec.to_builtins(selection.counts))


async def _selected(config: Config, options: Options) -> Selection | None:
    """The questions that are to be rolled out; None where somebody does not want that. Raises
    `BadRequest` where nothing is there, or nobody to ask.
    """
    wanted = RunFilter(
        tenant=options.tenant,
        start=time_argument(options.since).timestamp() if options.since else None,
        end=time_argument(options.until).timestamp() if options.until else None,
        training=True,
    )
    roles = config.roles
    teacher = teacher_config(config)
    held_out = [Path(config.versions.held_out)] if config.versions.held_out else []
    evaluation = HeldOut.read([*options.evaluation, *held_out])
    judge = config.distillation.judge is not None
    async with opened_store(argparse.Namespace(config=options.config, preset=None)) as database:
        with Console(stderr=True).status("reading logged runs"):
            archive = SQLArchive(database)
            selection, calls = await select(
                archive, wanted, evaluation, judge=judge, limit=options.limit
            )
    show({"logged_runs": msgspec.to_builtins(selection.counts)}, stderr=True)
    if selection.counts.unreadable:
        complain(
            "What cannot be read: `rolegate store check` names it; an older release may read it."
        )
    if not selection.questions:
        raise BadRequest(
            "no logged question can be used; send feedback with right answers, or name a judge."
        )
    named = {
        "delegation": roles.delegation,
        "teacher": teacher,
        "student": roles.execution,
        "answer": roles.answer,
    }
    show({"estimate": estimate(calls, await prices_of(named, config.prices))}, stderr=True)
    return (
        selection
        if options.yes or agreed(f"Roll out {len(selection.questions)} questions?")
        else None
    )
