"""No input keeps others waiting, by whichever door it comes."""

from collections.abc import Iterator

import pytest

from tests.router.edge.stalls import INPUTS
from tests.stall import Served, held_s, serving

_TIMES = 40
_USUAL_S = 0.004
"""A step of the event loop may take so much longer than the longest one of a plain question, or
than that.
"""
_TESTED = [
    name
    for name in INPUTS
    if name.startswith(("1", "2 choices", "2 values", "2 more", "6 multipart"))
]
"""Those that took a quarter of a second at least."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Served]:
    """In a process of its own."""
    with serving() as served:
        yield served


@pytest.mark.timing
@pytest.mark.parametrize("name", _TESTED)
async def test_no_input_holds_the_event_loop(name: str, gateway: Served) -> None:
    """Measured in CPU time of its thread, so that other processes do not count."""
    held_s(gateway)
    await INPUTS["idle"](gateway)
    usual_s = held_s(gateway)
    came = await INPUTS[name](gateway)
    assert held_s(gateway) < _TIMES * max(usual_s, _USUAL_S), came
