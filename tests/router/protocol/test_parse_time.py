"""Time is linear in the text, whatever is in it."""

from collections.abc import Callable
from functools import partial

import pytest

from benchmarks.cpu_time import cpu_s
from benchmarks.floods import READERS, floods
from router.models.openai_wire import MAX_EVENT_BYTES, EventReader

pytestmark = pytest.mark.timing
_MEGABYTE = 1_000_000
_TIMES = 40
"""What ten times the text may take; 10 where the time is linear, and 100 where it is quadratic."""


def grows_linearly(whole: Callable[[], object], tenth: Callable[[], object]) -> bool:
    """At best of some tries, as others use the machine as well."""
    least = min(cpu_s(tenth) for _ in range(3))
    return any(cpu_s(whole) < _TIMES * least for _ in range(5))


@pytest.mark.parametrize("reader", READERS)
def test_a_megabyte_of_anything_that_repeats(reader: str) -> None:
    """It takes as much longer than a tenth of it as it is longer."""
    read = READERS[reader]
    for text in floods(_MEGABYTE):
        assert grows_linearly(partial(read, text), partial(read, text[: _MEGABYTE // 10])), text[:40]


def test_a_long_event_in_small_pieces() -> None:
    """What has come is not copied with every piece."""

    def read(size: int) -> Callable[[], object]:
        return lambda: [reader.feed(b"x" * 100) for reader in [EventReader()] for _ in range(size // 100)]

    assert grows_linearly(read(MAX_EVENT_BYTES // 2), read(MAX_EVENT_BYTES // 20))
