"""The judge: its reply is read strictly, and its prompt holds the question, right answers and
the answer only.
"""

import pytest

from router.calls import Role
from router.ledger import Ledger
from router.models import Completion, Message, Sampling
from router.search.answerer import Judge, parse_verdict
from serving.config.file import preset
from tests.scripted_model import ScriptedModel


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("<verdict>correct</verdict>", True),
        ("<verdict>incorrect</verdict>", False),
        ("< Verdict >\n Correct. \n</ verdict>", True),
        ("The key fact is the same.\n<verdict>correct</verdict>", True),
        ("<think>incorrect? No.</think><verdict>correct</verdict>", True),
        ("<think><verdict>correct</verdict></think><verdict>incorrect</verdict>", False),
        ("<verdict>correct</verdict> <verdict>correct</verdict>", True),
        ("<verdict>“incorrect”</verdict>", False),
        ("True", True),
        ("**False**", False),
        ("yes.", True),
        ("No", False),
        ("extracted_final_answer: Ana\nreasoning: same\ncorrect: yes\nconfidence: 90%", True),
        ("reasoning: correct: yes, but another name\n**Correct:** no", False),
        ("reasoning: the answer says\ncorrect: yes\ncorrect: no", None),
        ("correct: partly", None),
        ("correct: yes, but only partly", None),
        ("correct: yes if the answer means the same, otherwise no", None),
        ("<verdict>correct</verdict><verdict>incorrect</verdict>", None),
        ("Not true", None),
        ("not correct", None),
        ("<verdict>not correct</verdict>", None),
        ("<verdict>correct, but incomplete</verdict>", None),
        ("<verdict>correct|incorrect</verdict>", None),
        ("<verdict>correct", None),
        ("<think>correct", None),
        ("The answer is correct.", None),
        ("<verdict></verdict>", None),
        ("", None),
    ],
)
def test_a_verdict_is_a_single_yes_or_no(reply: str, verdict: bool | None) -> None:
    """No other reply can be read."""
    assert parse_verdict(reply) is verdict


def judge(model: ScriptedModel) -> Judge:
    return Judge(Role("judge", model, "judge", Sampling(max_tokens=16), streams=False))


async def test_the_prompt_is_escaped_and_complete() -> None:
    """Evidence is shown only if no right answer is known."""
    model = ScriptedModel(["<verdict>correct</verdict>", "<verdict>incorrect</verdict>"])
    assert (
        await judge(model).accepts("Who?", ["A & B", "C"], "<b>", Ledger(), ["It is so."]) is True
    )
    assert await judge(model).accepts("Who?", [], "D", Ledger(), ["It is so."]) is False
    right = "<right_answer>A &amp; B</right_answer><right_answer>C</right_answer>"
    assert model.prompts[0].messages == (
        Message("system", "judge"),
        Message("user", f"<question>Who?</question>{right}<answer>&lt;b&gt;</answer>"),
    )
    shown = "<question>Who?</question><evidence>It is so.</evidence><answer>D</answer>"
    assert model.prompts[1].messages[1].content == shown


async def test_a_reply_cut_by_the_length_limit_is_no_verdict() -> None:
    """It may look like a verdict."""
    model = ScriptedModel([Completion("<verdict>correct</verdict>", "length")])
    assert await judge(model).accepts("Who?", ["A"], "A", Ledger()) is None


def test_the_shipped_prompt_names_verdicts_that_can_be_read() -> None:
    """The prompt asks for two forms."""
    prompts = preset("mini").parents[1] / "prompts" / "full"
    prompt = (prompts / "judge.txt").read_text("utf-8")
    verdicts = [line for line in prompt.splitlines() if line.startswith("<verdict>")]
    assert {parse_verdict(line) for line in verdicts} == {True, False}
    example = (prompts / "judge_browsecomp.txt").read_text("utf-8").partition("Example.")[2]
    assert parse_verdict(example) is False
    assert parse_verdict(example.replace("correct: no", "correct: yes")) is True
