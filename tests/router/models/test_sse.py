"""Server-sent events, however they arrive."""

import json
from contextlib import suppress
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.models import Prompt, Sampling
from router.models.openai_wire import MAX_EVENT_BYTES, EventReader, EventTooLong, read_replies
from router.models.streaming import StreamedReply

BODY = (
    ': keep-alive\n\ndata: {"a":\r\ndata:1}\r\n\r\nid: 7\nevent: x\ndata: é\r\n\n\n: '
    "x\r\ndata:\n\ndata: [DONE]\r\n\r\n"
).encode()
EVENTS = [b'{"a":\n1}', "é".encode(), b"[DONE]"]
_KEYS = (
    "choices delta message content index finish_reason usage prompt_tokens error reasoning".split()
)
CUTS = st.lists(st.integers(0, 80)).map(sorted)
CHUNKS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("a</search>", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=5)
    ),
)


def split(body: bytes, cuts: list[int]) -> list[bytes]:
    """`body` in pieces."""
    return [body[start:end] for start, end in pairwise([0, *cuts, len(body)])]


@given(CUTS)
def test_any_chunking(cuts: list[int]) -> None:
    """The same events come out of the same bytes, wherever they are split and however their
    lines end.
    """
    reader = EventReader()
    assert [event for piece in split(BODY, cuts) for event in reader.feed(piece)] == EVENTS


def test_lines_that_end_with_a_carriage_return() -> None:
    """The standard has it as a line's end, as it has CR LF and LF."""
    assert EventReader().feed(b"data: a\rdata: b\r\rdata: c\r\r") == [b"a\nb", b"c"]


@given(
    st.lists(st.sampled_from([b"data:a", b"\r\n", b"\n", b"\r", b":c", b"x"]), max_size=12), CUTS
)
def test_line_ends(tokens: list[bytes], cuts: list[int]) -> None:
    """Any bytes in any pieces give what the same bytes give in one; a CR LF that is split ends
    one line.
    """
    body = b"".join(tokens)
    whole = EventReader()
    split_up = EventReader()
    pieces = split(body, [min(cut, len(body)) for cut in cuts])
    assert [event for piece in pieces for event in split_up.feed(piece)] == whole.feed(body)


@given(st.lists(CHUNKS, max_size=4))
def test_any_chunk(chunks: list[object]) -> None:
    """Whatever is in a chunk, it is read or refused as no chunk."""
    reply = StreamedReply(Prompt((), Sampling(), ("</search>",)), lambda _delta: None)
    for chunk in chunks:
        with suppress(msgspec.DecodeError):
            for read in read_replies(json.dumps(chunk).encode()):
                reply.take(read)
    reply.end()


def test_unfinished() -> None:
    """What no blank line ends is not an event."""
    assert EventReader().feed(b"data: a\n\ndata: b\n") == [b"a"]


def test_too_long() -> None:
    """A line without an end does not fill the memory."""
    reader = EventReader()
    with pytest.raises(EventTooLong, match="1048576"):
        for _ in range(MAX_EVENT_BYTES // 2**16 + 1):
            reader.feed(b"x" * 2**16)
