"""`rolegate sft mine`: answer the questions of stored runs again, with the teacher as executor.

Reads the questions and requests for tables of all ended runs from the config's store, including
failed runs. Runs of tenants that opted out of training, and runs whose texts are not stored, are
left out. If feedback has right answers, a new answer must match one of them. Otherwise, the model
of `distillation.judge` decides; a good rating alone does not make an answer right. Tables need no
right answer. Unless --tenant is given, at most a quarter of the questions may have right answers
from the feedback of the same tenant.

Prints an estimate of the cost, asks for confirmation, and then does the same as `rolegate sft
rollout`.
"""

import asyncio
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import msgspec
from rich.console import Console

from executor_sft.command import agreed, show
from executor_sft.jsonl import read_json
from executor_sft.questions import HeldOut, Question
from executor_sft.rollout import RolloutOptions, begin_step, roll_out_step, teacher_config
from executor_sft.step import write_json
from router.errors import BadRequest, NotFound, StoreFailed
from router.frozen import Frozen
from router.models import Usage
from router.runs import RunFilter
from router.runs.archive import Archive
from router.store import SQLArchive
from router.table import TableRequest
from router.trace import Call, Price, RoleName, Run, Trajectory
from router.trace.run import Feedback, right_answers
from router.trace.values import TableRun, says_not_found
from router.versions.gate import within_share
from serving.cli.options import time_argument
from serving.cli.store import opened_store
from serving.config.config import Config
from serving.config.file import load_config
from serving.config.prices import prices_of
from serving.terminal import complain

SELECTION = "selection.json"
SOURCE = "logged"
_PAGE = 100


class Options(RolloutOptions):
    """Options of the step."""

    since: str | None = None
    """use only runs that started at this time or later: 2026-11-21, 2026-11-21T10:00 (UTC unless a
    time zone is given), or a time before now, such as 7d or 12h (default: all runs)
    """
    until: str | None = None
    """use only runs that started before this time; same formats as --since"""
    tenant: str | None = None
    """use only runs of this tenant (default: all tenants)"""
    evaluation: tuple[Path, ...] = ()
    """files of held-out questions (JSON lines); leave out stored questions that are the same as, or
    nearly the same as, a held-out question
    """
    yes: bool = False
    """start without asking for confirmation of the cost"""


class Selection(Frozen):
    """Questions that `mine` answers again. Stored in the step's folder, so that a resumed step uses
    the same questions even if there are new runs.
    """

    questions: list[Question]
    """Selected questions. Each has the id of the stored run as its id."""
    counts: dict[str, int]
    """Counts of ended runs, without runs of tenants that opted out of training. `read` counts all
    runs, and `selected` those whose questions were selected. Every other key is a reason, and
    counts the runs that were left out for it.
    """


async def select(
    log: Archive,
    wanted: RunFilter,
    evaluation: HeldOut,
    *,
    judge: bool,
    limit: int | None = None,
) -> tuple[Selection, list[Call]]:
    """Select questions of stored runs for the teacher to answer again. Return these questions,
    newest first, and the model calls of their stored runs.

    If a question was asked several times, only its newest run is used. `log`: the archive of runs.
    `wanted`: filter of the runs; it must leave out tenants that opted out. `evaluation`: held-out
    questions, which are left out. `judge`: True if a judge decides about questions without a right
    answer; if False, such questions are left out. `limit`: max questions. Raises `StoreFailed` if
    the store cannot be read.
    """
    counts: Counter[str] = Counter()
    chosen = list[tuple[Question, tuple[Call, ...], str]]()
    asked = set[str]()
    async for run in _ended(log, wanted, counts):
        feedback = await log.feedback(run.id)
        question = question_of(run, feedback)
        likeness = evaluation.likeness(run.question)
        reasons = {
            "redacted": run.redacted,
            "unresolved": not question.text,
            "evaluation": likeness == "same",
            "nearly_evaluation": likeness == "near",
            "right_answer_unknown": not (question.golds or question.table or judge),
            "same_question": question.key in asked,
            "over_limit": len(chosen) == limit,
        }
        if reason := next((name for name, holds in reasons.items() if holds), None):
            counts[reason] += 1
            continue
        asked.add(question.key)
        tenants = [entry.tenant for entry in feedback if entry.right_answer.strip()]
        by_client = question.golds and all(tenants) and wanted.tenant is None
        chosen.append((question, run.calls, run.tenant if by_client else ""))

    # At most a quarter of the questions may have right answers from the feedback of the same tenant
    kept = within_share(chosen, lambda candidate: candidate[2])
    counts["over_share"] = len(chosen) - len(kept)
    counts["selected"] = len(kept)
    calls = chain.from_iterable(run_calls for _, run_calls, _ in kept)
    return Selection([question for question, _, _ in kept], dict(counts)), list(calls)


def question_of(run: Run, feedback: Sequence[Feedback]) -> Question:
    """Return the run's question, with right answers from the operator's feedback, or else from the
    clients' feedback.

    If the last rating in `feedback` is bad, the run's answer becomes a rejected answer of the
    question. A run that filled a table becomes a question for that table, without right answers.
    """
    result = run.result
    if isinstance(result, TableRun):
        closed = bool(result.asks) and all(ask.row for ask in result.asks)
        table = TableRequest(
            run.request,
            result.schema.shown,
            result.given,
            closed,
            result.max_rows,
            result.schema.conditions,
        )
        return Question(
            run.id,
            run.question,
            (),
            SOURCE,
            table=table,
        )
    answer = ""
    if isinstance(result, Trajectory) and result.outcome != "out_of_scope":
        answer = "" if says_not_found(result.answer) else result.answer
    ratings = [entry.good for entry in feedback if entry.good is not None]
    rejected = (answer,) if answer and ratings and not ratings[-1] else ()
    return Question(
        run.id,
        run.question,
        right_answers(feedback),
        SOURCE,
        rejected,
    )


async def _ended(log: Archive, wanted: RunFilter, counts: Counter[str]) -> AsyncIterator[Run]:
    """Yield the ended runs that answered a question or filled a table, and count them in `counts`
    under `read`. Runs that cannot be read are not yielded, but counted under both `read` and
    `unreadable`.
    """
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
                continue  # deleted since the list was made
            except StoreFailed as error:
                if not isinstance(error.__cause__, zlib.error | msgspec.DecodeError):
                    raise
                counts["unreadable"] += 1
            else:
                yield run
            counts["read"] += 1
        if not (page := listed.next_page):
            return


_TIMES: Mapping[str, tuple[RoleName, float]] = {
    # One run with the teacher, and about as many calls again to repeat runs with the student's
    # reports
    "delegation": ("delegation", 2.0),
    # 40 % of the teacher's runs search twice (TBSS Table 4); each is tried again up to three times
    "teacher": ("execution", 2.2),
    "student": ("execution", 1.0),
    "answer": ("answer", 2.0),
}
"""For each role of a rollout: (role of the stored runs, factor). The cost estimate assumes that the
rollout's role uses as many tokens as that role used in the stored runs, times the factor.
"""


def estimate(
    calls: Sequence[Call],
    prices: Mapping[str, Price | None],
) -> dict[str, dict[str, float | None]]:
    """Return the expected tokens and cost (`dollars`) for each role of the rollout; keys are role
    names.

    `calls`: model calls of the stored runs. A call without token counts is assumed to have the mean
    counts of all other calls of its role. `prices`: price of each role's model; `dollars` is None
    for a role without a price. The judge is not included, since it is rarely asked.
    """
    needed = dict[str, dict[str, float | None]]()
    for name, (role, times) in _TIMES.items():
        usages = [call.usage for call in calls if call.role == role]
        known = [usage for usage in usages if usage]
        factor = times * len(usages) / max(1, len(known))
        prompt = round(factor * sum(usage.prompt_tokens for usage in known))
        completion = round(factor * sum(usage.completion_tokens for usage in known))
        price = prices[name]
        needed[name] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "dollars": price.cost(Usage(prompt, completion)) / 1e9 if price else None,
        }
    return needed


def run(options: Options) -> int:
    """Run the step and return the exit status: 1 if the user did not confirm the cost, or if
    questions failed.
    """
    file = options.out / SELECTION
    known = file.exists()
    selection: Selection | None
    if known:
        selection = read_json(file, Selection, "name a new folder")
    else:
        selection = asyncio.run(_selected(load_config(options.config), options))
    if selection is None:
        return 1
    inputs = {f"evaluation {path}": path for path in options.evaluation}
    step = begin_step("mine", options, inputs, options.settings("since", "until", "tenant"))
    if not known:
        write_json(file, selection)
    return roll_out_step(step, options, selection.questions, selection.counts)


async def _selected(config: Config, options: Options) -> Selection | None:
    """Select the questions, print the estimated cost and ask for confirmation. Return None if the
    user refuses.

    Raises `BadRequest` if no stored question can be used, or if there is no terminal on which to
    ask.
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
    async with opened_store(options.config) as database:
        with Console(stderr=True).status("reading logged runs"):
            archive = SQLArchive(database)
            selection, calls = await select(
                archive,
                wanted,
                evaluation,
                judge=judge,
                limit=options.limit,
            )
    show({"logged_runs": selection.counts}, stderr=True)
    if "unreadable" in selection.counts:
        complain(
            "Some stored runs cannot be read and are left out; `rolegate store check` lists them. "
            "An older release of rolegate may be able to read them."
        )
    if not selection.questions:
        raise BadRequest(
            "no logged question can be used; the table above counts the reasons. Send feedback "
            "with right answers, or set distillation.judge."
        )
    named = {
        "delegation": roles.delegation,
        "teacher": teacher,
        "student": roles.execution,
        "answer": roles.answer,
    }
    show({"estimate": estimate(calls, await prices_of(named, config.prices))}, stderr=True)
    if options.yes or agreed(f"Roll out {len(selection.questions)} questions?"):
        return selection
    return None
