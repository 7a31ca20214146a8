"""One question rolled out: what others would have made of the teacher's sub-queries, and where that leads to."""

from dataclasses import replace

import pytest

from executor_sft.rollouts import Question, Verdict
from router.errors import OutOfTime, UpstreamRefused, UpstreamUnavailable
from router.models.model import Prompt
from tests.executor_sft.scripted_roles import ScriptedRoles, questions, searches_twice
from tests.router.deployment import lasting

(QUESTION,) = questions(1)
RIGHT, WRONG = Verdict(exact_match=True), Verdict(exact_match=False)


async def test_another_report_leads_to_another_answer() -> None:
    """The student's one search finds another name, and the run that goes on from there ends elsewhere."""
    rollout = await ScriptedRoles().roller().roll_out(QUESTION)
    assert (rollout.trajectory.answer, rollout.verdict) == ("home of MannF0", RIGHT)
    first, second = rollout.sub_queries
    assert (first.teacher.answer, len(first.teacher.execution.searches)) == ("home of MannF0", 2)
    assert (first.student.answer, first.student.verdict) == ("home of Pacino", WRONG)
    assert first.student.execution.report.answer == "Pacino"
    assert second.student.answer == "home of MannF0"


async def test_the_same_report_leads_to_the_same_answer_at_no_cost() -> None:
    """Nothing is asked beyond the student's own work."""
    roles = ScriptedRoles(student=searches_twice)
    rollout = await roles.roller().roll_out(QUESTION)
    assert [work.student.answer for work in rollout.sub_queries] == ["home of MannF0"] * 2
    capped = [prompt for prompt in roles.backbone.prompts if "Nobody" in repr(prompt)]
    assert (len(roles.backbone.prompts) - len(capped), len(roles.student.prompts)) == (3, 5)


async def test_what_follows_a_swapped_report_is_the_teachers() -> None:
    """The student never works on what the backbone asks after its report."""
    roles = ScriptedRoles()
    await roles.roller().roll_out(QUESTION)
    asked = {prompt.messages[1].content for prompt in roles.student.prompts}
    assert asked == {"Who directed F0?", "Where was MannF0 born?"}
    assert "Where was Pacino born?" in {prompt.messages[1].content for prompt in roles.teacher.prompts}


async def test_capped() -> None:
    """Only what took the teacher two searches in a correct run is done again with one, by the teacher."""
    rollout = await ScriptedRoles().roller().roll_out(QUESTION)
    first, second = rollout.sub_queries
    assert first.capped is not None
    assert len(first.capped.execution.searches) == 1
    assert (first.capped.answer, first.capped.verdict) == ("home of Nobody", WRONG)
    assert second.capped is None
    wrong = await ScriptedRoles().roller().roll_out(Question("q", QUESTION.text, ("elsewhere",)))
    assert [work.capped for work in wrong.sub_queries] == [None, None]


async def test_the_judge_is_asked_only_where_exact_match_holds() -> None:
    """And what it does not accept is not correct, so nothing is capped either."""
    roles = ScriptedRoles(judge=lambda prompt: "<verdict>incorrect</verdict>")
    rollout = await roles.roller().roll_out(QUESTION)
    assert roles.judge is not None
    assert [prompt.messages[1].content for prompt in roles.judge.prompts] == [
        f"<question>{QUESTION.text}</question><right_answer>home of MannF0</right_answer>"
        "<answer>home of MannF0</answer>"
    ]
    assert rollout.verdict == Verdict(exact_match=True, accepted=False, judged=True)
    assert not rollout.verdict.correct
    assert rollout.sub_queries[0].capped is None


async def test_a_judge_that_cannot_be_read_has_not_accepted() -> None:
    """That is known apart from a judge that said no."""
    rollout = await ScriptedRoles(judge=lambda prompt: "Not true").roller().roll_out(QUESTION)
    assert rollout.verdict == Verdict(exact_match=True, accepted=None, judged=True)
    assert not rollout.verdict.correct


async def test_without_a_right_answer_the_judge_goes_by_the_evidence() -> None:
    """Except for an answer that somebody has called wrong."""
    roles = ScriptedRoles(judge=lambda prompt: "<verdict>correct</verdict>")
    rollout = await roles.roller().roll_out(Question("q", QUESTION.text, (), rejected=("Home of Pacino!",)))
    assert rollout.verdict == Verdict(exact_match=None, accepted=True, judged=True)
    assert rollout.verdict.correct
    assert rollout.sub_queries[0].student.verdict == WRONG
    assert roles.judge is not None
    assert "<evidence>The credits say so.</evidence>" in roles.judge.prompts[0].messages[1].content


async def test_an_endpoint_that_is_gone_is_no_sample() -> None:
    """What an executor makes of it in service, a neutral report, must not be learnt from."""
    gone = UpstreamUnavailable("refuses to connect", endpoint="http://x")

    def fails(prompt: Prompt) -> UpstreamUnavailable:
        return gone

    with pytest.raises(UpstreamUnavailable, match="execution at scripted://teacher: model 'teacher': unavailable"):
        await ScriptedRoles(teacher=fails).roller().roll_out(QUESTION)
    with pytest.raises(UpstreamUnavailable, match="scripted://student"):
        await ScriptedRoles(student=fails).roller().roll_out(QUESTION)


async def test_a_model_that_refuses_one_prompt() -> None:
    """Is the question's own failure, not the endpoint's end."""

    def refuses(prompt: Prompt) -> UpstreamRefused | str:
        if "Pacino" in prompt.messages[1].content:
            return UpstreamRefused("unwanted content", endpoint="http://x")
        return searches_twice(prompt)

    with pytest.raises(UpstreamRefused, match="refused"):
        await ScriptedRoles(teacher=refuses).roller().roll_out(QUESTION)


async def test_time_that_ran_out_is_no_sample() -> None:
    """Where the clock cut an executor off, nobody knows what it would have found."""
    contexts = iter([lasting(), lasting(0.0)])
    roller = replace(ScriptedRoles().roller(), context=lambda: next(contexts))
    with pytest.raises(OutOfTime, match=r"server\.timeout_s"):
        await roller.roll_out(QUESTION)
