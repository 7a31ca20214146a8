"""Reading is linear in the text, and not recursive, whatever is in it."""

import time
from collections.abc import Callable
from functools import partial

import pytest

from router.models.openai_wire import MAX_EVENT_BYTES, EventReader
from router.protocol import parse_decision, parse_turn
from router.protocol.decision import EarlyReader
from router.protocol.tags import blocks, without_thinking
from router.protocol.turns import parse_answer
from router.search.answerer import parse_verdict
from tests.router.outputs import FLOODS
from tests.router.pathological import repetitive

_MEGABYTE = 1_000_000
_TIMES = 40
"""What ten times the text may take; 10 where the time is linear, and 100 where it is quadratic."""


def _read_early(text: str) -> None:
    reader = EarlyReader(8, lambda _certain: None)
    for start in range(0, len(text), 100):
        reader.feed(text[start : start + 100])


READERS: dict[str, Callable[[str], object]] = {
    "decision": lambda text: parse_decision(text, limit=8),
    "managed": lambda text: parse_decision(text, limit=8, managed=True),
    "turn": parse_turn,
    "early": _read_early,
}


def cpu_s(work: Callable[[], object]) -> float:
    """Seconds of CPU in this thread, which do not count what else the machine does."""
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


def grows_linearly(whole: Callable[[], object], tenth: Callable[[], object]) -> bool:
    """At best of some tries, as others use the machine as well."""
    least = min(cpu_s(tenth) for _ in range(3))
    return any(cpu_s(whole) < _TIMES * least for _ in range(5))


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: repr(flood[:12]))
def test_a_flood_is_read(flood: str) -> None:
    """Without deep recursion, wherever in an output it stands."""
    for start in (
        "",
        '<search>["',
        "<search>[",
        "<answer>",
        "<answer>x</answer><evidence>",
        "<verdict>",
        "Answer",
    ):
        text = start + flood[:50_000]
        parse_decision(text, limit=3, cut=True)
        parse_turn(text)
        parse_answer(text)
        parse_verdict(text)
        assert len(without_thinking(text)) <= len(text)
        assert sum(len(block.body) for block in blocks(text, "search")) <= len(text)
        _read_early(text)


@pytest.mark.timing
@pytest.mark.parametrize("reader", READERS)
def test_a_megabyte_of_anything_that_repeats(reader: str) -> None:
    """It takes as much longer than a tenth of it as it is longer."""
    read = READERS[reader]
    for text in repetitive(_MEGABYTE):
        assert grows_linearly(partial(read, text), partial(read, text[: _MEGABYTE // 10])), text[
            :40
        ]


@pytest.mark.timing
def test_a_long_event_in_small_pieces() -> None:
    """What has come is not copied with every piece."""

    def read(size: int) -> Callable[[], object]:
        return lambda: [
            reader.feed(b"x" * 100) for reader in [EventReader()] for _ in range(size // 100)
        ]

    assert grows_linearly(read(MAX_EVENT_BYTES // 2), read(MAX_EVENT_BYTES // 20))
