"""The judge: its reply is read strictly, and it sees the question, right answers and the answer
only.
"""

import pytest

from router.calls import Role
from router.ledger import Ledger
from router.models import Completion, Message, Sampling, ScriptedModel
from router.search.answerer import Judge, parse_verdict
from serving.config.file import preset


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
def test_verdicts(reply: str, verdict: bool | None) -> None:
    """One word that says yes or no, alone; everything else cannot be read."""
    assert parse_verdict(reply) is verdict


def judge(model: ScriptedModel) -> Judge:
    return Judge(Role("judge", model, "judge", Sampling(max_tokens=16), streams=False))


async def test_what_it_is_shown() -> None:
    """Everything is escaped; evidence only where no right answer is known."""
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


async def test_a_verdict_that_was_cut_off() -> None:
    """What the length limit ended is no verdict, even where it looks like one."""
    model = ScriptedModel([Completion("<verdict>correct</verdict>", "length")])
    assert await judge(model).accepts("Who?", ["A"], "A", Ledger()) is None


def test_the_shipped_prompt_names_verdicts_that_can_be_read() -> None:
    """Both forms that the prompt asks for are understood."""
    prompt = (preset("mini").parents[1] / "prompts" / "full" / "judge.txt").read_text("utf-8")
    said = [line for line in prompt.splitlines() if line.startswith("<verdict>")]
    assert {parse_verdict(line) for line in said} == {True, False}
