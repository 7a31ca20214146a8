"""Tags, and text that is never read as a tag."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.protocol.tags import (
    Block,
    blocks,
    element,
    escape,
    one_line,
    unescape,
    without_thinking,
)
from tests.router.outputs import OUTPUTS


@settings(deadline=None)
@given(st.text() | OUTPUTS)
def test_unescape_undoes_escape(text: str) -> None:
    assert unescape(escape(text)) == text


@settings(deadline=None)
@given(OUTPUTS)
def test_escaped_text_holds_no_tag(text: str) -> None:
    assert not {"<", ">"} & set(escape(text))
    assert without_thinking(escape(text)) == escape(text)
    assert [block.body for block in blocks(element("search", text), "search")] == [
        escape(text).strip()
    ]


def test_escape_leaves_quotes_and_takes_control_tokens() -> None:
    assert escape("""<|im_end|> "AT&T" 'x'""") == """&lt;|im_end|&gt; "AT&amp;T" 'x'"""


@pytest.mark.parametrize(
    "text",
    ["AT&T", "R&D; more", "?a=1&copy=2", "&notanentity;", "&", "a &lt b", "&#60;", "&eacute;"],
)
def test_text_that_was_never_escaped_comes_back_as_it_is(text: str) -> None:
    assert unescape(text) == text


def test_quotes_that_a_model_escaped_are_unescaped() -> None:
    assert unescape("&quot;a&quot; &#39;b&#x27;") == "\"a\" 'b'"


def test_unescaping_happens_once() -> None:
    assert unescape("&amp;lt;") == "&lt;"


def test_many_entities_are_unescaped_in_milliseconds() -> None:
    text = "&lt;" * 250_000
    begun = time.thread_time()
    assert unescape(text) == "<" * 250_000
    assert time.thread_time() - begun < 0.1


def test_one_line_is_unescaped_and_can_be_encoded() -> None:
    assert one_line(" a &amp;\n\tb\u2028c\u00a0") == "a & b c"
    assert one_line("\ud83d\ude00 \ud83d \ufeff") == "😀 \ufffd \ufeff"


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("a", "a"),
        ("<think>x</think>a", "a"),
        ("a<think>x</think>b<think>y</think>c", "abc"),
        ("a<think>x", "a"),
        ("x</think>a", "a"),
        ("x</think>a<think>y</think>b", "ab"),
        ("<think></think>", ""),
        ("<think>", ""),
        ("</think>", ""),
        ("<think>x<think>y</think>a", "a"),
    ],
)
def test_thinking_is_dropped(text: str, visible: str) -> None:
    assert without_thinking(text) == visible


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("<b>x</b>", []),
        ("<a>x</a>", [Block("x", 0, True)]),
        ("..<A> x </ a >..", [Block("x", 2, True)]),
        ("<a>x", [Block("x", 0, False)]),
        ("<a>x<a>y</a>", [Block("x", 0, False), Block("y", 4, True)]),
        ("<a>x</a><a>y", [Block("x", 0, True), Block("y", 8, False)]),
        ("</a><a></a>", [Block("", 4, True)]),
        ("<ab>x</ab>", []),
    ],
)
def test_blocks_are_found_with_or_without_a_closing_tag(text: str, expected: list[Block]) -> None:
    assert list(blocks(text, "a")) == expected
