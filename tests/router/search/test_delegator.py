"""The delegator: one decision a round, from the question, its own outputs and the reports."""

import pytest

from router.ledger import Ledger
from router.models import Completion, Message
from router.protocol import NO_EVIDENCE, Report, prompts
from router.protocol.decision import Dispatch, Stop
from router.protocol.tags import Malformed
from router.search import Delegator
from router.trace import Conversation, Execution
from tests.router.deployment import STOP, block, role
from tests.scripted_model import Answer, ScriptedModel

QUESTION = "Was the director of Heat born before 1950?"


def delegator(*answers: Answer, limit: int = 8) -> tuple[Delegator, ScriptedModel]:
    """Return a delegator and the model behind it."""
    model = ScriptedModel(answers)
    return Delegator(role("delegation", model), limit), model


def executed(sub_query: str, report: Report) -> Execution:
    """Return an execution with a trajectory that only the trace may show."""
    private = Conversation((Message("system", "private"),), (Completion("private", "stop"),))
    return Execution(sub_query, report, "reported", (), private)


async def test_a_decision_joins_the_conversation() -> None:
    """The model sees its prompt and the question."""
    asked, model = delegator(block("Who directed Heat?"))
    decision, conversation = await asked.decide(asked.open(f"{QUESTION} <b>"), Ledger())
    assert decision == Dispatch(("Who directed Heat?",), ())
    (prompt,) = model.prompts
    assert prompt.messages == (
        Message("system", "delegate"),
        Message("user", f"{QUESTION} &lt;b&gt;"),
    )
    assert prompt.stop == ("</search>",)
    assert conversation.messages[2:] == (Message("assistant", block("Who directed Heat?")),)


@pytest.mark.parametrize("bad", ["He was born in 1943.", "", "<search>[]</search>", "<think>a"])
async def test_malformed_output_is_corrected_once(bad: str) -> None:
    """The correction is a separate turn, booked as a correction."""
    ledger = Ledger()
    asked, model = delegator(bad, block("Who directed Heat?"))
    decision, conversation = await asked.decide(asked.open(QUESTION), ledger)
    assert isinstance(decision, Dispatch)
    assert model.prompts[1].messages[-1] == Message("user", prompts.CORRECT_DELEGATION)
    assert [call.purpose for call in ledger.calls] == ["first", "correction"]
    assert len(conversation.outputs) == 2


async def test_malformed_twice_is_reported() -> None:
    """After a correction the model is not asked again."""
    asked, model = delegator("He was born in 1943.", "Yes.", block("never asked?"))
    decision, _ = await asked.decide(asked.open(QUESTION), Ledger())
    assert isinstance(decision, Malformed)
    assert len(model.prompts) == 2


async def test_each_round_may_be_corrected_once() -> None:
    """A correction leaves one for the next round."""
    asked, model = delegator("hm", block("a?"), "hm", STOP)
    conversation = asked.open(QUESTION)
    for expected in (Dispatch, Stop):
        decision, conversation = await asked.decide(conversation, Ledger())
        assert isinstance(decision, expected)
    assert len(model.prompts) == 4


async def test_complete_questions_of_a_block_cut_by_the_length_limit_are_dispatched() -> None:
    asked, _ = delegator(Completion('<search>["a?", "b?", "Who is the mo', "length"))
    decision, _ = await asked.decide(asked.open(QUESTION), Ledger())
    assert decision == Dispatch(("a?", "b?"), ())


async def test_reports_are_shown_as_in_the_paper() -> None:
    """They follow its Fig. 7, in the order of the block, and nothing else of the executors is
    shown.
    """
    asked, _ = delegator()
    informed = asked.inform(
        asked.open(QUESTION),
        [executed("a?", Report("A", ("one", "two"))), executed("b?", NO_EVIDENCE)],
        [],
    )
    assert informed.messages[-1] == Message(
        "user",
        '<search_results><result index="0">'
        "<request>a?</request><answer>A</answer><evidence>one\ntwo</evidence></result>"
        '<result index="1"><request>b?</request><answer>no evidence '
        "found</answer><evidence></evidence></result>"
        "</search_results>",
    )
    assert "private" not in repr(informed)


async def test_thinking_stays_in_the_trace_and_out_of_the_next_prompt() -> None:
    asked, _ = delegator(f"<think>I wonder</think>{block('a?')}")
    _, conversation = await asked.decide(asked.open(QUESTION), Ledger())
    assert "I wonder" in conversation.outputs[0].text
    assert "I wonder" not in repr(conversation.messages)


async def test_after_a_stop_string_in_a_thought_none_are_sent() -> None:
    """Engines end the output there, within the thought."""
    output = f"<think>I could <search>x?</search>, or not.</think>{block('a?')}"
    asked, model = delegator(output, output)
    decision, _ = await asked.decide(asked.open(QUESTION), Ledger())
    assert decision == Dispatch(("a?",), ())
    assert [prompt.stop for prompt in model.prompts] == [("</search>",), ()]
