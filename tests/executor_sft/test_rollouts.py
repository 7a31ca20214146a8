"""Rollouts of questions: effects of other reports on the teacher's sub-queries, and many questions
in one file.
"""

import asyncio
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from executor_sft.call_cache import CallCache
from executor_sft.questions import Question
from executor_sft.rollout import Rollout, Verdict, roll_out_all
from router.errors import BadConfig, OutOfTime, UpstreamRefused, UpstreamUnavailable
from router.models import Prompt
from router.trace import Trajectory
from tests.executor_sft.scripted_roles import ScriptedRoles, questions, searches_twice
from tests.router.deployment import lasting
from tests.scripted_model import Answer

(QUESTION,) = questions(1)
RIGHT = Verdict(exact_match=True)
WRONG = Verdict(exact_match=False)


async def test_another_report_leads_to_another_answer() -> None:
    """The student's only search finds another name, and the run continues from its report to
    another answer.
    """
    rollout = await ScriptedRoles().worker().roll_out(QUESTION)
    assert isinstance(rollout.trajectory, Trajectory)
    assert (rollout.trajectory.answer, rollout.verdict) == ("home of MannF0", RIGHT)
    first, second = rollout.sub_queries
    assert (first.teacher.answer, len(first.teacher.execution.searches)) == ("home of MannF0", 2)
    assert (first.student.answer, first.student.verdict) == ("home of Pacino", WRONG)
    assert first.student.execution.report.answer == "Pacino"
    assert second.student.answer == "home of MannF0"


async def test_the_same_report_leads_to_the_same_answer_at_no_cost() -> None:
    """Nothing is called beyond the student's own work."""
    roles = ScriptedRoles(student=searches_twice)
    rollout = await roles.worker().roll_out(QUESTION)
    assert [work.student.answer for work in rollout.sub_queries] == ["home of MannF0"] * 2
    capped = [prompt for prompt in roles.backbone.prompts if "Nobody" in repr(prompt)]
    assert (len(roles.backbone.prompts) - len(capped), len(roles.student.prompts)) == (3, 5)


async def test_the_teacher_works_after_a_swapped_report() -> None:
    """The student never works on the sub-queries after its report."""
    roles = ScriptedRoles()
    await roles.worker().roll_out(QUESTION)
    student_queries = {prompt.messages[1].content for prompt in roles.student.prompts}
    assert student_queries == {"Who directed F0?", "Where was MannF0 born?"}
    assert "Where was Pacino born?" in {
        prompt.messages[1].content for prompt in roles.teacher.prompts
    }


async def test_needless_second_searches_are_tested_with_one_search() -> None:
    """The teacher repeats its two-search work of a correct run with a single search."""
    rollout = await ScriptedRoles().worker().roll_out(QUESTION)
    first, second = rollout.sub_queries
    assert [len(branch.execution.searches) for branch in first.capped] == [1, 1]
    assert {(branch.answer, branch.verdict) for branch in first.capped} == {
        ("home of Nobody", WRONG)
    }
    assert second.capped == ()
    wrong = await ScriptedRoles().worker().roll_out(Question("q", QUESTION.text, ("elsewhere",)))
    assert [work.capped for work in wrong.sub_queries] == [(), ()]


@pytest.mark.parametrize(
    ("reply", "accepted"), [("<verdict>incorrect</verdict>", False), ("Not true", None)]
)
async def test_the_judge_is_asked_only_if_exact_match_holds(
    reply: str, accepted: bool | None
) -> None:
    """An answer that it rejects, or an unreadable reply, is not correct, so nothing is repeated."""
    roles = ScriptedRoles(judge=lambda prompt: reply)
    rollout = await roles.worker().roll_out(QUESTION)
    assert roles.judge is not None
    assert {prompt.messages[1].content for prompt in roles.judge.prompts} == {
        f"<question>{QUESTION.text}</question><right_answer>home of MannF0</right_answer>"
        "<answer>home of MannF0</answer>"
    }
    assert rollout.verdict == Verdict(exact_match=True, accepted=accepted, judged=True)
    assert not rollout.verdict.correct
    assert rollout.sub_queries[0].capped == ()


async def test_without_a_right_answer_the_judge_decides_by_the_evidence() -> None:
    """An answer that feedback calls wrong is not judged."""
    roles = ScriptedRoles(judge=lambda prompt: "<verdict>correct</verdict>")
    rollout = await roles.worker().roll_out(
        Question("q", QUESTION.text, (), rejected=("Home of Pacino!",))
    )
    assert rollout.verdict == Verdict(exact_match=None, accepted=True, judged=True)
    assert rollout.verdict.correct
    assert rollout.sub_queries[0].student.verdict == WRONG
    assert roles.judge is not None
    assert "<evidence>The credits say so.</evidence>" in roles.judge.prompts[0].messages[1].content


async def test_a_failed_executor_is_no_sample() -> None:
    """Its neutral report, as in service, must not be learnt.

    The endpoint is unavailable, a prompt is refused (which fails the question), or time is up.
    """
    unavailable = UpstreamUnavailable("refuses to connect", endpoint="http://x")

    def fails(prompt: Prompt) -> Answer:
        return unavailable

    def refuses(prompt: Prompt) -> Answer:
        unwanted = "Pacino" in prompt.messages[1].content
        return (
            UpstreamRefused("unwanted content", endpoint="http://x")
            if unwanted
            else searches_twice(prompt)
        )

    with pytest.raises(UpstreamUnavailable, match="execution at http://x: refuses to connect"):
        await ScriptedRoles(teacher=fails).worker().roll_out(QUESTION)
    with pytest.raises(UpstreamUnavailable, match="refuses to connect"):
        await ScriptedRoles(student=fails).worker().roll_out(QUESTION)
    with pytest.raises(UpstreamRefused, match="unwanted content"):
        await ScriptedRoles(teacher=refuses).worker().roll_out(QUESTION)
    contexts = iter([lasting(), lasting(0.0)])
    with pytest.raises(OutOfTime, match=r"server\.timeout_s"):
        await replace(ScriptedRoles().worker(), context=lambda: next(contexts)).roll_out(QUESTION)


QUESTIONS = questions(6)


async def rolled_out(roles: ScriptedRoles, folder: Path, concurrency: int = 3) -> dict[str, str]:
    """Roll out as one start of the command does."""
    with CallCache.open(folder / "calls.jsonl") as cache:
        path = folder / "rollouts.jsonl"
        return await roll_out_all(
            roles.worker(cache).roll_out, QUESTIONS, path, concurrency, lambda: None
        )


def ids(folder: Path) -> list[str]:
    lines = (folder / "rollouts.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Rollout).question.id for line in lines]


class Stop:
    """Cancels the command after so many replies of the teacher."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.task: asyncio.Task[dict[str, str]] | None = None

    def __call__(self, prompt: Prompt) -> Answer:
        self.left -= 1
        if self.left == 0 and self.task:
            self.task.cancel()
        return searches_twice(prompt)


async def interrupted(folder: Path, after: int) -> ScriptedRoles:
    """Return the roles with the calls before the interruption."""
    stop = Stop(after)
    roles = ScriptedRoles(teacher=stop)
    stop.task = asyncio.create_task(rolled_out(roles, folder))
    with pytest.raises(asyncio.CancelledError):
        await stop.task
    return roles


@pytest.mark.parametrize("after", [[1], [20], [38], [3, 3, 10, 10]])
async def test_an_interrupted_rollout_resumes(tmp_path: Path, after: list[int]) -> None:
    """The file equals that of an undisturbed rollout, and no call is repeated."""
    undisturbed = ScriptedRoles()
    (tmp_path / "whole").mkdir()
    assert await rolled_out(undisturbed, tmp_path / "whole") == {}
    whole = (tmp_path / "whole" / "rollouts.jsonl").read_bytes()
    assert ids(tmp_path / "whole") == [question.id for question in QUESTIONS]

    call_counts = Counter[tuple[str, Prompt]]()
    for stop in after:
        call_counts.update((await interrupted(tmp_path, stop)).asked)
    roles = ScriptedRoles()
    assert await rolled_out(roles, tmp_path) == {}
    call_counts.update(roles.asked)
    assert (tmp_path / "rollouts.jsonl").read_bytes() == whole
    assert call_counts == Counter(undisturbed.asked)
    assert set(call_counts.values()) == {1}


async def test_a_torn_line_is_rolled_out_again(tmp_path: Path) -> None:
    """Its calls are cached, so it costs nothing; a line of another release is an error with its
    place.
    """
    await rolled_out(ScriptedRoles(), tmp_path)
    path = tmp_path / "rollouts.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    roles = ScriptedRoles()
    await rolled_out(roles, tmp_path)
    assert (path.read_bytes(), roles.asked) == (content, [])
    path.write_bytes(b"{}\n")
    with pytest.raises(BadConfig, match=r"rollouts.jsonl:1: .*remove this line"):
        await rolled_out(roles, tmp_path)


async def test_a_dead_teacher_stops_the_command(tmp_path: Path) -> None:
    """The error has the progress, and the command resumes once the teacher is back."""
    calls = 0

    def dies(prompt: Prompt) -> Answer:
        nonlocal calls
        calls += 1
        return (
            UpstreamUnavailable("gone", endpoint="http://x")
            if calls > 25
            else searches_twice(prompt)
        )

    roles = ScriptedRoles(teacher=dies)
    with pytest.raises(
        UpstreamUnavailable, match=r"http://x.* of 6 questions are rolled out\..*same command"
    ):
        await rolled_out(roles, tmp_path, concurrency=2)
    finished_count = len(ids(tmp_path))
    assert 0 < finished_count < 6
    restarted = ScriptedRoles()
    assert await rolled_out(restarted, tmp_path) == {}
    assert ids(tmp_path) == [question.id for question in QUESTIONS]
    teacher = [prompt for name, prompt in (*roles.asked, *restarted.asked) if name == "teacher"]
    assert max(Counter(teacher).values()) <= 2, "a call that failed is made again, no other"
    assert len(teacher) - len(set(teacher)) <= 2


async def test_failure_of_every_question_ends_the_rollout(tmp_path: Path) -> None:
    """A wrong key fails them all, so it is one error and not six."""
    roles = ScriptedRoles(
        backbone=lambda prompt: UpstreamRefused("check the API key", endpoint="http://x")
    )
    with pytest.raises(UpstreamRefused, match=r"check the API key\. 0 of 6"):
        await rolled_out(roles, tmp_path)
