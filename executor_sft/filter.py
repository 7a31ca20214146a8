"""`rolegate sft filter`: keep the trajectories that are worth learning from.

Three strata are kept: what the untuned student does right with one search (student_single), what
the teacher does right with one (teacher_single), and what the teacher does right with more, where
it fails with one at most (teacher_multi): so the student learns when a second search is needed, and
when it is not. *Right* means that the final answer it leads to is an exact match and the judge,
where there is one, accepts it (TBSS 3.4), and that the report stands on its evidence: a right
answer may have been guessed. Everything else is counted by its reason. Reports on tables are judged
one by one (`TableReports`); there "not found" is a good one where nothing is to be found.

With `--best`, the best run of each group of `rolegate sft rollout --group` is kept, by exact match,
F1, fewer tokens, seed, unless none of them is right: its delegator's work, and its executors',
where it stands on evidence.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from executor_sft.command import POSITIONAL, StepOptions, show
from executor_sft.jsonl import read_jsonl
from executor_sft.questions import HeldOut, TableReports, question_key
from executor_sft.rollout import ROLLOUTS, Group, Rollout, Sample, SubQueryRollout
from executor_sft.step import Step
from router.errors import BadConfig
from router.protocol import normal_answer
from router.protocol.scoring import holds
from router.trace import Conversation, Execution, Trajectory
from router.trace.citation import cite
from router.trace.export import Reward
from router.trace.table import Ask
from router.trace.values import TableRun, by_executors, says_not_found
from serving.files import write_atomically
from serving.terminal import complain

_Taught = Literal["student_single", "teacher_single", "teacher_multi", "student_multi"]
_Grouped = Literal["best_executor", "best_delegator", "easy_executor", "easy_delegator"]
Stratum = Literal[_Taught, _Grouped]
"""Correct with one search, the student's or the teacher's (A); the teacher's with more, all of them
needed (B). The fourth one is there only where nothing was filtered. Of groups, the best run of
several, all of them right if easy.
"""
Who = Literal["student", "teacher"]
Work = Execution | Conversation
"""An executor's, or a delegator's."""
Mix = dict[Stratum, int]
"""Most samples of a stratum; all of one that is not in it."""
RESULT = "filtered.jsonl"
_UPSTREAM = frozenset({"timed_out", "model_failed", "retrieval_failed", "budget_exhausted"})


class Options(StepOptions, frozen=True, kw_only=True):
    """Options of the step."""

    rollouts: Annotated[
        tuple[Path, ...], POSITIONAL, Meta(description="folders of `rollout` or `mine`")
    ]
    mix: Annotated[
        str,
        Meta(
            description="STRATUM=N,…: how many of a stratum at most; the paper's: "
            "student_single=1000,teacher_single=500,teacher_multi=668"
        ),
    ] = ""
    none: Annotated[
        bool, Meta(description="keep all that has a report, to see what the filter is for")
    ] = False
    best: Annotated[bool, Meta(description="of groups of `rollout --group`, keep the best run")] = (
        False
    )
    exclude: Annotated[
        tuple[Path, ...],
        Meta(description="files of held-out questions; rollouts that ask any of them are left out"),
    ] = ()
    seed: Annotated[int, Meta(description="of what --mix picks")] = 1


class FilteredSample(msgspec.Struct, frozen=True):
    """One line of `filtered.jsonl`."""

    stratum: Stratum
    question_id: str
    source: str
    """The data set that the question is from."""
    work: Work
    ask: Ask | None = None
    """The part of a table that it is about; None elsewhere."""

    @property
    def execution(self) -> Execution:
        """The executor's work, where it is that."""
        assert isinstance(self.work, Execution)
        return self.work


def run(options: Options) -> int:
    """Run the step; the exit status."""
    mix = parse_mix(options.mix)
    settings = {"mix": mix, "none": options.none, "best": options.best, "seed": options.seed}
    inputs = {f"rollouts.{number}": path for number, path in enumerate(options.rollouts)}
    inputs |= {f"exclude {path}": path for path in options.exclude}
    step = Step.begin(options.out, "filter", inputs, settings)
    if (manifest := step.finished) is None:
        advice = "remove the line, or run `rolegate sft rollout` again into another folder"
        kind: type[Any] = Group if options.best else Rollout
        lines = (read_jsonl(path, kind, advice, ROLLOUTS) for path in options.rollouts)
        rollouts = (rollout for file in lines for _, rollout in file)
        held_out = HeldOut.read(options.exclude)
        samples, rejected = filtered(
            rollouts, mix, none=options.none, seed=options.seed, held_out=held_out
        )
        write_atomically(options.out / RESULT, msgspec.json.Encoder().encode_lines(samples))
        manifest = step.finish(_figures(samples, rejected), [RESULT])
    show(manifest.figures, as_json=options.json)
    if not options.best and not manifest.figures["strata"].get("teacher_multi"):
        complain(
            "Nothing is kept in teacher_multi: so no executor learns from this when to "
            "search again."
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
    rollouts: Iterable[Rollout | Group],
    mix: Mix,
    *,
    none: bool = False,
    seed: int = 1,
    held_out: HeldOut | None = None,
) -> tuple[list[FilteredSample], Counter[str]]:
    """The samples that pass, in order, and how many were rejected for which reason; together,
    all there are.
    """
    samples: list[FilteredSample] = []
    rejected: Counter[str] = Counter()
    seen: set[tuple[Stratum, bool, str]] = set()
    for rollout in rollouts:
        question = rollout.question
        candidates = list(_candidates(rollout, none=none))
        asked = {work.sub_query for _, work, _, _ in candidates if isinstance(work, Execution)}
        leaked = _leaked(question.text, asked, held_out) if held_out else None
        for stratum, work, flaw, ask in candidates:
            key = (
                stratum,
                ask is None,
                question_key(work.sub_query if isinstance(work, Execution) else question.text),
            )
            reason = leaked or (_no_report(work) if isinstance(work, Execution) else None) or flaw
            if reason is None and not none and key in seen:
                reason = "duplicate sub-query"
            if reason:
                rejected[reason] += 1
                continue
            seen.add(key)
            samples.append(FilteredSample(stratum, question.id, question.source, work, ask))
    chosen = mixed(samples, mix, seed)
    if len(chosen) < len(samples):
        rejected["over the mix"] = len(samples) - len(chosen)
    return chosen, rejected


def _candidates(
    rollout: Rollout | Group, *, none: bool
) -> Iterator[tuple[Stratum, Work, str | None, Ask | None]]:
    """All work on a question, with the reason why it is not worth learning from, if any, and
    its ask of a table.
    """
    if isinstance(rollout, Rollout):
        filled = rollout.trajectory if isinstance(rollout.trajectory, TableRun) else None
        reports = filled and TableReports(rollout.question, filled)
        for number, sub_query in enumerate(rollout.sub_queries):
            ask = filled.asks[number] if filled else None
            for who in get_args(Who):
                sample: Sample = getattr(sub_query, who)
                searches = "single" if len(sample.execution.searches) == 1 else "multi"
                stratum: Stratum = f"{who}_{searches}"  # type: ignore[assignment] # it is one
                flaw = partial(reports.flaw, ask) if ask and reports else None
                reason = (
                    _reason_in_table(who, sub_query, flaw)
                    if flaw
                    else _reason(who, sample, sub_query)
                )
                yield stratum, sample.execution, None if none else reason, ask
        return
    rewards = rollout.rewards
    best = min(range(len(rewards)), key=lambda number: _rank(rewards[number]))
    right = sum(reward.exact_match is True for reward in rewards)
    led: Stratum = "easy_delegator" if right == len(rewards) else "best_delegator"
    done: Stratum = "easy_executor" if right == len(rewards) else "best_executor"
    for number, run in enumerate(rollout.runs):
        assert isinstance(run.result, Trajectory)
        fate = "no run is right" if not right else None if number == best else "not the best run"
        if run.result.delegation is not None:
            yield led, run.result.delegation, fate, None
        for execution in by_executors(run.result.executions):
            yield done, execution, fate or (None if none else flaw_of(execution)), None


def _rank(reward: Reward) -> tuple[float, ...]:
    """Less for a better one."""
    return (
        -bool(reward.exact_match),
        -(reward.f1 or 0.0),
        math.inf if reward.tokens is None else reward.tokens,
    )


def mixed(samples: Sequence[FilteredSample], mix: Mix, seed: int) -> list[FilteredSample]:
    """At most as many of each stratum as `mix` says, drawn at random, in the same order."""
    wanted: set[int] = set()
    for stratum in get_args(Stratum):
        places = [place for place, sample in enumerate(samples) if sample.stratum == stratum]
        most = min(len(places), mix.get(stratum, len(places)))
        wanted.update(random.Random(f"{seed}/{stratum}").sample(places, most))
    return [sample for place, sample in enumerate(samples) if place in wanted]


def _leaked(question: str, sub_queries: Iterable[str], held_out: HeldOut) -> str | None:
    """The way in which a rollout asks what is held out; None where it does not."""
    if likeness := held_out.likeness(question):
        return f"held out: {likeness} question"
    return "held out: as a sub-query" if any(map(held_out.likeness, sub_queries)) else None


def _no_report(execution: Execution) -> str | None:
    if execution.outcome == "reported":
        return None
    return "an upstream failed" if execution.outcome in _UPSTREAM else "no report"


def _reason(who: Who, sample: Sample, sub_query: SubQueryRollout) -> str | None:
    """The reason why a trajectory that has a report is not worth learning from; None where it
    is.
    """
    verdict = sample.verdict
    if verdict.exact_match is False:
        return "wrong answer"
    if not verdict.correct:
        refusal = "judge's reply not readable" if verdict.accepted is None else "judge rejected it"
        return refusal if verdict.judged else "right answer not known"
    if flaw := flaw_of(sample.execution):
        return flaw
    if _disagree(sub_query):
        return "teacher and student report otherwise"
    execution = sample.execution
    points = execution.report.evidence
    found = cite(points, execution.searches[0].shown)
    later = [point for point, first in zip(points, found, strict=True) if not first]
    early = not later or not _says(later, execution.report.answer)
    return _not_needed(who, execution, sub_query.capped, early=early, stands=_stands)


def _reason_in_table(
    who: Who, sub_query: SubQueryRollout, flaw: Callable[[Execution], str | None]
) -> str | None:
    """The same for a table. `flaw`: of any report that answers this ask."""
    execution: Execution = getattr(sub_query, who).execution
    first = msgspec.structs.replace(execution, searches=execution.searches[:1])
    return flaw(execution) or _not_needed(
        who,
        execution,
        sub_query.capped,
        early=flaw(first) is None,
        stands=lambda one: not flaw(one.execution),
    )


def _not_needed(
    who: Who,
    execution: Execution,
    capped: Sequence[Sample],
    *,
    early: bool,
    stands: Callable[[Sample], bool],
) -> str | None:
    """The reason why a second search is not needed: the first one (`early`), or a try with one,
    found the answer.
    """
    if len(execution.searches) == 1:
        return None
    if who == "student":
        return "student searched twice"
    if early:
        return "evidence found by the first search"
    tested = [one for one in capped if one.execution.outcome not in _UPSTREAM]
    if not tested:
        return "second search not tested"
    return "second search not needed" if any(map(stands, tested)) else None


def flaw_of(execution: Execution) -> str | None:
    """The reason why a report does not stand on its evidence; None where it does: each point is in
    a passage that the executor was shown, and the answer is in a point, word for word, unless it is
    yes or no.
    """
    report = execution.report
    if says_not_found(report.answer):
        return "found nothing"
    if not all(execution.citations(report.evidence)):
        return "evidence in no passage"
    return None if _says(report.evidence, report.answer) else "answer not in its evidence"


def _says(points: Sequence[str], answer: str) -> bool:
    return normal_answer(answer) in ("yes", "no") or holds([" ".join(points)], answer)


def _stands(sample: Sample) -> bool:
    """True where it leads to the right answer by what it found, and not by a guess."""
    return (
        sample.verdict.correct and not sample.execution.failed and flaw_of(sample.execution) is None
    )


def _disagree(sub_query: SubQueryRollout) -> bool:
    """True where teacher and student report different answers that both seem to stand: nobody
    knows which is wrong.
    """
    both = [sub_query.teacher, sub_query.student]
    one, other = (sample.execution.report.answer for sample in both)
    return all(map(_stands, both)) and not holds([other], one) and not holds([one], other)


def _figures(samples: Sequence[FilteredSample], rejected: Counter[str]) -> dict[str, Any]:
    """Counts of what passed, by stratum and by the data set that it is from, and of the rest,
    by reason.
    """
    questions: dict[str, list[str]] = {}
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
