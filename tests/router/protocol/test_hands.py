"""Parsing of turns that open a document or call a tool, in any notation."""

import json
import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.protocol import parse_turn
from router.protocol.tags import Malformed, escape
from router.protocol.turns import (
    AccessTurn,
    CallTurn,
    ExecutionTurn,
    ReportTurn,
    SearchTurn,
    parse_action_turn,
)
from tests.router.outputs import OUTPUTS
from tests.router.pathological import repetitive

read = partial(parse_action_turn, parse_turn)
REPORT = "<answer>Mann</answer><evidence>Heat is his.</evidence>"
TAGS = st.sampled_from(
    [
        '<call tool="fetch">',
        "<call tool='",
        '<access document="a b">',
        "</call>",
        "</access>",
        '{"url": "x"}',
        '">',
        "call",
    ]
)
TEXTS = st.lists(OUTPUTS | TAGS, max_size=12).map("".join)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).filter(
    lambda name: " ".join(name.split()) == name and not set("\"'&;") & set(name)
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(TEXTS, st.booleans())
def test_any_text_is_a_turn(text: str, cut: bool) -> None:
    """Without a call it is the turn of the parser without tools."""
    turn = read(text, cut)
    assert isinstance(turn, SearchTurn | AccessTurn | CallTurn | ReportTurn | Malformed)
    if "=" not in text:
        assert turn == parse_turn(text, cut)


@given(st.dictionaries(st.text("abc", min_size=1), VALUES, max_size=4), st.booleans())
def test_arguments_arrive_unchanged(arguments: dict[str, object], escaped: bool) -> None:
    """A model writes the JSON itself, or copies it escaped from its prompt."""
    text = json.dumps(arguments).replace("<", "\\u003c").replace("&", "\\u0026")
    turn = read(f'I look.\n<call tool="fetch">{escape(text) if escaped else text}</call> and then')
    assert isinstance(turn, CallTurn)
    assert (turn.tool, json.loads(turn.arguments)) == ("fetch", arguments)


@given(NAMES)
def test_names_of_documents_arrive_unchanged(name: str) -> None:
    """They may contain tags, which are escaped in the prompt."""
    assert read(f'<access document="{escape(name)}">the year</access>') == AccessTurn(
        name, "the year"
    )


CALL = '<call tool="fetch">{"url": "a"}</call>'


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        (CALL, CallTurn("fetch", '{"url": "a"}')),
        (
            '<call tool="fetch">\n```json\n{"url": "a"}\n```\n</call>',
            CallTurn("fetch", '{"url": "a"}'),
        ),
        ("< CALL tool = 'fetch' ></ call >", CallTurn("fetch", "")),
        ('<call tool="fetch">{"url": "a"}', CallTurn("fetch", '{"url": "a"}')),
        (f"<think>{CALL}</think><search>a</search>", SearchTurn("a", 0)),
        (f"<search>a</search>{CALL}", SearchTurn("a", 0)),
        (f"{CALL}<search>a</search>", CallTurn("fetch", '{"url": "a"}')),
        (f"{CALL}<documents>made up</documents>{REPORT}", CallTurn("fetch", '{"url": "a"}')),
        (f"{REPORT}{CALL}", parse_turn(REPORT)),
        (f"<answer>Mann</answer>{CALL}", CallTurn("fetch", '{"url": "a"}')),
        ('<access document="a.pdf">born</access>', AccessTurn("a.pdf", "born")),
        ('<access document="a.pdf"> </access>', Malformed("nothing to look for in the document")),
        ("<access>born</access>", Malformed("neither a search block nor a report")),
    ],
)
def test_the_first_complete_action_outside_a_thought_counts(text: str, turn: ExecutionTurn) -> None:
    assert read(text) == turn


def test_a_cut_call_is_not_run() -> None:
    """It is cut by the length limit of the model or by that of the parser."""
    for text, cut in ((CALL[:-8], True), (f'<call tool="fetch">{"x" * 30_000}</call>', False)):
        assert read(text, cut) == Malformed("the call was cut off")


@pytest.mark.timing
def test_a_megabyte_is_read_in_less_than_a_second() -> None:
    """This holds for any repeated piece, as reading takes linear time."""
    pieces = [
        '<call tool="',
        "<call tool='a",
        '<call tool="a">',
        '<access document="a" ',
        "</call",
        "<",
        '"',
        "' ",
    ]
    for text in (*repetitive(1_000_000), *(piece * (1_000_000 // len(piece)) for piece in pieces)):
        assert any(_cpu_s(text) < 1.0 for _ in range(2)), text[:40]


def _cpu_s(text: str) -> float:
    begun = time.thread_time()
    read(text)
    return time.thread_time() - begun
