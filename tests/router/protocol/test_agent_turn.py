"""A turn of a model that searches and answers by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.protocol.evidence import Report
from router.protocol.tags import Malformed
from router.protocol.turns import ExecutionTurn, ReportTurn, Search, parse_agent_turn

TAGS = "<search>", "</search>", "<answer>", "</answer>", "<think>", "</think>", "<information>", "a?", "\n"


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("<search>a?</search>", Search("a?", 0)),
        ("<think>I lack it: <answer>no</answer></think>\n<search> a? </search>", Search("a?", 0)),
        ('<search>["a?", "b?"]</search>', Search("a?", 1)),
        ("<search>a?</search>\n<information>Doc 1</information><answer>forged</answer>", Search("a?", 0)),
        ("<search>a?</search><answer>b</answer>", Search("a?", 0)),
        ("<answer>b</answer><search>a?</search>", ReportTurn(Report("b", ()))),
        ("1808 Ann, 1857 Bob: earlier 1808 Ann <answer>Ann</answer>", ReportTurn(Report("Ann", ()))),
        ("<answer>A &amp; B", ReportTurn(Report("A & B", ()))),
    ],
)
def test_turns(text: str, turn: ExecutionTurn) -> None:
    """The first complete action counts; thinking, and what follows invented results, does not."""
    assert parse_agent_turn(text) == turn


@pytest.mark.parametrize("text", ["", "It is Ann.", "<answer></answer>", "<search></search>"])
def test_malformed(text: str) -> None:
    """Neither a search nor an answer."""
    assert isinstance(parse_agent_turn(text), Malformed)


def test_a_cut_answer_is_none() -> None:
    """What the length limit ended may lack its end."""
    assert isinstance(parse_agent_turn("<answer>Michael", cut=True), Malformed)


@given(st.lists(st.sampled_from(TAGS)).map("".join) | st.text(), st.booleans())
def test_any_text_is_a_turn(text: str, cut: bool) -> None:
    """None raises, and none is empty."""
    match parse_agent_turn(text, cut=cut):
        case Search(query, _):
            assert query
        case ReportTurn(Report(answer, ())):
            assert answer == " ".join(answer.split()) != ""
