"""Stop strings: whole and streamed outputs end at the same place."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.models import Delta, Prompt, Sampling
from router.models.model import end_at_stop
from router.models.openai_wire import ChatReply, Choice, MessageReply, UsageReply, read_replies
from router.models.streaming import StopCut, StreamedReply

LETTERS = "ab<"
TEXTS = st.lists(st.text(LETTERS, max_size=4), max_size=12)
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3).map(tuple)
REASONS = st.sampled_from(["stop", "length"])


@given(TEXTS, STOPS, REASONS, st.none() | st.text(LETTERS, min_size=1, max_size=4))
@example(["a<", "b"], ("<b",), "length", None)
@example(["aba", "b"], ("bab", "b"), "stop", "b")
@example(["a"], ("b",), "stop", "b")
def test_a_streamed_text_ends_where_the_whole_text_ends(
    pieces: list[str], stop: tuple[str, ...], reason: str, matched: str | None
) -> None:
    """Holds for any pieces, and for the finish reason."""
    cut = StopCut(stop)
    streamed = "".join(map(cut.feed, pieces))
    last_text, streamed_reason = cut.end(reason, matched)
    assert (streamed + last_text, streamed_reason) == end_at_stop(
        "".join(pieces), stop, reason, matched
    )


@given(TEXTS, STOPS, REASONS)
def test_a_reply_of_chunks_ends_where_the_whole_text_ends(
    pieces: list[str], stop: tuple[str, ...], reason: str
) -> None:
    """Holds whether the engine stops or not; an overrun is recorded."""
    deltas = list[Delta]()
    reply = StreamedReply(Prompt((), Sampling(), stop), deltas.append)
    for piece in pieces:
        if reply.abandoned:
            break
        reply.take(ChatReply((Choice(delta=MessageReply(piece)),)))
        reply.report()
    if not reply.abandoned:
        reply.take(ChatReply((Choice(finish_reason=reason),)))
    output = reply.end()
    text = "".join(pieces)
    assert (output.text, output.finish_reason) == end_at_stop(text, stop, reason, None)
    assert output.text == "".join(delta.text for delta in deltas)
    assert output.overran == (len(output.text) < len(text))


@pytest.mark.parametrize(
    ("text", "finish_reason", "matched", "expected"),
    [
        ("a</x>b</x>", "length", None, ("a</x>", "stop")),
        ("a", "stop", "</x>", ("a</x>", "stop")),
        ("a</x>", "stop", "</x>", ("a</x>", "stop")),
        ("a</y>b</x>", "stop", "</x>", ("a</y>", "stop")),
        ("a", "stop", "elsewhere", ("a", "stop")),
        ("a", "length", None, ("a", "length")),
    ],
)
def test_the_first_stop_string_ends_the_text_and_belongs_to_it(
    text: str, finish_reason: str, matched: str | None, expected: tuple[str, str]
) -> None:
    """Holds whether the engine kept it, dropped it or wrote on."""
    assert end_at_stop(text, ("</x>", "</y>"), finish_reason, matched) == expected


def test_an_engine_that_stops_may_still_report_its_usage() -> None:
    """The chunk after the stop string is read."""
    reply = StreamedReply(Prompt((), Sampling(), ("</x>",)), lambda _delta: None)
    reply.take(ChatReply((Choice(delta=MessageReply("a</x>")),)))
    assert not reply.abandoned
    reply.take(ChatReply((Choice(finish_reason="stop"),), UsageReply(3, 2)))
    output = reply.end()
    assert not reply.abandoned
    assert output.usage is not None
    assert not output.usage.lower_bound


def test_an_engine_that_writes_on_is_left_with_a_lower_bound() -> None:
    """The usage so far is the bound."""
    reply = StreamedReply(Prompt((), Sampling(), ("</x>",)), lambda _delta: None)
    reply.take(ChatReply((Choice(delta=MessageReply("a</x>")),), UsageReply(3, 2)))
    reply.take(ChatReply((Choice(delta=MessageReply("b")),)))
    output = reply.end()
    assert reply.abandoned
    assert output.usage is not None
    assert output.usage.lower_bound


@pytest.mark.parametrize("name", ["stop_reason", "matched_stop"])
def test_a_stop_string_that_the_engine_names_belongs_to_the_text(name: str) -> None:
    """The engine left it out of the text."""
    (chunk,) = read_replies(
        b'{"choices":[{"delta":{"content":"a"},"finish_reason":"stop","%b":"</x>"}]}'
        % name.encode()
    )
    reply = StreamedReply(Prompt((), Sampling(), ("</x>",)))
    reply.take(chunk)
    assert reply.end().text == "a</x>"
