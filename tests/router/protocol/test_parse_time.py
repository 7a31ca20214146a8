"""Parsing takes linear time and no recursion, for any text."""

import time
from collections.abc import Callable
from functools import partial
from math import inf

import pytest

from router.models.openai_wire import MAX_EVENT_BYTES, EventReader
from router.protocol import parse_decision, parse_turn
from router.protocol.decision import EarlyReader
from router.protocol.tags import blocks, without_thinking
from router.protocol.turns import parse_answer
from router.search.answerer import parse_verdict
from tests.router.outputs import FLOODS
from tests.router.pathological import repetitive

LONG = 400_000
"""Characters of a text, of which a tenth is read for comparison."""
_TIMES = 40
"""Maximum factor for ten times the text: 10 if the time is linear, 100 if it is quadratic."""


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
    """Return the CPU seconds of this thread, without other load of the machine."""
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


def grows_linearly(whole: Callable[[], object], tenth: Callable[[], object]) -> bool:
    """Return whether the best of some tries is linear, as other processes use the machine too."""
    whole_s = tenth_s = inf
    for _ in range(6):
        whole_s = min(whole_s, cpu_s(whole))
        tenth_s = min(tenth_s, cpu_s(tenth))
        if whole_s < _TIMES * tenth_s:
            return True
    return False


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: repr(flood[:12]))
def test_a_flood_is_read_without_deep_recursion(flood: str) -> None:
    """It may be anywhere in an output."""
    for start in (
        "",
        '<search>["',
        "<search>[",
        "<answer>",
        "<answer>x</answer><evidence>",
        "<verdict>",
        "Answer",
    ):
        text = start + flood[:20_000]
        parse_decision(text, limit=3, cut=True)
        parse_turn(text)
        parse_answer(text)
        parse_verdict(text)
        assert len(without_thinking(text)) <= len(text)
        assert sum(len(block.body) for block in blocks(text, "search")) <= len(text)
        _read_early(text)


@pytest.mark.timing
@pytest.mark.parametrize("reader", READERS)
def test_reading_takes_linear_time_for_any_repeated_text(reader: str) -> None:
    """A long text takes about ten times as long as a tenth of it."""
    read = READERS[reader]
    for text in repetitive(LONG):
        assert grows_linearly(partial(read, text), partial(read, text[: LONG // 10])), text[:40]


@pytest.mark.timing
def test_a_long_event_is_not_copied_with_every_piece() -> None:
    def read(size: int) -> Callable[[], object]:
        return lambda: [
            reader.feed(b"x" * 100) for reader in [EventReader()] for _ in range(size // 100)
        ]

    assert grows_linearly(read(MAX_EVENT_BYTES // 2), read(MAX_EVENT_BYTES // 20))
