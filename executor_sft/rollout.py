"""`rolegate sft rollout`: let teacher and student work on the sub-queries of questions (TBSS 3.4).

The backbone answers each question with the teacher as its executor; the student works on every sub-query beside it, and
where its report differs, the run goes on from there to see which answer that leads to. What the teacher found with two
searches it looks for again with one. So `rolegate sft filter` can tell what is worth learning.

Interrupted, the same command goes on where it was, and no model call is paid for twice.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from rich.console import Console

from executor_sft.asking import progress
from executor_sft.command import StepOptions, show
from executor_sft.jsonl import read_jsonl
from executor_sft.questions import Question, normal_question, read_questions, read_texts
from executor_sft.rollouts import ADVICE, CALLS, ROLLOUTS, Rollout, Sample, roll_out_all, rollout_worker, teacher_config
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


def search_counts(searches: Iterable[int]) -> dict[str, float]:
    """Executor runs, and the searches that they made: on average, and how many made none, one or more (TBSS Table 4).
    `searches`: of each run.
    """
    counts = list(searches)
    runs, none, one = len(counts), counts.count(0), counts.count(1)
    average = sum(counts) / max(1, runs)
    return {"invocations": runs, "average": average, "none": none, "one": one, "more": runs - none - one}


def figures_of(path: Path, models: Mapping[str, str]) -> dict[str, Any]:
    """Count a file of rollouts. `models`: of teacher and student. Shares are of questions, and of executor runs."""
    rollouts = [rollout for _, rollout in read_jsonl(path, Rollout, ADVICE)]
    verdicts = [rollout.verdict for rollout in rollouts]
    executors = {}
    for name, model in models.items():
        samples: list[Sample] = [getattr(work, name) for rollout in rollouts for work in rollout.sub_queries]
        executors[name] = {
            **search_counts(len(sample.execution.searches) for sample in samples),
            "model": model,
            "no_report": sum(sample.execution.failed for sample in samples),
            "exact_match": fmean([sample.verdict.exact_match is True for sample in samples] or [0]),
        }
    return {
        "executors": executors,
        "questions": len(rollouts),
        "exact_match": fmean([verdict.exact_match is True for verdict in verdicts] or [0]),
        "correct": fmean([verdict.correct for verdict in verdicts] or [0]),
        "unread": sum(verdict.judged and verdict.accepted is None for verdict in verdicts),
        "no_search": sum(not rollout.sub_queries for rollout in rollouts),
    }


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
    show(figures, as_json=options.json)
    if figures["failed"] and not options.leave_failed:
        complain("The same command tries those that failed again; --leave-failed goes on without them.")
        return 1
    step.finish(figures, [ROLLOUTS])
    return 0


async def _rolled_out(
    config: Config, questions: Sequence[Question], selection: dict[str, int], options: RolloutOptions
) -> dict[str, Any]:
    console, path = Console(stderr=True), options.out / ROLLOUTS
    async with open_runtime(config, console.print, cache=options.out / CALLS, teacher=True) as runtime:
        with progress(console) as bar:
            task = bar.add_task("rolling out", total=len(questions))
            worker = rollout_worker(runtime)
            failed = await roll_out_all(worker, questions, path, options.concurrency, lambda: bar.advance(task))
        assert runtime.cache is not None
        spent = msgspec.to_builtins(runtime.cache.spent)
    models = {"teacher": teacher_config(config).model, "student": config.roles.execution.model}
    return {"selection": selection, "failed": failed, **figures_of(path, models), "spent": spent}
