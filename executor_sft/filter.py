"""`rolegate sft filter`: keep the trajectories that are worth learning from.

Three strata are kept: what the untuned student does right with one search (student_single), what the teacher does
right with one (teacher_single), and what the teacher does right with more, where it fails with one at most
(teacher_multi): so the student learns when a second search is needed, and when it is not. *Right* means that the final
answer it leads to is an exact match and the judge, where there is one, accepts it (TBSS 3.4). Everything else is
counted by its reason.
"""

import argparse
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from executor_sft.lines import decoded_lines
from executor_sft.questions import normal_question
from executor_sft.rollouts import Rollout, Sample, SubQueryRollout, Verdict
from executor_sft.step import Step
from router.errors import BadConfig
from router.trace.values import Execution
from serving.files import write_atomically

Stratum = Literal["student_single", "teacher_single", "teacher_multi", "student_multi"]
"""Correct with one search, the student's or the teacher's (A); the teacher's with more, all of them needed (B). The
last one is there only where nothing was filtered.
"""


class Kept(msgspec.Struct, frozen=True):
    """One line of `kept.jsonl`."""

    stratum: Stratum
    question_id: str
    source: str
    """The data set that the question is from."""
    execution: Execution


Composition = dict[str, dict[str, int]]
"""By source: `records`, and the `questions` that these are from."""


def composition(kept: Sequence[Kept]) -> Composition:
    """Records and unique source questions of every source."""
    questions: dict[str, list[str]] = {}
    for trajectory in kept:
        questions.setdefault(trajectory.source, []).append(trajectory.question_id)
    return {source: {"records": len(ids), "questions": len(set(ids))} for source, ids in sorted(questions.items())}


def composition_table(sources: Composition) -> Table:
    """A row for each source, and a sum."""
    table = Table("source", box=SIMPLE_HEAD)
    for column in ("records", "questions"):
        table.add_column(column, justify="right")
    for source, counts in sources.items():
        table.add_row(escape(source) or "–", f"{counts['records']:,}", f"{counts['questions']:,}")
    table.add_section()
    sums = (sum(counts[column] for counts in sources.values()) for column in ("records", "questions"))
    table.add_row("all", *(f"{count:,}" for count in sums))
    return table


def counts_table(title: str, counts: Mapping[str, int]) -> Table:
    """A row for each name, and a sum."""
    table = Table(title, box=SIMPLE_HEAD)
    table.add_column("count", justify="right")
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
    table.add_section()
    table.add_row("all", f"{sum(counts.values()):,}")
    return table


RESULT = "kept.jsonl"
Who = Literal["student", "teacher"]
Mix = dict[Stratum, int]
"""How many of a stratum to keep at most; of one that is not in it, all."""
_ROLLOUTS = ("rollouts.jsonl", Rollout, "rolegate sft rollout")
_UPSTREAM = frozenset({"timed_out", "model_failed", "retrieval_failed", "budget_exhausted"})


def main(arguments: Sequence[str]) -> int:
    """Run the step; the exit status."""
    parser = argparse.ArgumentParser(
        prog="rolegate sft filter", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rollouts", type=Path, nargs="+", metavar="ROLLOUTS", help="folders of `rollout` or `mine`")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the result goes")
    parser.add_argument(
        "--mix",
        metavar="STRATUM=N,…",
        help="how many of a stratum at most; the paper's: student_single=1000,teacher_single=500,teacher_multi=668",
    )
    parser.add_argument("--none", action="store_true", help="keep all that has a report, to see what the filter is for")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of what --mix picks (default: 1)")
    given = parser.parse_args(arguments)
    settings = {"mix": mix_of(given.mix), "none": given.none, "seed": given.seed}
    inputs = {f"rollouts.{number}": path for number, path in enumerate(given.rollouts)}
    step = Step.begin(given.out, "filter", inputs, settings)
    if (manifest := step.finished) is None:
        rollouts = [rollout for path in given.rollouts for rollout in decoded_lines(path, *_ROLLOUTS)]
        kept, rejected = filtered(rollouts, mix_of(given.mix), none=given.none, seed=given.seed)
        lines = b"".join(msgspec.json.encode(trajectory) + b"\n" for trajectory in kept)
        write_atomically(given.out / RESULT, lines)
        manifest = step.finish(_figures(kept, rejected), [RESULT])
    console = Console()
    console.print(composition_table(manifest.figures["sources"]), counts_table("kept", manifest.figures["strata"]))
    console.print(counts_table("rejected", manifest.figures["rejected"]))
    if not manifest.figures["strata"].get("teacher_multi"):
        console.print("Nothing is kept in teacher_multi: so no executor learns from this when to search again.")
    return 0


def mix_of(text: str | None) -> Mix:
    """`student_single=1000,…`, read. Raises `BadConfig`."""
    mix: Mix = {}
    for part in text.split(",") if text else ():
        name, _, count = part.strip().partition("=")
        if name not in get_args(Stratum) or not count.isdecimal():
            raise BadConfig(f"--mix {part}: give STRATUM=N; the strata are {', '.join(get_args(Stratum))}.")
        mix[name] = int(count)  # type: ignore[index] # it is a stratum
    return mix


def filtered(
    rollouts: Iterable[Rollout], mix: Mix, *, none: bool = False, seed: int = 1
) -> tuple[list[Kept], Counter[str]]:
    """What is kept, in order, and how many trajectories were rejected for which reason; together, all there are."""
    kept: list[Kept] = []
    rejected: Counter[str] = Counter()
    seen: set[tuple[Stratum, str]] = set()
    for rollout in rollouts:
        for sub_query in rollout.sub_queries:
            for who in get_args(Who):
                sample: Sample = getattr(sub_query, who)
                stratum, key = _stratum(who, sample), normal_question(sample.execution.sub_query)
                reason = _no_report(sample) or (None if none else _reason(who, sample, sub_query))
                if reason is None and not none and (stratum, key) in seen:
                    reason = "duplicate sub-query"
                if reason:
                    rejected[reason] += 1
                    continue
                seen.add((stratum, key))
                kept.append(Kept(stratum, rollout.question.id, rollout.question.source, sample.execution))
    chosen = mixed(kept, mix, seed)
    if len(chosen) < len(kept):
        rejected["over the mix"] = len(kept) - len(chosen)
    return chosen, rejected


def mixed(kept: Sequence[Kept], mix: Mix, seed: int) -> list[Kept]:
    """At most as many of each stratum as `mix` says, drawn at random, in the same order."""
    wanted: set[int] = set()
    for stratum in get_args(Stratum):
        places = [place for place, trajectory in enumerate(kept) if trajectory.stratum == stratum]
        most = min(len(places), mix.get(stratum, len(places)))
        wanted.update(random.Random(f"{seed}/{stratum}").sample(places, most))
    return [trajectory for place, trajectory in enumerate(kept) if place in wanted]


def _stratum(who: Who, sample: Sample) -> Stratum:
    single = len(sample.execution.searches) == 1
    if who == "student":
        return "student_single" if single else "student_multi"
    return "teacher_single" if single else "teacher_multi"


def _no_report(sample: Sample) -> str | None:
    if sample.execution.outcome == "reported":
        return None
    return "an upstream failed" if sample.execution.outcome in _UPSTREAM else "no report"


def _reason(who: Who, sample: Sample, sub_query: SubQueryRollout) -> str | None:
    """Why a trajectory that has a report is not worth learning from; None where it is."""
    if not sample.verdict.correct:
        return _fault(sample.verdict)
    if len(sample.execution.searches) == 1:
        return None
    if who == "student":
        return "student searched twice"
    if sub_query.capped is None or sub_query.capped.execution.outcome in _UPSTREAM:
        return "second search not tested"
    return "second search not needed" if sub_query.capped.verdict.correct else None


def _fault(verdict: Verdict) -> str:
    """Why an answer does not count as right."""
    if verdict.exact_match is False:
        return "wrong answer"
    if not verdict.judged:
        return "right answer not known"
    return "judge's reply not readable" if verdict.accepted is None else "judge rejected it"


def _figures(kept: Sequence[Kept], rejected: Counter[str]) -> dict[str, object]:
    return {
        "candidates": len(kept) + rejected.total(),
        "kept": len(kept),
        "strata": dict(Counter(trajectory.stratum for trajectory in kept)),
        "rejected": dict(rejected.most_common()),
        "sources": composition(kept),
    }
