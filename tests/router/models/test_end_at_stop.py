"""Stop strings: whole and streamed outputs end in the same place."""

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
def test_cut(pieces: list[str], stop: tuple[str, ...], reason: str, matched: str | None) -> None:
    """A text that is streamed in any pieces ends where the whole text ends, and for the same
    reason.
    """
    cut = StopCut(stop)
    streamed = "".join(map(cut.feed, pieces))
    rest, streamed_reason = cut.end(reason, matched)
    assert (streamed + rest, streamed_reason) == end_at_stop("".join(pieces), stop, reason, matched)


@given(TEXTS, STOPS, REASONS)
def test_reply(pieces: list[str], stop: tuple[str, ...], reason: str) -> None:
    """So does a whole reply of chunks, whether or not the engine stops by itself; where it does
    not, that is said.
    """
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
    whole = "".join(pieces)
    assert (output.text, output.finish_reason) == end_at_stop(whole, stop, reason, None)
    assert output.text == "".join(delta.text for delta in deltas)
    assert output.overran == (len(output.text) < len(whole))


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
def test_whole(
    text: str, finish_reason: str, matched: str | None, expected: tuple[str, str]
) -> None:
    """The stop string that is met first ends the text and belongs to it, whatever the engine
    did with it.
    """
    assert end_at_stop(text, ("</x>", "</y>"), finish_reason, matched) == expected


def test_one_chunk_of_grace() -> None:
    """An engine that stops by itself after the stop string is heard out, for the sake of its
    final usage.
    """
    reply = StreamedReply(Prompt((), Sampling(), ("</x>",)), lambda _delta: None)
    reply.take(ChatReply((Choice(delta=MessageReply("a</x>")),)))
    assert not reply.abandoned
    reply.take(ChatReply((Choice(finish_reason="stop"),), UsageReply(3, 2)))
    last = reply.end()
    assert not reply.abandoned
    assert last.usage is not None
    assert not last.usage.lower_bound


def test_writes_on() -> None:
    """An engine that writes on is left, and the usage it had reported is a lower bound."""
    reply = StreamedReply(Prompt((), Sampling(), ("</x>",)), lambda _delta: None)
    reply.take(ChatReply((Choice(delta=MessageReply("a</x>")),), UsageReply(3, 2)))
    reply.take(ChatReply((Choice(delta=MessageReply("b")),)))
    last = reply.end()
    assert reply.abandoned
    assert last.usage is not None
    assert last.usage.lower_bound


@pytest.mark.parametrize("name", ["stop_reason", "matched_stop"])
def test_an_engine_names_the_stop_string(name: str) -> None:
    """It belongs to the text, though the engine left it out."""
    (chunk,) = read_replies(
        b'{"choices":[{"delta":{"content":"a"},"finish_reason":"stop","%b":"</x>"}]}'
        % name.encode()
    )
    reply = StreamedReply(Prompt((), Sampling(), ("</x>",)))
    reply.take(chunk)
    assert reply.end().text == "a</x>"
