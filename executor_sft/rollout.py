"""`rolegate sft rollout`: let teacher and student work on the sub-queries of questions (TBSS 3.4).

The backbone answers each question with the teacher as its executor; the student works on every sub-query beside it, and
where its report differs, the run goes on from there to see which answer that leads to. What the teacher found with two
searches it looks for again with one. So `rolegate sft filter` can tell what is worth learning.

Interrupted, the same command goes on where it was, and no model call is paid for twice.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from executor_sft.call_cache import Spent
from executor_sft.command import StepOptions, show
from executor_sft.jsonl import read_jsonl
from executor_sft.questions import Question, normal_question, read_questions, read_texts
from executor_sft.rollouts import CALLS, ROLLOUTS, Rollout, roll_out_all, rollout_worker, teacher_config
from executor_sft.runtime import open_runtime
from executor_sft.step import Step, config_settings
from router.errors import BadConfig
from serving.config.config import Config
from serving.config.file import load_config
from serving.terminal import complain


class RolloutOptions(StepOptions, frozen=True, kw_only=True):
    """Options of `rollout` and `mine`."""

    config: Path
    limit: Annotated[int, Meta(ge=1, description="so many questions at most")] | None = None
    leave_failed: Annotated[bool, Meta(description="finish without the questions that failed")] = False
    concurrency: Annotated[int, Meta(ge=1, description="questions in flight")] = 8


class Options(RolloutOptions, frozen=True, kw_only=True):
    """Options of `rollout`."""

    questions: Annotated[Path, Meta(description="questions with right answers, JSON lines")]
    exclude: Annotated[tuple[Path, ...], Meta(description="files of questions to leave out")] = ()


class SearchCounts(msgspec.Struct, frozen=True):
    """Searches of one executor's runs."""

    invocations: int
    """Runs."""
    average: float
    """Searches of a run; 0 where there are no runs."""
    none: int
    """Runs without a search."""
    one: int
    more: int
    """Runs with two or more."""

    @classmethod
    def of(cls, searches: Iterable[int]) -> "SearchCounts":
        """Count. `searches`: how many each run made."""
        counts = list(searches)
        runs, none, one = len(counts), counts.count(0), counts.count(1)
        return cls(runs, sum(counts) / max(1, runs), none, one, runs - none - one)


class ExecutorFigures(SearchCounts, frozen=True):
    """One executor on the sub-queries of the teacher's runs."""

    model: str
    no_report: int
    """Runs that came to no report."""
    exact_match: float
    """Share of its runs that lead to a right answer, all else being the teacher's."""


class RolloutFigures(msgspec.Struct, frozen=True):
    """Figures of the manifest."""

    selection: dict[str, int]
    """Number of questions, and of those that were left out, by reason."""
    failed: dict[str, str]
    """Reasons why questions are not among those rolled out, by id."""
    executors: dict[str, ExecutorFigures]
    """Of `teacher` and `student`."""
    spent: list[Spent]
    """Each paid call once, whatever was interrupted."""
    questions: int
    """Rolled out."""
    exact_match: float
    """Share of the teacher's runs."""
    correct: float
    """Share that the judge accepts besides, where there is one."""
    unread: int
    """Replies of the judge that could not be read."""
    no_search: int
    """Questions that were answered without a sub-query."""


def figures_of(
    path: Path, models: Mapping[str, str], selection: dict[str, int], failed: dict[str, str], spent: list[Spent]
) -> RolloutFigures:
    """Count a file of rollouts. `models`: of teacher and student."""
    counts: Counter[str] = Counter()
    runs: dict[str, list[tuple[int, bool, bool]]] = {name: [] for name in models}
    for _, rollout in read_jsonl(path, Rollout, "remove the line, and it is rolled out again"):
        verdict = rollout.verdict
        counts["questions"] += 1
        counts["exact_match"] += verdict.exact_match is True
        counts["correct"] += verdict.correct
        counts["unread"] += verdict.judged and verdict.accepted is None
        counts["no_search"] += not rollout.sub_queries
        for work in rollout.sub_queries:
            for name, sample in (("teacher", work.teacher), ("student", work.student)):
                execution, right = sample.execution, sample.verdict.exact_match is True
                runs[name].append((len(execution.searches), execution.failed, right))
    executors = {}
    for name, model in models.items():
        counted = msgspec.structs.asdict(SearchCounts.of(searches for searches, _, _ in runs[name]))
        no_report = sum(without for _, without, _ in runs[name])
        share = sum(right for *_, right in runs[name]) / max(1, len(runs[name]))
        executors[name] = ExecutorFigures(**counted, model=model, no_report=no_report, exact_match=share)
    of = max(1, counts["questions"])
    return RolloutFigures(
        selection,
        failed,
        executors,
        spent,
        counts["questions"],
        counts["exact_match"] / of,
        counts["correct"] / of,
        counts["unread"],
        counts["no_search"],
    )


def run(options: Options) -> int:
    """Run the step; the exit status."""
    listed, duplicates = read_questions(options.questions)
    excluded = read_texts(options.exclude)
    chosen = [question for question in listed if normal_question(question.text) not in excluded]
    selection = {
        "read": len(listed) + duplicates,
        "duplicates": duplicates,
        "excluded": len(listed) - len(chosen),
        "over_limit": len(chosen) - len(chosen[: options.limit]),
    }
    inputs = {"questions": options.questions, **{f"exclude {path}": path for path in options.exclude}}
    step = begin_step("rollout", options, inputs, {})
    return roll_out_step(step, options, chosen[: options.limit], selection)


def begin_step(name: str, options: RolloutOptions, inputs: Mapping[str, Path], settings: Mapping[str, object]) -> Step:
    """Begin a step that rolls out. Raises `BadConfig` where nobody teaches."""
    config = load_config(options.config)
    extra_roles = {"teacher": teacher_config(config), "judge": config.distillation.judge}
    made_with = {"limit": options.limit, **settings, **config_settings(config, extra_roles)}
    return Step.begin(options.out, name, inputs, made_with)


def roll_out_step(step: Step, options: RolloutOptions, questions: Sequence[Question], selection: dict[str, int]) -> int:
    """Roll out, unless that was done, and print the figures; the exit status. Where questions failed, the step is not
    finished, unless it is to be without them.
    """
    if (manifest := step.finished) is not None:
        complain(f"{step.folder}: was finished before, at {manifest.finished_at}")
        show(manifest.figures, as_json=options.json)
        return 0
    if not questions:
        raise BadConfig(f"{step.folder}: no question is left to roll out ({selection}).")
    figures = asyncio.run(_rolled_out(load_config(options.config), questions, selection, options))
    show(msgspec.to_builtins(figures), as_json=options.json)
    if figures.failed and not options.leave_failed:
        complain("The same command tries those that failed again; --leave-failed goes on without them.")
        return 1
    step.finish(figures, [ROLLOUTS])
    return 0


async def _rolled_out(
    config: Config, questions: Sequence[Question], selection: dict[str, int], options: RolloutOptions
) -> RolloutFigures:
    console, path = Console(stderr=True), options.out / ROLLOUTS
    columns = (TextColumn("rolling out"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    async with open_runtime(config, console.print, cache=options.out / CALLS, teacher=True) as runtime:
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("", total=len(questions))
            failed = await roll_out_all(
                rollout_worker(runtime),
                questions,
                path,
                options.concurrency,
                lambda done: bar.update(task, completed=done),
            )
        assert runtime.cache is not None
        spent = runtime.cache.spent
    models = {"teacher": teacher_config(config).model, "student": config.roles.execution.model}
    return figures_of(path, models, selection, failed, spent)
