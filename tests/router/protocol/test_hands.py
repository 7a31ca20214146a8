"""Turns that open a document or call a tool, however they are written."""

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
    """Nothing raises; without a call it is the turn that it was before."""
    turn = read(text, cut)
    assert isinstance(turn, SearchTurn | AccessTurn | CallTurn | ReportTurn | Malformed)
    if "=" not in text:
        assert turn == parse_turn(text, cut)


@given(st.dictionaries(st.text("abc", min_size=1), VALUES, max_size=4), st.booleans())
def test_arguments_arrive_whole(arguments: dict[str, object], escaped: bool) -> None:
    """As a model writes JSON itself, or copies it out of its prompt, where it stands escaped."""
    text = json.dumps(arguments).replace("<", "\\u003c").replace("&", "\\u0026")
    turn = read(f'I look.\n<call tool="fetch">{escape(text) if escaped else text}</call> and then')
    assert isinstance(turn, CallTurn)
    assert (turn.tool, json.loads(turn.arguments)) == ("fetch", arguments)


@given(NAMES)
def test_names_of_documents_arrive_whole(name: str) -> None:
    """Tags in a name too, as they are escaped where it is shown."""
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
def test_what_comes_first_counts(text: str, turn: ExecutionTurn) -> None:
    """Provided that it is complete, and not thinking."""
    assert read(text) == turn


def test_what_was_cut_is_not_run() -> None:
    """Neither by the length limit nor by ours."""
    for text, cut in ((CALL[:-8], True), (f'<call tool="fetch">{"x" * 30_000}</call>', False)):
        assert read(text, cut) == Malformed("the call was cut off")


@pytest.mark.timing
def test_reading_is_linear() -> None:
    """A megabyte takes less than a second, whatever repeats in it."""
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
        best = min(_cpu_s(text) for _ in range(2))
        assert best < 1.0, text[:40]


def _cpu_s(text: str) -> float:
    begun = time.thread_time()
    read(text)
    return time.thread_time() - begun
