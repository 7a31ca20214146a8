"""The answerer's output: the answer and nothing around it."""

import pytest
from hypothesis import given, settings

from router.protocol.tags import element, escape, one_line
from router.protocol.turns import parse_answer
from tests.router.outputs import FLOODS, OUTPUTS


@pytest.mark.parametrize(
    "text",
    [
        "<answer>Michael Mann</answer>",
        "<answer>\n  Michael\tMann\n</answer>\n",
        "< Answer >Michael Mann</ ANSWER >",
        "The reports agree. <answer>Michael Mann</answer> That is all.",
        "```xml\n<answer>Michael Mann</answer>\n```",
        "<answer>Ridley Scott</answer> No: <answer>Michael Mann</answer>",
        "<answer>Ridley Scott<answer>Michael Mann</answer>",
        "<answer>Michael Mann</answer> or <answer>Ridl",
        "<answer>Michael Mann</answer><answer></answer>",
        "<think><answer>Ridley Scott</answer></think><answer>Michael Mann</answer>",
        "<answer>Ridley Scott</answer></think>Michael Mann",
        "<answer>Michael Mann</answer><think><answer>Ridley Scott</answer>",
        "<answer>Michael Mann",
        "So: <answer>Michael Mann\n",
        "<think>Who?</think><answer>Michael Mann",
        "Michael Mann",
        "\n\nMichael  Mann\n",
        "<think>Who?</think>\n\nMichael Mann",
        "Who?</think>Michael Mann",
        "Michael Mann</answer>",
        "```\nMichael Mann\n```",
        "```text\nMichael Mann```",
        "Answer: Michael Mann",
        "answer : Michael Mann",
        "**Answer:** Michael Mann",
        "**Answer**: Michael Mann",
        "### Answer:\n\nMichael Mann",
        "Final answer: Michael Mann",
        "The final answer is: Michael Mann",
        "The answer is: Michael Mann",
        "```\nAnswer: Michael Mann\n```",
    ],
)
def test_the_answer_is_found(text: str) -> None:
    assert parse_answer(text) == "Michael Mann"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", ""),
        ("<answer></answer>", ""),
        ("<answer>", ""),
        ("<think>Who?</think>", ""),
        ("<think>It is <answer>Michael Mann</answer>", ""),
        ("Answer:", ""),
        ("<answer>Johnson &amp; Johnson</answer>", "Johnson & Johnson"),
        ("<answer>&lt;stop/&gt;</answer>", "<stop/>"),
        ("AT&T &copy", "AT&T &copy"),
        ("Answer Me", "Answer Me"),
        ("<answer>The Answer: a play</answer>", "The Answer: a play"),
        ("half a pair \ud83d", "half a pair \ufffd"),
    ],
)
def test_an_answer_is_kept_as_it_is(text: str, answer: str) -> None:
    assert parse_answer(text) == answer


@settings(deadline=None)
@given(OUTPUTS)
def test_any_text_gives_one_line_that_can_be_encoded(text: str) -> None:
    answer = parse_answer(text)
    assert answer == " ".join(answer.split())
    assert answer.encode() is not None


@settings(deadline=None)
@given(OUTPUTS)
def test_escaped_text_in_an_answer_comes_back_whole(text: str) -> None:
    assert parse_answer(element("answer", text)) == one_line(escape(text))


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: repr(flood[:12]))
def test_a_flood_is_read_without_deep_recursion_and_in_linear_time(flood: str) -> None:
    for text in (flood, f"<answer>{flood}", f"Answer{flood}"):
        assert isinstance(parse_answer(text), str)
