"""Questions rolled out: what others would have made of the teacher's sub-queries, and many of
them in one file.
"""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from executor_sft.call_cache import CallCache
from executor_sft.questions import Question
from executor_sft.rollout import Rollout, Verdict, roll_out_all
from router.errors import BadConfig, OutOfTime, UpstreamRefused, UpstreamUnavailable
from router.models import Prompt
from router.models.model import Answer
from router.trace import Trajectory
from tests.executor_sft.scripted_roles import ScriptedRoles, questions, searches_twice
from tests.router.deployment import lasting

(QUESTION,) = questions(1)
RIGHT = Verdict(exact_match=True)
WRONG = Verdict(exact_match=False)


async def test_another_report_leads_to_another_answer() -> None:
    """The student's one search finds another name, and the run that goes on from there ends
    elsewhere.
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
    """Nothing is asked beyond the student's own work."""
    roles = ScriptedRoles(student=searches_twice)
    rollout = await roles.worker().roll_out(QUESTION)
    assert [work.student.answer for work in rollout.sub_queries] == ["home of MannF0"] * 2
    capped = [prompt for prompt in roles.backbone.prompts if "Nobody" in repr(prompt)]
    assert (len(roles.backbone.prompts) - len(capped), len(roles.student.prompts)) == (3, 5)


async def test_what_follows_a_swapped_report_is_the_teachers() -> None:
    """The student never works on what the backbone asks after its report."""
    roles = ScriptedRoles()
    await roles.worker().roll_out(QUESTION)
    asked = {prompt.messages[1].content for prompt in roles.student.prompts}
    assert asked == {"Who directed F0?", "Where was MannF0 born?"}
    assert "Where was Pacino born?" in {
        prompt.messages[1].content for prompt in roles.teacher.prompts
    }


async def test_capped() -> None:
    """Only what took the teacher two searches in a correct run is done again with one, by the
    teacher.
    """
    rollout = await ScriptedRoles().worker().roll_out(QUESTION)
    first, second = rollout.sub_queries
    assert [len(one.execution.searches) for one in first.capped] == [1, 1]
    assert {(one.answer, one.verdict) for one in first.capped} == {("home of Nobody", WRONG)}
    assert second.capped == ()
    wrong = await ScriptedRoles().worker().roll_out(Question("q", QUESTION.text, ("elsewhere",)))
    assert [work.capped for work in wrong.sub_queries] == [(), ()]


@pytest.mark.parametrize(
    ("reply", "accepted"), [("<verdict>incorrect</verdict>", False), ("Not true", None)]
)
async def test_the_judge_is_asked_only_where_exact_match_holds(
    reply: str, accepted: bool | None
) -> None:
    """An answer that it rejects, or an unreadable reply, is not correct, so nothing is capped."""
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


async def test_without_a_right_answer_the_judge_goes_by_the_evidence() -> None:
    """Except for an answer that somebody has called wrong."""
    roles = ScriptedRoles(judge=lambda prompt: "<verdict>correct</verdict>")
    rollout = await roles.worker().roll_out(
        Question("q", QUESTION.text, (), rejected=("Home of Pacino!",))
    )
    assert rollout.verdict == Verdict(exact_match=None, accepted=True, judged=True)
    assert rollout.verdict.correct
    assert rollout.sub_queries[0].student.verdict == WRONG
    assert roles.judge is not None
    assert "<evidence>The credits say so.</evidence>" in roles.judge.prompts[0].messages[1].content


async def test_an_executor_that_failed_is_no_sample() -> None:
    """Its neutral report, as in service, must not be learnt: an endpoint is unavailable, a prompt
    is refused (the question's own failure), or time ran out.
    """
    gone = UpstreamUnavailable("refuses to connect", endpoint="http://x")

    def fails(prompt: Prompt) -> Answer:
        return gone

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
    """As one start of the command does it."""
    with CallCache.open(folder / "calls.jsonl") as cache:
        path = folder / "rollouts.jsonl"
        return await roll_out_all(roles.worker(cache), QUESTIONS, path, concurrency, lambda: None)


def ids(folder: Path) -> list[str]:
    lines = (folder / "rollouts.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Rollout).question.id for line in lines]


class Stop:
    """Cancels the command after the teacher has replied so many times."""

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
async def test_interrupted_and_started_again(tmp_path: Path, after: list[int]) -> None:
    """Wherever it was stopped, the file is the one of an undisturbed run, and no call was made
    twice.
    """
    undisturbed = ScriptedRoles()
    (tmp_path / "whole").mkdir()
    assert await rolled_out(undisturbed, tmp_path / "whole") == {}
    whole = (tmp_path / "whole" / "rollouts.jsonl").read_bytes()
    assert ids(tmp_path / "whole") == [question.id for question in QUESTIONS]

    asked = Counter[tuple[str, Prompt]]()
    for stop in after:
        asked.update((await interrupted(tmp_path, stop)).asked)
    roles = ScriptedRoles()
    assert await rolled_out(roles, tmp_path) == {}
    asked.update(roles.asked)
    assert (tmp_path / "rollouts.jsonl").read_bytes() == whole
    assert asked == Counter(undisturbed.asked)
    assert set(asked.values()) == {1}


async def test_a_torn_line_is_rolled_out_again(tmp_path: Path) -> None:
    """From what is cached, so at no cost; a whole line of another release is named."""
    await rolled_out(ScriptedRoles(), tmp_path)
    path = tmp_path / "rollouts.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    roles = ScriptedRoles()
    await rolled_out(roles, tmp_path)
    assert (path.read_bytes(), roles.asked) == (whole, [])
    path.write_bytes(b"{}\n")
    with pytest.raises(BadConfig, match=r"rollouts.jsonl:1: .*remove this line"):
        await rolled_out(roles, tmp_path)


async def test_a_teacher_that_dies(tmp_path: Path) -> None:
    """The command stops, says how far it came, and goes on from there once the teacher is back."""
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
    done = len(ids(tmp_path))
    assert 0 < done < 6
    again = ScriptedRoles()
    assert await rolled_out(again, tmp_path) == {}
    assert ids(tmp_path) == [question.id for question in QUESTIONS]
    teacher = [prompt for name, prompt in (*roles.asked, *again.asked) if name == "teacher"]
    assert max(Counter(teacher).values()) <= 2, "a call that failed is made again, no other"
    assert len(teacher) - len(set(teacher)) <= 2


async def test_where_every_question_fails(tmp_path: Path) -> None:
    """A wrong key fails them all alike, so that is the end, and not six failures."""
    roles = ScriptedRoles(
        backbone=lambda prompt: UpstreamRefused("check the API key", endpoint="http://x")
    )
    with pytest.raises(UpstreamRefused, match=r"check the API key\. 0 of 6"):
        await rolled_out(roles, tmp_path)
