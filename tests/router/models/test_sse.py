"""Server-sent events in any pieces."""

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
    """Return `body` in pieces."""
    return [body[start:end] for start, end in pairwise([0, *cuts, len(body)])]


@given(CUTS)
def test_events_do_not_depend_on_the_pieces(cuts: list[int]) -> None:
    """Line ends may be split too."""
    reader = EventReader()
    assert [event for piece in split(BODY, cuts) for event in reader.feed(piece)] == EVENTS


def test_a_carriage_return_ends_a_line() -> None:
    """The standard allows CR, LF and CR LF."""
    assert EventReader().feed(b"data: a\rdata: b\r\rdata: c\r\r") == [b"a\nb", b"c"]


@given(
    st.lists(st.sampled_from([b"data:a", b"\r\n", b"\n", b"\r", b":c", b"x"]), max_size=12), CUTS
)
def test_a_split_line_end_ends_one_line(tokens: list[bytes], cuts: list[int]) -> None:
    """Any bytes in any pieces give the events of the whole bytes."""
    body = b"".join(tokens)
    whole_reader = EventReader()
    split_reader = EventReader()
    pieces = split(body, [min(cut, len(body)) for cut in cuts])
    assert [event for piece in pieces for event in split_reader.feed(piece)] == whole_reader.feed(
        body
    )


@given(st.lists(CHUNKS, max_size=4))
def test_any_chunk_is_read_or_refused(chunks: list[object]) -> None:
    reply = StreamedReply(Prompt((), Sampling(), ("</search>",)), lambda _delta: None)
    for chunk in chunks:
        with suppress(msgspec.DecodeError):
            for reply_part in read_replies(json.dumps(chunk).encode()):
                reply.take(reply_part)
    reply.end()


def test_an_event_without_its_blank_line_is_none() -> None:
    assert EventReader().feed(b"data: a\n\ndata: b\n") == [b"a"]


def test_a_line_without_an_end_is_refused() -> None:
    """It must not fill the memory."""
    reader = EventReader()
    with pytest.raises(EventTooLong, match="1048576"):
        for _ in range(MAX_EVENT_BYTES // 2**16 + 1):
            reader.feed(b"x" * 2**16)
