"""`rolegate sft filter`: keep the trajectories to learn from.

Three strata are kept: what the untuned student does right with one search (student_single), what
the teacher does right with one (teacher_single), and what the teacher does right with more, where
it fails with one (teacher_multi). So the student learns when a second search is needed, and when
not. *Right* means that the final answer is an exact match, that the judge, if there is one, accepts
it (TBSS 3.4), and that the report is supported by its evidence: a right answer may be a guess. All
other trajectories are counted by the reason. Reports on tables are judged one by one
(`TableReports`); there, "not found" is right where nothing can be found.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from executor_sft.command import StepOptions, show
from executor_sft.jsonl import read_jsonl
from executor_sft.questions import HeldOut, TableReports, question_key
from executor_sft.rollout import ROLLOUTS, Rollout, Sample, SubQueryRollout, Verdict
from executor_sft.step import Step
from router.errors import BadConfig
from router.protocol import normal_answer
from router.protocol.scoring import holds
from router.trace import Execution
from router.trace.citation import cite
from router.trace.table import Ask
from router.trace.values import TableRun, says_not_found
from serving.cli.command import POSITIONAL
from serving.files import write_atomically
from serving.terminal import complain

Stratum = Literal["student_single", "teacher_single", "teacher_multi", "student_multi"]
"""Kinds of samples.

`student_single`, `teacher_single`: correct with one search. `teacher_multi`: the teacher's, correct
with more, all of them needed. `student_multi`: only where nothing was filtered.
"""
Mix = dict[Stratum, int]
"""Max samples of a stratum; a missing stratum is unlimited."""
Flaw = Callable[[Execution], str | None]
"""Returns why evidence does not support a report; None if it does."""
RESULT = "filtered.jsonl"
_ADVICE = "remove the line, or run `rolegate sft rollout` again into another folder"
_UPSTREAM = frozenset({"timed_out", "model_failed", "retrieval_failed", "budget_exhausted"})


class Options(StepOptions, frozen=True, kw_only=True):
    """Options of the step."""

    rollouts: Annotated[tuple[Path, ...], POSITIONAL]
    """folders of `rollout` or `mine`"""
    mix: str = ""
    """STRATUM=N,…: max samples of a stratum; the paper's:
    student_single=1000,teacher_single=500,teacher_multi=668
    """
    none: bool = False
    """keep all that has a report, to measure what the filter does"""
    exclude: tuple[Path, ...] = ()
    """files of held-out questions; rollouts that ask any of them are left out"""
    seed: int = 1
    """seed of the draw for --mix"""


class FilteredSample(msgspec.Struct, frozen=True):
    """One line of `filtered.jsonl`."""

    stratum: Stratum
    question_id: str
    source: str
    """Data set of the question."""
    execution: Execution = msgspec.field(name="work")
    ask: Ask | None = None
    """The part of a table that the work is about; None outside tables."""


def run(options: Options) -> int:
    """Run the step and return the exit status."""
    mix = parse_mix(options.mix)
    inputs = {f"rollouts.{number}": path for number, path in enumerate(options.rollouts)}
    inputs |= {f"exclude {path}": path for path in options.exclude}
    settings = options.settings("none", "seed") | {"mix": mix}
    step = Step.begin(options.out, "filter", inputs, settings)
    if (manifest := step.finished) is None:
        read = (read_jsonl(path, Rollout, _ADVICE, ROLLOUTS) for path in options.rollouts)
        samples, rejected = filtered(
            (rollout for _, rollout in chain.from_iterable(read)),
            mix,
            none=options.none,
            seed=options.seed,
            held_out=HeldOut.read(options.exclude),
        )
        write_atomically(options.out / RESULT, msgspec.json.Encoder().encode_lines(samples))
        figures = {
            "candidates": len(samples) + rejected.total(),
            "samples": len(samples),
            "strata": dict(Counter(sample.stratum for sample in samples)),
            "rejected": dict(rejected.most_common()),
            "sources": dict(Counter(sample.source for sample in samples)),
        }
        manifest = step.finish(figures, [RESULT])
    show(manifest.figures, as_json=options.json)
    if not manifest.figures["strata"].get("teacher_multi"):
        complain(
            "No sample is in teacher_multi, so the executor does not learn when to search again."
        )
    return 0


def parse_mix(text: str) -> Mix:
    """Read `student_single=1000,…`. Raises `BadConfig`."""
    pairs = dict(part.strip().partition("=")[::2] for part in text.split(",") if text)
    try:
        return msgspec.convert(pairs, dict[Stratum, Annotated[int, Meta(ge=0)]], strict=False)
    except msgspec.ValidationError:
        raise BadConfig(
            f"--mix {text}: give STRATUM=N; the strata are {', '.join(get_args(Stratum))}."
        ) from None


def filtered(
    rollouts: Iterable[Rollout],
    mix: Mix,
    *,
    none: bool = False,
    seed: int = 1,
    held_out: HeldOut | None = None,
) -> tuple[list[FilteredSample], Counter[str]]:
    """Return the samples that pass, in order, and the number of rejected ones by reason; together
    these are all candidates.
    """
    samples: list[FilteredSample] = []
    rejected: Counter[str] = Counter()
    seen: set[tuple[Stratum, bool, str]] = set()
    for rollout in rollouts:
        candidates = list(_candidates(rollout))
        leaked = _leaked(rollout, held_out) if held_out else None
        for sample, flaw in candidates:
            key = sample.stratum, sample.ask is None, question_key(sample.execution.sub_query)
            reason = leaked or _no_report(sample.execution)
            if not (reason or none):
                reason = flaw or ("duplicate sub-query" if key in seen else None)
            if reason:
                rejected[reason] += 1
            else:
                seen.add(key)
                samples.append(sample)

    chosen = mixed(samples, mix, seed)
    if len(chosen) < len(samples):
        rejected["over the mix"] = len(samples) - len(chosen)
    return chosen, rejected


def _candidates(rollout: Rollout) -> Iterator[tuple[FilteredSample, str | None]]:
    """Yield the work of teacher and student on each sub-query, and the reason why it is not to be
    learnt, if any.
    """
    question = rollout.question
    asks: Sequence[Ask | None] = [None] * len(rollout.sub_queries)
    reports = None
    if isinstance(rollout.trajectory, TableRun):
        asks = rollout.trajectory.asks
        reports = TableReports(question, rollout.trajectory)
    for sub_query, ask in zip(rollout.sub_queries, asks, strict=True):
        in_table = partial(reports.flaw, ask) if reports and ask else None
        for who in ("student", "teacher"):
            sample: Sample = getattr(sub_query, who)
            searches = "single" if len(sample.execution.searches) == 1 else "multi"
            stratum: Stratum = f"{who}_{searches}"  # type: ignore[assignment] # it is one
            candidate = FilteredSample(stratum, question.id, question.source, sample.execution, ask)
            yield candidate, _reason(stratum, sample, sub_query, in_table)


def mixed(samples: Sequence[FilteredSample], mix: Mix, seed: int) -> list[FilteredSample]:
    """Return at most as many samples of each stratum as `mix` allows, drawn at random, in order."""
    kept: set[int] = set()
    for stratum in get_args(Stratum):
        places = [place for place, sample in enumerate(samples) if sample.stratum == stratum]
        limit = min(len(places), mix.get(stratum, len(places)))
        kept.update(random.Random(f"{seed}/{stratum}").sample(places, limit))
    return [sample for place, sample in enumerate(samples) if place in kept]


def _leaked(rollout: Rollout, held_out: HeldOut) -> str | None:
    """Return how a rollout asks a held-out question; None if it does not."""
    if likeness := held_out.likeness(rollout.question.text):
        return f"held out: {likeness} question"
    asked = {sub_query.teacher.execution.sub_query for sub_query in rollout.sub_queries}
    return "held out: as a sub-query" if any(map(held_out.likeness, asked)) else None


def _no_report(execution: Execution) -> str | None:
    if execution.outcome == "reported":
        return None
    return "an upstream failed" if execution.outcome in _UPSTREAM else "no report"


def _reason(
    stratum: Stratum,
    sample: Sample,
    sub_query: SubQueryRollout,
    in_table: Flaw | None,
) -> str | None:
    """Return why a trajectory with a report is not to be learnt; None if it is.

    A second search is learnt only from the teacher, where neither the first one nor any try with
    one search found the answer.
    """
    execution = sample.execution
    flaw = in_table or flaw_of
    reason = flaw(execution)
    if not in_table:
        reason = _wrong(sample.verdict) or reason or _disagreement(sub_query)
    if reason or stratum.endswith("single"):
        return reason
    if stratum == "student_multi":
        return "student searched twice"

    if in_table:
        first = msgspec.structs.replace(execution, searches=execution.searches[:1])
        early = in_table(first) is None
    else:
        points = execution.report.evidence
        cited = cite(points, execution.searches[0].shown)
        later = [point for point, passage in zip(points, cited, strict=True) if not passage]
        early = not later or not _says(later, execution.report.answer)
    if early:
        return "evidence found by the first search"
    tested = [one for one in sub_query.capped if one.execution.outcome not in _UPSTREAM]
    if not tested:
        return "second search not tested"
    stand = [not flaw(one.execution) and (in_table or one.verdict.correct) for one in tested]
    return "second search not needed" if any(stand) else None


def _wrong(verdict: Verdict) -> str | None:
    """Return why an answer is not known to be right; None if it is."""
    if verdict.exact_match is False:
        return "wrong answer"
    if verdict.correct:
        return None
    if not verdict.judged:
        return "right answer not known"
    return "judge's reply not readable" if verdict.accepted is None else "judge rejected it"


def flaw_of(execution: Execution) -> str | None:
    """Return why evidence does not support a report; None if it does.

    Each point must be in a passage that the executor was shown, and the answer must be in a point,
    word for word, unless it is yes or no.
    """
    report = execution.report
    if says_not_found(report.answer):
        return "found nothing"
    if not all(execution.citations(report.evidence)):
        return "evidence in no passage"
    return None if _says(report.evidence, report.answer) else "answer not in its evidence"


def _says(points: Sequence[str], answer: str) -> bool:
    return normal_answer(answer) in ("yes", "no") or holds([" ".join(points)], answer)


def _disagreement(sub_query: SubQueryRollout) -> str | None:
    """Return a reason if teacher and student report different answers that both seem right, so that
    the wrong one is unknown.
    """
    samples = (sub_query.teacher, sub_query.student)
    one, other = (sample.execution.report.answer for sample in samples)
    if holds([one], other) or holds([other], one):
        return None
    if all(sample.verdict.correct and not flaw_of(sample.execution) for sample in samples):
        return "teacher and student report otherwise"
    return None
