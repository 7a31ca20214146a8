"""`rolegate sft filter`: keep the trajectories that are good enough to train on.

A trajectory is the work of an executor, teacher or student (the model to train), on one sub-query.
Three strata (kinds) of trajectories are kept:

student_single  trajectories of the untuned student that are right with one search
teacher_single  trajectories of the teacher that are right with one search
teacher_multi   trajectories of the teacher that are right with more searches, but not with one

So the student learns when a second search is needed, and when it is not. A trajectory is *right* if
its final answer is an exact match, the judge (if there is one) accepts the answer (TBSS 3.4), and
evidence supports the report; without evidence, a right answer may be a guess. All other
trajectories are left out, and counted under the reason. A table has no final answer, so each report
on a part of a table is judged alone; a report may leave out a value only if no page states it.

With `--best`, the input is groups of runs from `rolegate sft rollout --group`. The best run of each
group is kept, unless no run of the group is right. Exact matches are better than other runs; ties
go to the higher F1, then to fewer tokens, then to the first run. From the best run, the delegator's
trajectory is kept. An executor's trajectory is kept if evidence supports its report.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta

from executor_sft.command import StepOptions, show
from executor_sft.jsonl import read_jsonl, write_jsonl
from executor_sft.questions import HeldOut, TableReports, question_key
from executor_sft.rollout import ROLLOUTS, Group, Rollout, Sample, SubQueryRollout
from executor_sft.step import Step
from router.errors import BadConfig
from router.frozen import Frozen
from router.protocol import normal_answer
from router.protocol.scoring import holds
from router.trace import Conversation, Execution, Trajectory
from router.trace.citation import cite
from router.trace.table import Ask
from router.trace.values import TableRun, by_executors, says_not_found
from serving.cli.command import POSITIONAL
from serving.terminal import complain

_Taught = Literal["student_single", "teacher_single", "teacher_multi", "student_multi"]
_Grouped = Literal["best_executor", "best_delegator", "easy_executor", "easy_delegator"]
Stratum = Literal[_Taught, _Grouped]
"""Kind of sample: which model did the work, and how many searches it made.

`student_single`, `teacher_single`: student or teacher, right with one search. `teacher_multi`:
teacher, right with several searches that were needed. `student_multi`: student, with no search or
several; kept only with `--none`. `best_executor`, `best_delegator`: from the best run of a group.
`easy_executor`, `easy_delegator`: from the best run of a group whose runs are all right.
"""
Who = Literal["student", "teacher"]
Work = Execution | Conversation
"""Trajectory of an executor on a sub-query (`Execution`), or of a delegator on a question
(`Conversation`).
"""
Mix = dict[Stratum, int]
"""Max samples of each stratum; a stratum that is missing here has no limit."""
RESULT = "filtered.jsonl"
_UPSTREAM = frozenset({"timed_out", "model_failed", "retrieval_failed", "budget_exhausted"})
"""Outcomes of executors that failed through no fault of their model: an endpoint failed, or time or
budget ran out.
"""


class Options(StepOptions):
    """Options of the step."""

    rollouts: Annotated[tuple[Path, ...], POSITIONAL]
    """result folders of `rolegate sft rollout` or `rolegate sft mine`"""
    mix: str = ""
    """max trajectories of each stratum, as STRATUM=N,…; the TBSS paper uses
    student_single=1000,teacher_single=500,teacher_multi=668 (default: no limits)
    """
    none: bool = False
    """keep all trajectories with a report, right or wrong, to measure the effect of the filter;
    held-out questions are still left out
    """
    best: bool = False
    """keep only the best run of each group; for folders of `rolegate sft rollout --group`"""
    exclude: tuple[Path, ...] = ()
    """files of held-out questions (JSON lines); leave out rollouts whose question or sub-query is
    the same as, or nearly the same as, a held-out question
    """
    seed: int = 1
    """seed of the random choice if a stratum has more trajectories than --mix allows"""


class FilteredSample(Frozen):
    """One line of `filtered.jsonl`: a trajectory that passed the filter."""

    stratum: Stratum
    question_id: str
    source: str
    """Data set of the question."""
    work: Work
    ask: Ask | None = None
    """Cells or rows that the executor had to find; None if the question does not ask for a table.
    """

    @property
    def execution(self) -> Execution:
        """The executor's trajectory; only for samples whose `work` is an `Execution`."""
        assert isinstance(self.work, Execution)
        return self.work


class _Candidate(NamedTuple):
    """A trajectory that may become a sample."""

    stratum: Stratum
    work: Work
    flaw: str | None
    """Reason to leave the trajectory out, or None."""
    ask: Ask | None = None
    """Cells or rows that the executor had to find; None if the question does not ask for a table.
    """


def run(options: Options) -> int:
    """Run the step and return the exit status."""
    mix = parse_mix(options.mix)
    settings = options.settings("none", "best", "seed") | {"mix": mix}
    inputs = {f"rollouts.{number}": path for number, path in enumerate(options.rollouts)}
    inputs |= {f"exclude {path}": path for path in options.exclude}
    step = Step.begin(options.out, "filter", inputs, settings)
    if (manifest := step.finished) is None:
        samples, rejected = filtered(
            _rollouts(options),
            mix,
            none=options.none,
            seed=options.seed,
            held_out=HeldOut.read(options.exclude),
        )
        write_jsonl(options.out / RESULT, samples)
        manifest = step.finish(_figures(samples, rejected), [RESULT])
    show(manifest.figures, as_json=options.json)
    if not options.best and not manifest.figures["strata"].get("teacher_multi"):
        complain(
            "No kept trajectory has a second search by the teacher (stratum teacher_multi), so the "
            "executor would not learn when to search again; roll out more questions."
        )
    return 0


def _rollouts(options: Options) -> Iterator[Rollout | Group]:
    """Yield the rollouts of all folders in `options`. Raises `BadConfig` for an invalid line."""
    advice = "remove the line, or run `rolegate sft rollout` again into another folder"
    kind: type[Any] = Group if options.best else Rollout
    for path in options.rollouts:
        yield from read_jsonl(path, kind, advice, ROLLOUTS)


def parse_mix(text: str) -> Mix:
    """Return the limits in the text of `--mix`, such as `student_single=1000,teacher_multi=668`.
    Raises `BadConfig` for an unknown stratum or an invalid number.
    """
    pairs = dict(part.strip().partition("=")[::2] for part in text.split(",") if text)
    try:
        return msgspec.convert(pairs, dict[Stratum, Annotated[int, Meta(ge=0)]], strict=False)
    except msgspec.ValidationError:
        raise BadConfig(
            f"--mix {text}: must be a list of STRATUM=N, separated by commas; N is a whole number, "
            f"and STRATUM is one of {', '.join(get_args(Stratum))}."
        ) from None


def filtered(
    rollouts: Iterable[Rollout | Group],
    mix: Mix,
    *,
    none: bool = False,
    seed: int = 1,
    held_out: HeldOut | None = None,
) -> tuple[list[FilteredSample], Counter[str]]:
    """Return the samples that pass the filter, in the order of the rollouts. Also return, for each
    reason, the number of trajectories rejected for it. Every trajectory is either a sample or
    counted as rejected.

    `mix`: max samples of each stratum. `none`: also accept duplicates, and reports that are wrong
    or unsupported; from a group, still only the best run is accepted. `seed`: seed for choosing
    samples at random when `mix` limits them. `held_out`: questions that must not be trained on.
    """
    samples = list[FilteredSample]()
    rejected: Counter[str] = Counter()
    seen = set[tuple[Stratum, bool, str]]()
    for rollout in rollouts:
        question = rollout.question
        if isinstance(rollout, Rollout):
            candidates = list(_rollout_candidates(rollout, none=none))
        else:
            candidates = list(_group_candidates(rollout, none=none))
        asked = {
            candidate.work.sub_query
            for candidate in candidates
            if isinstance(candidate.work, Execution)
        }
        leaked = _leaked(question.text, asked, held_out) if held_out else None

        for stratum, work, flaw, ask in candidates:
            text = question.text
            reason = leaked or flaw
            if isinstance(work, Execution):
                text = work.sub_query
                reason = leaked or _no_report(work) or flaw
            key = stratum, ask is None, question_key(text)
            if reason is None and not none and key in seen:
                reason = "duplicate sub-query"
            if reason:
                rejected[reason] += 1
                continue
            seen.add(key)
            samples.append(
                FilteredSample(
                    stratum,
                    question.id,
                    question.source,
                    work,
                    ask,
                )
            )

    chosen = mixed(samples, mix, seed)
    if len(chosen) < len(samples):
        rejected["over the mix"] = len(samples) - len(chosen)
    return chosen, rejected


def _rollout_candidates(rollout: Rollout, *, none: bool) -> Iterator[_Candidate]:
    """Yield two candidates for each sub-query of a question or table: the teacher's and the
    student's trajectory. `none`: True to accept trajectories with flaws.
    """
    asks: Sequence[Ask] = ()
    reports = None
    if isinstance(rollout.trajectory, TableRun):
        asks = rollout.trajectory.asks
        reports = TableReports(rollout.question, rollout.trajectory)
    for number, sub_query in enumerate(rollout.sub_queries):
        for who in get_args(Who):
            sample: Sample = getattr(sub_query, who)
            searches = "single" if len(sample.execution.searches) == 1 else "multi"
            stratum: Stratum = f"{who}_{searches}"  # type: ignore[assignment] # a known stratum
            ask = None
            if reports:
                ask = asks[number]
                reason = _reason_in_table(who, sub_query, partial(reports.flaw, ask))
            else:
                reason = _reason(who, sample, sub_query)
            yield _Candidate(stratum, sample.execution, None if none else reason, ask)


def _group_candidates(group: Group, *, none: bool) -> Iterator[_Candidate]:
    """Yield, for every run of a group, the trajectories of the delegator and of all executors.
    `none`: True to accept reports without the support of evidence.
    """
    rewards = group.rewards
    ranks = [
        (
            -bool(reward.exact_match),
            -(reward.f1 or 0.0),
            math.inf if reward.tokens is None else reward.tokens,
        )
        for reward in rewards
    ]
    best = ranks.index(min(ranks))
    right = sum(reward.exact_match is True for reward in rewards)
    strata: tuple[Stratum, Stratum] = ("best_delegator", "best_executor")
    if right == len(rewards):
        strata = ("easy_delegator", "easy_executor")
    for number, run in enumerate(group.runs):
        if not isinstance(run.result, Trajectory):
            raise BadConfig(
                f"--best: {group.question.id} asks for a table, and only runs of questions are "
                "filtered; leave out the tables, or run `rolegate sft weigh`, which reads both."
            )
        flaw = None
        if not right:
            flaw = "no run is right"
        elif number != best:
            flaw = "not the best run"
        if run.result.delegation is not None:
            yield _Candidate(strata[0], run.result.delegation, flaw)
        for execution in by_executors(run.result.executions):
            unsupported = None if none else flaw_of(execution)
            yield _Candidate(strata[1], execution, flaw or unsupported)


def mixed(samples: Sequence[FilteredSample], mix: Mix, seed: int) -> list[FilteredSample]:
    """Return at most as many samples of each stratum as `mix` allows. Samples over a limit are
    dropped at random (`seed`). All other samples keep their order.
    """
    kept = set[int]()
    for stratum in get_args(Stratum):
        places = [place for place, sample in enumerate(samples) if sample.stratum == stratum]
        limit = min(len(places), mix.get(stratum, len(places)))
        kept.update(random.Random(f"{seed}/{stratum}").sample(places, limit))
    return [sample for place, sample in enumerate(samples) if place in kept]


def _leaked(question: str, sub_queries: Iterable[str], held_out: HeldOut) -> str | None:
    """Return the reason to reject a rollout if its question, or one of `sub_queries`, is held out.
    Return None to keep the rollout.
    """
    if likeness := held_out.likeness(question):
        return f"held out: {likeness} question"
    return "held out: as a sub-query" if any(map(held_out.likeness, sub_queries)) else None


def _no_report(execution: Execution) -> str | None:
    """Return the reason to reject an execution if it has no report, else None."""
    if execution.outcome == "reported":
        return None
    return "an upstream failed" if execution.outcome in _UPSTREAM else "no report"


def _reason(who: Who, sample: Sample, sub_query: SubQueryRollout) -> str | None:
    """Return the reason to reject a trajectory that ended with a report; None to keep it.

    `who`: the model that made `sample`. `sub_query`: the work of both models on this sub-query.
    """
    verdict = sample.verdict
    if verdict.exact_match is False:
        return "wrong answer"
    if not verdict.correct:
        if not verdict.judged:
            return "right answer not known"
        return "judge's reply not readable" if verdict.accepted is None else "judge rejected it"
    execution = sample.execution
    if flaw := flaw_of(execution):
        return flaw
    if _disagree(sub_query):
        return "teacher and student report otherwise"

    points = execution.report.evidence
    cited = cite(points, execution.searches[0].shown)
    later = [point for point, passage in zip(points, cited, strict=True) if not passage]
    early = not later or not _says(later, execution.report.answer)
    return _not_needed(
        who,
        execution,
        sub_query.capped,
        early=early,
        stands=_stands,
    )


def _reason_in_table(
    who: Who,
    sub_query: SubQueryRollout,
    flaw: Callable[[Execution], str | None],
) -> str | None:
    """Return the reason to reject a report on a part of a table; None to keep it.

    `who`: the model that wrote the report. `sub_query`: the work of both models on this sub-query.
    `flaw`: returns the reason why a report on this part of the table is bad, or None.
    """
    execution: Execution = getattr(sub_query, who).execution
    first = msgspec.structs.replace(execution, searches=execution.searches[:1])
    return flaw(execution) or _not_needed(
        who,
        execution,
        sub_query.capped,
        early=flaw(first) is None,
        stands=lambda sample: not flaw(sample.execution),
    )


def _not_needed(
    who: Who,
    execution: Execution,
    capped: Sequence[Sample],
    *,
    early: bool,
    stands: Callable[[Sample], bool],
) -> str | None:
    """Return the reason to reject a trajectory with a needless second search; None if the
    trajectory has only one search, or needed a second search.

    `early`: True if the first search already found the answer. `capped`: the teacher's further
    tries of the same sub-query, each with at most one search. `stands`: returns True if the answer
    of a try is right.
    """
    if len(execution.searches) == 1:
        return None
    if who == "student":
        return "student searched twice"
    if early:
        return "evidence found by the first search"
    tested = [sample for sample in capped if sample.execution.outcome not in _UPSTREAM]
    if not tested:
        return "second search not tested"
    return "second search not needed" if any(map(stands, tested)) else None


def flaw_of(execution: Execution) -> str | None:
    """Return the reason why a report's evidence does not support its answer; None if the evidence
    supports the answer.

    Each point (item) of the evidence must be in a passage that the executor was shown. The evidence
    must contain the answer word for word, unless the answer is yes or no.
    """
    report = execution.report
    if says_not_found(report.answer):
        return "found nothing"
    if not all(execution.citations(report.evidence)):
        return "evidence in no passage"
    return None if _says(report.evidence, report.answer) else "answer not in its evidence"


def _says(points: Sequence[str], answer: str) -> bool:
    """Return True if the points of evidence contain the answer, or if the answer is yes or no."""
    return normal_answer(answer) in ("yes", "no") or holds([" ".join(points)], answer)


def _stands(sample: Sample) -> bool:
    """Return True if the final answer is right and evidence supports the report."""
    return (
        sample.verdict.correct and not sample.execution.failed and flaw_of(sample.execution) is None
    )


def _disagree(sub_query: SubQueryRollout) -> bool:
    """Return True if teacher and student report different answers, and both seem right. One of the
    two must be wrong, but it is unknown which.
    """
    samples = [sub_query.teacher, sub_query.student]
    teacher, student = (sample.execution.report.answer for sample in samples)
    differ = not holds([student], teacher) and not holds([teacher], student)
    return differ and all(map(_stands, samples))


def _figures(samples: Sequence[FilteredSample], rejected: Counter[str]) -> dict[str, Any]:
    """Return the step's figures: numbers of samples for each stratum and for each data set, and
    numbers of rejected trajectories for each reason.
    """
    questions = dict[str, list[str]]()
    for sample in samples:
        questions.setdefault(sample.source, []).append(sample.question_id)
    return {
        "candidates": len(samples) + rejected.total(),
        "samples": len(samples),
        "strata": dict(Counter(sample.stratum for sample in samples)),
        "rejected": dict(rejected.most_common()),
        "sources": {
            source: {"samples": len(ids), "questions": len(set(ids))}
            for source, ids in sorted(questions.items())
        },
    }
