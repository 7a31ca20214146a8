"""Questions of a conversation are written so that they can be understood alone."""

import pytest

from router.errors import BadRequest, MalformedOutput, RequestIdTaken
from router.ledger import Ledger
from router.models import Completion, Message
from router.runs import RequestOptions
from router.runs.gateway import MAX_HISTORY, MAX_HISTORY_CHARS, AnswerRequest, latest
from router.search.condenser import Condenser
from router.trace import Run, Trajectory
from router.trace.export import agent_trajectories, export_row
from router.trace.redaction import redacted
from router.trace.turns import work_of
from tests.router.deployment import Deployment, Kept, role
from tests.scripted_model import ScriptedModel

HISTORY = (Message("user", "Tell me about Heat."), Message("assistant", "It is a <film>."))
ASKED = "Who directed it?"
ALONE = "Who directed Heat?"


async def condensed(written: str, finish_reason: str = "stop") -> tuple[str, str]:
    """Return the question as searched and the question back, for an output of the model that it
    repeats if it is asked for a correction.
    """
    model = ScriptedModel([Completion(written, finish_reason)] * 2)
    condensing, asked_back = await Condenser(role("delegation", model)).condense(
        HISTORY, ASKED, Ledger()
    )
    return condensing.question, asked_back


@pytest.mark.parametrize(
    ("written", "question"),
    [
        (f"<question>{ALONE}</question>", ALONE),
        (f"<think>It may be Heat.</think><question>{ALONE}", ALONE),
        (f"<question>it</question> <question>{ALONE}</question>", ALONE),
        ("<question>Who directed\n Heat &amp; Dust?</question>", "Who directed Heat & Dust?"),
        ("<question>谁导演了《盗火线》？</question>", "谁导演了《盗火线》？"),
    ],
)
async def test_the_question_is_the_last_that_the_model_wrote(written: str, question: str) -> None:
    assert await condensed(written) == (question, "")


async def test_a_question_back_is_read() -> None:
    written = "<clarify>Which film do you mean?</clarify>"
    assert await condensed(written) == ("", "Which film do you mean?")


@pytest.mark.parametrize("written", [ALONE, "", "<question></question>"])
async def test_malformed_outputs_are_no_question(written: str) -> None:
    """Neither a question nor a question back is guessed."""
    assert await condensed(written) == ("", "")


async def test_a_question_that_was_cut_off_is_not_searched() -> None:
    assert await condensed("<question>Who directed", "length") == ("", "")


async def answered(*written: str) -> tuple[Run, Deployment]:
    """Return the run of a question with a history, and the deployment that answered it."""
    deployment = Deployment(condenser=ScriptedModel(list(written), "backbone"))
    run = await deployment.gateway().answer(AnswerRequest(ASKED, history=HISTORY), RequestOptions())
    return run, deployment


async def test_the_search_sees_only_the_question_as_it_was_written() -> None:
    """The condenser sees the history and the question, with their markup escaped."""
    run, deployment = await answered(f"<question>{ALONE}</question>")
    assert isinstance(deployment.condenser, ScriptedModel)
    assert isinstance(deployment.delegator, ScriptedModel)
    assert isinstance(deployment.answerer, ScriptedModel)
    assert [message.content for message in deployment.condenser.prompts[0].messages] == [
        "condense",
        "<history><user>Tell me about Heat.</user><assistant>It is a &lt;film&gt;.</assistant>"
        "</history><question>Who directed it?</question>",
    ]
    shown = [*deployment.delegator.prompts, *deployment.answerer.prompts]
    texts = " ".join(message.content for prompt in shown for message in prompt.messages)
    assert ALONE in texts
    assert ASKED not in texts
    assert "Tell me" not in texts
    assert isinstance(run.result, Trajectory)
    assert (run.request, run.question, run.result.answer) == (ASKED, ALONE, "Michael Mann")


async def test_the_call_is_booked_with_its_purpose() -> None:
    """It belongs to the delegation role, and to a separate agent."""
    run, _ = await answered(f"<question>{ALONE}</question>")
    first = run.calls[0]
    assert (first.role, first.purpose) == ("delegation", "condense")
    assert [call.purpose for call in run.calls[1:]] == ["first"] * (len(run.calls) - 1)
    assert "condense" in {work.agent.path for work in work_of(run)}
    assert run.settings["condense"] != run.settings["delegation"]


async def test_without_history_no_call_is_made() -> None:
    deployment = Deployment()
    run = await deployment.gateway().answer(ALONE, RequestOptions())
    assert "condense" not in {call.purpose for call in run.calls}
    assert "condense" not in run.settings
    assert run.question == ALONE


async def test_a_question_back_is_the_answer() -> None:
    """Nothing is searched, and such a run is neither supported nor unsupported by sources."""
    run, deployment = await answered("<clarify>Whom do you mean?</clarify>")
    assert isinstance(run.result, Trajectory)
    assert (run.result.outcome, run.result.answer) == ("clarify", "Whom do you mean?")
    assert (run.question, run.unsupported, len(run.calls)) == ("", False, 1)
    assert isinstance(deployment.delegator, ScriptedModel)
    assert not deployment.delegator.prompts


async def test_a_malformed_output_is_corrected_once() -> None:
    """Both calls belong to the condenser."""
    run, _ = await answered("hello", f"<question>{ALONE}</question>")
    assert isinstance(run.result, Trajectory)
    assert (run.question, run.result.outcome) == (ALONE, "answered")
    assert [call.purpose for call in run.calls[:3]] == ["condense", "condense", "first"]


async def test_a_malformed_correction_is_a_fault_of_the_model() -> None:
    """It is not a question back to the user. The outputs stay in the run."""
    deployment = Deployment(condenser=ScriptedModel(["hello", "hello again"], "backbone"))
    store = Kept()
    with pytest.raises(
        MalformedOutput, match="output of model 'backbone' does not have the format"
    ):
        await deployment.gateway(store).answer(
            AnswerRequest(ASKED, history=HISTORY), RequestOptions()
        )
    (run,) = store.runs
    assert isinstance(run.result, Trajectory)
    assert run.status == "failed"
    assert run.result.condensing
    assert run.result.condensing.conversation
    outputs = run.result.condensing.conversation.outputs
    assert [output.text for output in outputs] == ["hello", "hello again"]


async def test_exports_have_the_question_as_it_was_searched() -> None:
    run, _ = await answered(f"<question>{ALONE}</question>")
    row = export_row(run)
    assert (row.request, row.question) == (ASKED, ALONE)
    lines = {line.agent: line for line in agent_trajectories(run, ["Michael Mann"])}
    assert {line.question for line in lines.values()} == {ALONE}
    assert len(lines["condense"].turns) == 1


async def test_redaction_removes_the_conversation() -> None:
    run, _ = await answered(f"<question>{ALONE}</question>")
    blank = redacted(run)
    assert blank.question == ""
    assert "Heat" not in str(blank)
    assert "Tell me" not in str(blank)


async def test_another_history_is_another_request() -> None:
    """The same `request_id` with the same history returns the stored run."""
    deployment = Deployment(condenser=ScriptedModel([f"<question>{ALONE}</question>"], "backbone"))
    gateway = deployment.gateway(Kept())
    options = RequestOptions(request_id="mine")
    first = await gateway.answer(AnswerRequest(ASKED, history=HISTORY), options)
    again = await gateway.answer(AnswerRequest(ASKED, history=HISTORY), options)
    assert again.id == first.id
    with pytest.raises(RequestIdTaken):
        await gateway.answer(AnswerRequest(ASKED, history=HISTORY[:1]), options)


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ((Message("user", "q"),) * 41, "history has 41 messages; the limit is 40"),
        ((Message("user", "q" * 40_000),), "history has 40000 characters; the limit is 32000"),
        ((Message("system", "q"),), r"history\[0\].role is 'system'"),
    ],
)
async def test_history_is_bounded(history: tuple[Message, ...], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        await Deployment().gateway().answer(AnswerRequest(ASKED, history=history), RequestOptions())


def test_the_latest_messages_are_kept() -> None:
    """As many as a request may have."""
    long = [Message("user", str(number)) for number in range(100)]
    assert latest(long) == tuple(long[-MAX_HISTORY:])
    assert latest([Message("user", "x" * MAX_HISTORY_CHARS), *HISTORY]) == HISTORY
    assert latest(HISTORY) == HISTORY
    assert latest([]) == ()
