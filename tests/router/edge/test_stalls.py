"""No input holds the event loop, over any protocol."""

from collections.abc import Iterator

import pytest

from tests.router.edge.stalls import INPUTS
from tests.stall import Served, held_s, serving

_TIMES = 40
_USUAL_S = 0.004
"""Max time of a step of the event loop, relative to the longest step of a plain question or to
this time.
"""
_TESTED = [
    name
    for name in INPUTS
    if name.startswith(("1", "2 choices", "2 values", "2 more", "6 multipart"))
]
"""Inputs that once took a quarter of a second or more."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Served]:
    """A gateway in its own process."""
    with serving() as served:
        yield served


@pytest.mark.timing
@pytest.mark.parametrize("name", _TESTED)
async def test_no_input_holds_the_event_loop(name: str, gateway: Served) -> None:
    """Time is CPU time of the loop's thread, so that other processes do not count."""
    held_s(gateway)
    await INPUTS["idle"](gateway)
    usual_s = held_s(gateway)
    reply = await INPUTS[name](gateway)
    assert held_s(gateway) < _TIMES * max(usual_s, _USUAL_S), reply
