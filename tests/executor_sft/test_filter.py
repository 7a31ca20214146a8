"""Useful trajectories are kept, and all others are counted by their reason."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from executor_sft.__main__ import run
from executor_sft.dataset import read_samples
from executor_sft.filter import RESULT, Stratum, filtered, flaw_of, parse_mix
from executor_sft.questions import HeldOut, Question
from executor_sft.rollout import Group, Rollout, Sample, SubQueryRollout, Verdict
from executor_sft.step import read_manifest
from router.errors import BadConfig, UpstreamUnavailable
from router.models import Message, Usage
from router.protocol import Passage, Report
from router.trace import Conversation, Execution, Run, Trajectory
from router.trace.values import SearchRecord
from tests.executor_sft.traces import (
    DIRECTORS,
    DOUBTED,
    ONE,
    REPORT,
    RIGHT,
    TWO,
    WRONG,
    executed,
    rollout,
    sample,
    search,
    write_lines,
)
from tests.router.store.stored import call
from tests.router.store.stored import run as run_row

GOOD = sample(ONE, RIGHT)
DOWN = UpstreamUnavailable("down", endpoint="x")


GUESS = (search("director"), REPORT)


LINE = "\n"


def report(answer: str, *points: str) -> str:
    return f"<answer>{answer}</answer><evidence>{LINE.join(points)}</evidence>"


def only(teacher: Sample, student: Sample, *capped: Sample) -> Rollout:
    return rollout(SubQueryRollout(teacher, student, capped))


def fates(teacher: Sample, *capped: Sample, student: Sample | None = None) -> list[str]:
    """Return the strata and rejections of a teacher's work."""
    samples, rejected = filtered([only(teacher, student or sample(ONE, WRONG), *capped)], {})
    if student is None:
        rejected["wrong answer"] -= 1  # the student's
    return [kept.stratum for kept in samples] + list(rejected.elements())


@pytest.mark.parametrize(
    ("teacher", "capped", "fate"),
    [
        (sample(ONE, RIGHT), None, "teacher_single"),
        (sample(TWO, RIGHT), sample(GUESS, RIGHT), "teacher_multi"),
        (
            sample((search("Heat"), *GUESS), RIGHT),
            sample(ONE, WRONG),
            "evidence found by the first search",
        ),
        (sample(TWO, RIGHT), sample(ONE, WRONG), "teacher_multi"),
        (sample(TWO, RIGHT), sample([search("Heat")] * 3, WRONG), "teacher_multi"),
        (sample(TWO, RIGHT), sample(ONE, RIGHT), "second search not needed"),
        (sample(TWO, RIGHT), sample(ONE, DOUBTED), "teacher_multi"),
        (sample(TWO, RIGHT), None, "second search not tested"),
        (sample(TWO, RIGHT), sample([DOWN] * 3, WRONG), "second search not tested"),
        (sample(ONE, WRONG), None, "wrong answer"),
        (sample(TWO, WRONG), sample(ONE, WRONG), "wrong answer"),
        (sample(ONE, DOUBTED), None, "judge rejected it"),
        (sample(ONE, Verdict(True, None, True)), None, "judge's reply not readable"),
        (sample(ONE, Verdict(None)), None, "right answer not known"),
        (sample(ONE, Verdict(None, True, True)), None, "teacher_single"),
        (sample(["no tag"] * 3, RIGHT), None, "no report"),
        (sample([DOWN] * 3, RIGHT), None, "an upstream failed"),
    ],
)
def test_the_teacher_s_work_is_kept_or_rejected_for_one_reason(
    teacher: Sample, capped: Sample | None, fate: str
) -> None:
    """A second search is learnt if the answer needs it, and only right answers are learnt."""
    assert fates(teacher, *([capped] if capped else [])) == [fate]


@pytest.mark.parametrize(
    ("text", "point", "answer", "fate"),
    [
        ("首任校长是唐国安。它有很多学生。", "首任校长是唐国安", "唐国安", "teacher_single"),
        (
            "湯川秀樹は1949年に受賞した。",
            "湯川秀樹は１９４９年に受賞した",
            "1949年",
            "teacher_single",
        ),
        (
            "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย",
            "กรุงเทพมหานครเป็นเมืองหลวง",
            "กรุงเทพมหานคร",
            "teacher_single",
        ),
        (
            "훈민정음은 세종대왕이 창제하였다.",
            "훈민정음은 세종대왕이 창제하였다",
            "세종대왕",
            "teacher_single",
        ),
        ("Cafe\u0301 Orrin opened.", "Café Orrin opened.", "Café Orrin", "teacher_single"),
        ("首任校长是唐国安。", "首任校长是李国", "李国", "evidence in no passage"),
        ("首任校长是唐国安。", "首任校长是唐国安", "梅贻琦", "answer not in its evidence"),
    ],
)
def test_right_work_in_any_script_is_kept(text: str, point: str, answer: str, fate: str) -> None:
    """Its evidence is found in scripts without spaces, and in other forms of the same words."""
    record = SearchRecord("?", (Passage("1", "?", text), DIRECTORS))
    work = Execution("Who?", Report(answer, (point,)), "reported", (record,), Conversation(()))
    assert fates(Sample(work, answer, RIGHT)) == [fate]


def test_a_second_search_is_unnecessary_if_any_try_without_it_succeeds() -> None:
    """One of any number of tries is enough; a guess is not, and neither is a failure of an
    endpoint.
    """
    wrong = sample(ONE, WRONG)
    guessed = sample(GUESS, RIGHT)
    right = sample(ONE, RIGHT)
    failed = sample([DOWN] * 3, WRONG)
    assert fates(sample(TWO, RIGHT), wrong, guessed, wrong) == ["teacher_multi"]
    assert fates(sample(TWO, RIGHT), wrong, guessed, right) == ["second search not needed"]
    assert fates(sample(TWO, RIGHT), failed, wrong) == ["teacher_multi"]
    assert fates(sample(TWO, RIGHT), failed, failed) == ["second search not tested"]


def test_the_second_search_finds_the_evidence_of_the_answer() -> None:
    """An answer that the first search's evidence supports needs no second search."""
    point = "A director makes films."
    two_searches = (search("director"), search("Heat"))
    for answer, points, fate in (
        ("Michael Mann", (point, FOUND), "teacher_multi"),
        ("yes", (point, FOUND), "teacher_multi"),
        ("films", (point, FOUND), "evidence found by the first search"),
        ("yes", (point,), "evidence found by the first search"),
    ):
        assert fates(
            sample((*two_searches, report(answer, *points)), RIGHT), sample(ONE, WRONG)
        ) == [fate]


FOUND = "Heat is a film by Michael Mann."


@pytest.mark.parametrize(
    ("written", "flaw"),
    [
        (report("Michael Mann", FOUND), None),
        (report("the michael mann", "A film, Heat, is by Michael Mann"), None),
        (report("yes", FOUND), None),
        (report("Not found.", "not found"), "found nothing"),
        (report("not found in your documents", FOUND), "found nothing"),
        (report("Michael Mann", "Michael Mann was born in Chicago."), "evidence in no passage"),
        (report("Michael Mann", FOUND, "It was shot in Los Angeles."), "evidence in no passage"),
        (report("Vincent Hanna", FOUND), "answer not in its evidence"),
        (report("Michael", FOUND.replace("Michael", "Michaels")), "evidence in no passage"),
        (report("Mich", FOUND), "answer not in its evidence"),
    ],
)
def test_a_report_is_supported_by_its_evidence(written: str, flaw: str | None) -> None:
    """Its points are in passages, and its answer is in its points; the final answer does not
    matter.
    """
    assert fates(sample((search("Heat"), written), RIGHT)) == [flaw or "teacher_single"]
    assert flaw_of(executed(search("Heat"), written)) == flaw


def test_of_two_disagreeing_reports_the_supported_one_is_kept() -> None:
    """If both are supported, neither is kept: both lead to the right answer, and which of them is
    wrong is unknown.
    """
    teacher = sample(ONE, RIGHT)
    vague = sample((search("Heat"), report("Mann", FOUND)), RIGHT)
    other, guessed = (
        sample((search("Heat"), report(answer, FOUND)), RIGHT) for answer in ("Heat", "Pacino")
    )
    assert fates(teacher, student=vague) == ["student_single", "teacher_single"]
    assert fates(teacher, student=guessed) == ["teacher_single", "answer not in its evidence"]
    assert fates(guessed, student=teacher) == ["student_single", "answer not in its evidence"]
    assert fates(teacher, student=other) == ["teacher and student report otherwise"] * 2


@pytest.mark.parametrize(
    ("held_out", "reason"),
    [
        ("who made IT", "held out: same question"),
        ("Who made Heat", "held out: as a sub-query"),
        ("Who made Heat, the film of 1995?", None),
    ],
)
def test_held_out_questions_are_not_learnt(held_out: str, reason: str | None) -> None:
    """They may be the question, or a sub-query."""
    samples, rejected = filtered([only(GOOD, GOOD)], {}, held_out=HeldOut([held_out]))
    assert (len(samples), rejected) == ((0, {reason: 2}) if reason else (2, {}))


def test_single_searches_of_the_student_are_kept() -> None:
    """The student learns from what it can do already; its own second search was never tested."""
    samples, rejected = filtered(
        [only(sample(ONE, WRONG), GOOD), only(sample(ONE, WRONG), sample(TWO, RIGHT))], {}
    )
    assert [kept.stratum for kept in samples] == ["student_single"]
    assert rejected == {"wrong answer": 2, "student searched twice": 1}


def test_equal_sub_queries_are_kept_once_per_stratum() -> None:
    """Spelling does not matter; teacher and student both count."""
    repeated = sample(ONE, RIGHT, "who made the HEAT")
    samples, rejected = filtered([only(GOOD, GOOD), only(repeated, repeated)], {})
    assert [kept.stratum for kept in samples] == ["student_single", "teacher_single"]
    assert rejected == {"duplicate sub-query": 2}
    samples, _ = filtered([only(sample(ONE, WRONG), sample(ONE, WRONG)), only(GOOD, GOOD)], {})
    assert len(samples) == 2, "a rejected one makes no other a duplicate"


def group(*runs: tuple[str, int | None, Sequence[Sequence[str]]]) -> Group:
    """Return a group of runs, given their answers, their tokens (None if a call's are unknown), and
    their executors' turns.
    """

    def run_of(number: int, answer: str, tokens: int | None, turns: Sequence[Sequence[str]]) -> Run:
        works = tuple(
            executed(*execution_turns, sub_query=f"{number}.{place}")
            for place, execution_turns in enumerate(turns)
        )
        delegation = Conversation((Message("user", f"run {number}"),))
        usage = None if tokens is None else Usage(tokens, 0)
        trajectory = Trajectory(answer, "answered", works, (len(works),), delegation=delegation)
        return run_row(
            f"q1/{number}", calls=[call("q1", usage=usage)], result=trajectory, events=()
        )

    question = Question("q1", "Who made it?", ("Michael Mann",), "musique")
    return Group(
        question, tuple(run_of(number, *run_fields) for number, run_fields in enumerate(runs))
    )


def kept_of(found: Group, **how: bool) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Return strata with the sub-query or the delegator's prompt, and rejections by reason."""
    samples, rejected = filtered([found], {}, **how)  # type: ignore[arg-type]
    named: list[tuple[str, str]] = []
    for kept in samples:
        of = kept.work
        named.append(
            (kept.stratum, of.messages[0].content if isinstance(of, Conversation) else of.sub_query)
        )
    return named, dict(rejected)


BEST = [("Michael Mann", 90, [ONE]), ("Mann", 10, [ONE]), ("nobody", 5, [ONE])]


@pytest.mark.parametrize(
    ("runs", "best"),
    [
        (BEST, 0),
        ([("Mann", 10, [ONE]), ("Michael Mann", 90, [ONE]), ("Michael Mann", 80, [ONE])], 2),
        ([("nobody", 1, [ONE]), ("Michael Mann", None, [ONE]), ("Michael Mann", 99, [ONE])], 2),
        ([("nobody", 1, [ONE]), ("Michael Mann", 80, [ONE]), ("Michael Mann", 80, [ONE])], 1),
    ],
)
def test_of_a_group_the_best_run_is_kept(
    runs: list[tuple[str, int | None, list[tuple[str, ...]]]], best: int
) -> None:
    """It is the right run with the fewest tokens (unknown ones last), then the first.

    Samples are of all roles.
    """
    samples, rejected = kept_of(group(*runs))
    assert samples == [("best_delegator", f"run {best}"), ("best_executor", f"{best}.0")]
    assert rejected == {"not the best run": 4}


def test_groups_without_a_right_or_a_wrong_run_are_marked() -> None:
    """Without a right run, a group teaches nothing.

    Without a wrong run, it teaches brevity, as a stratum that the mix can leave out.
    """
    samples, rejected = kept_of(group(("Mann", 9, [ONE]), ("nobody", 8, [ONE])))
    assert (samples, rejected) == ([], {"no run is right": 4})
    easy = group(("Michael Mann", 9, [ONE]), ("Michael Mann", 8, [ONE]))
    samples, rejected = kept_of(easy)
    assert samples == [("easy_delegator", "run 1"), ("easy_executor", "1.0")]
    assert filtered([easy], parse_mix("easy_executor=0,easy_delegator=0"))[0] == []


def test_of_the_best_run_supported_reports_are_kept() -> None:
    """Others may have been guessed; without the filter, all its reports are kept."""
    best_group = group(("Michael Mann", 9, [ONE, GUESS, ["?"] * 3]), ("nobody", 8, []))
    samples, rejected = kept_of(best_group)
    assert samples == [("best_delegator", "run 0"), ("best_executor", "0.0")]
    assert rejected == {"evidence in no passage": 1, "no report": 1, "not the best run": 1}
    assert [name for name, _ in kept_of(best_group, none=True)[0]] == [
        "best_delegator",
        *["best_executor"] * 2,
    ]
    held_out = HeldOut(["0.1"])
    reason = "held out: as a sub-query"
    assert filtered([best_group], {}, held_out=held_out) == ([], {reason: 5})


def test_groups_are_read_with_best_only(tmp_path: Path) -> None:
    """Without `--best` they are no rollouts; the figures add up."""
    file = write_lines(tmp_path / "rollouts.jsonl", [group(*BEST)])
    command = ["filter", str(file), "--out", str(tmp_path / "filtered")]
    with pytest.raises(BadConfig, match=r"rollouts.jsonl:1: .*run `rolegate sft rollout` again"):
        run(command)
    command[-1] += "-best"
    assert run([*command, "--best"]) == 0
    figures = read_manifest(tmp_path / "filtered-best").figures
    assert (figures["candidates"], figures["strata"]) == (
        6,
        {"best_delegator": 1, "best_executor": 1},
    )
    assert [kept.stratum for kept in read_samples(tmp_path / "filtered-best")] == [
        "best_delegator",
        "best_executor",
    ]


def many() -> list[Rollout]:
    return [
        only(sample(ONE, RIGHT, f"Who made film {n}?"), sample(TWO, RIGHT, f"Film {n}?"))
        for n in range(20)
    ]


def test_the_mix_caps_a_stratum_reproducibly() -> None:
    """A seed always picks the same trajectories, in order; another seed picks others."""
    samples, rejected = filtered(many(), parse_mix("teacher_single=5,student_single=9"))
    repeated, _ = filtered(many(), parse_mix("teacher_single=5"))
    reseeded, _ = filtered(many(), parse_mix("teacher_single=5"), seed=2)
    places = [int(kept.execution.sub_query.strip("?").split()[-1]) for kept in samples]
    assert samples == repeated != reseeded
    assert len(samples) == 5 and places == sorted(places) and places != list(range(5))
    assert rejected["over the mix"] == 15


def test_without_a_filter_every_report_is_kept() -> None:
    """This includes wrong, unnecessary and repeated reports."""
    rollouts = [
        only(sample(TWO, WRONG), sample(TWO, RIGHT)),
        only(GOOD, GOOD),
        only(GOOD, sample(["?"] * 3, RIGHT)),
    ]
    samples, rejected = filtered(rollouts, {}, none=True)
    strata = [kept.stratum for kept in samples]
    assert strata == [
        "student_multi",
        "teacher_multi",
        "student_single",
        "teacher_single",
        "teacher_single",
    ]
    assert rejected == {"no report": 1}


def test_kept_and_rejected_counts_add_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The manifest has the figures, and the tables show them."""
    rollouts = [*many(), only(GOOD, sample(ONE, WRONG)), only(sample(TWO, RIGHT), GOOD, GOOD)]
    rollouts += [
        rollout(
            SubQueryRollout(GOOD, GOOD), SubQueryRollout(GOOD, GOOD), question="q2", source="hotpot"
        )
    ]
    file = write_lines(tmp_path / "rollouts.jsonl", rollouts)
    assert (
        run(
            ["filter", str(file), "--out", str(tmp_path / "filtered"), "--mix", "teacher_single=10"]
        )
        == 0
    )
    figures = read_manifest(tmp_path / "filtered").figures
    assert figures["candidates"] == 2 * (len(rollouts) + 1)
    assert figures["samples"] + sum(figures["rejected"].values()) == figures["candidates"]
    assert (
        figures["samples"]
        == sum(figures["strata"].values())
        == len(list(read_samples(tmp_path / "filtered")))
    )
    assert figures["sources"] == {"musique": {"samples": 11, "questions": 1}}
    assert figures["strata"].keys() <= set(get_args(Stratum))
    assert "wrong answer" in (shown := capsys.readouterr().out) and "musique" in shown


def test_a_finished_step_is_not_repeated(tmp_path: Path) -> None:
    """Repeating the command shows the same tables; other settings need another folder."""
    file = write_lines(tmp_path / "rollouts.jsonl", many())
    command = ["filter", str(file), "--out", str(tmp_path / "filtered")]
    run(command)
    original = (tmp_path / "filtered" / RESULT).stat()
    run(command)
    assert (tmp_path / "filtered" / RESULT).stat() == original
    with pytest.raises(BadConfig, match=r"begun with settings\.seed 1 \(now 2\)"):
        run([*command, "--seed", "2"])


@pytest.mark.parametrize(
    "damage", [lambda line: line[: len(line) // 2] + b"\n", lambda _: b'{"question": 1}\n']
)
def test_a_line_that_is_no_rollout_is_named(tmp_path: Path, damage: object) -> None:
    """It is torn, or of another schema.

    The error has the file, the line and what to do; nothing is written.
    """
    line = msgspec.json.encode(only(GOOD, GOOD)) + b"\n"
    assert callable(damage)
    (tmp_path / "rollouts.jsonl").write_bytes(line + damage(line))
    with pytest.raises(BadConfig, match=r"rollouts\.jsonl:2: .*run `rolegate sft rollout` again"):
        run(["filter", str(tmp_path / "rollouts.jsonl"), "--out", str(tmp_path / "filtered")])
    assert not (tmp_path / "filtered" / RESULT).exists()


@pytest.mark.parametrize(
    "mix", ["all=3", "teacher_single", "teacher_single=-1", "teacher_single=many"]
)
def test_an_unknown_stratum_in_a_mix_is_refused(mix: str) -> None:
    """The error has the known strata."""
    with pytest.raises(BadConfig, match="teacher_multi"):
        parse_mix(mix)
