"""What is certain of a block that is still being written."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.protocol.decision import Dispatch, EarlyReader, parse_decision
from tests.router.outputs import FLOODS, OUTPUTS
from tests.router.protocol.test_question_list import ONE_OR_MORE


def certain(text: str, *, limit: int = 8, size: int = 1) -> list[tuple[str, ...]]:
    """What is told of `text`, which comes in pieces of `size` characters."""
    told: list[tuple[str, ...]] = []
    reader = EarlyReader(limit, told.append)
    for start in range(0, len(text), size):
        reader.feed(text[start : start + size])
    return told


@pytest.mark.parametrize(
    ("text", "questions"),
    [
        ('<search>["a?"', ("a?",)),
        ('<search>["a?", "b', ("a?",)),
        ('<search>["a?"\n', ("a?",)),
        ('<search>["a?", "b?"', ("a?", "b?")),
        ("<search>['a?'", ("a?",)),
        ("<search>[“a?”", ("a?",)),
        ('<search>{"queries": ["a?"', ("a?",)),
        ('<search>[{"query": "a?"', ("a?",)),
        ('< Search >\n```json\n[\n  "a?"', ("a?",)),
        ('I ask: <search>["a?"', ("a?",)),
        ('<think>Is it ["b?"]? <search>["c?"]</search></think><search>["a?"', ("a?",)),
        ('They ask.</think>\n<search>["a?"', ("a?",)),
        ('<search>["director of Heat", "', ("director of Heat",)),
        ('<search>["director of Heat"]', ("director of Heat",)),
        ("<search>1. a?\n", ("a?",)),
        ("<search>- a?\n- b?\n- c", ("a?", "b?")),
        ("<search>a?</search>", ("a?",)),
        ("<search>director of Heat</search>", ("director of Heat",)),
    ],
)
def test_what_is_certain(text: str, questions: tuple[str, ...]) -> None:
    assert certain(text)[-1] == questions


@pytest.mark.parametrize(
    "text",
    [
        '<search>["a?',
        '<search>["director of Heat"',
        '<search>["Who wrote "Hamlet", and when',
        '<search>{"reasoning": "Is it he?", "tas',
        '<search>{"queries"',
        '<think><search>["a?"]</search>',
        "<search>a? And",
        "<search>a?\nb?\n",
        "<search>1. a?",
        "<search>- director of Heat\n- his birthday\n",
        '["a?"]',
        "<stop/>Enough evidence<stop>",
    ],
)
def test_what_is_not(text: str) -> None:
    """A quote that may stand within its string, a key that may be for reasons, a line that may go on."""
    assert certain(text) == []


@pytest.mark.parametrize("body", ONE_OR_MORE.values(), ids=ONE_OR_MORE)
def test_what_was_certain_is_dispatched(body: str) -> None:
    """However questions are written: each piece adds to what was certain before, and in the end it is the decision."""
    text = f"<search>{body}</search>"
    decision = parse_decision(text, limit=8)
    assert isinstance(decision, Dispatch)
    for size in (1, 3, 50):
        told = certain(text, size=size)
        assert told[-1] == decision.sub_queries
        assert all(decision.sub_queries[: len(one)] == one for one in told)


def test_no_more_than_the_limit() -> None:
    assert certain('<search>["a?", "b?", "c?", "d?"]</search>', limit=2)[-1] == ("a?", "b?")


@settings(deadline=None)
@given(OUTPUTS, st.integers(1, 9))
@example('<search>["a?", "b?"]</search>', 1)
def test_any_text_in_any_pieces(text: str, size: int) -> None:
    """None raises, and nothing is told twice."""
    told = certain(f"<search>{text}", size=size)
    assert sorted(map(len, told)) == list(dict.fromkeys(map(len, told)))


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: repr(flood[:12]))
def test_a_flood_is_given_up(flood: str) -> None:
    """The work for one turn is bounded, however its pieces come."""
    certain(f'<search>["{flood[:30_000]}', size=16)
