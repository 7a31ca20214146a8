"""No input keeps others waiting, by whichever door it comes."""

from collections.abc import Iterator

import pytest

from tests.router.edge.stalls import INPUTS
from tests.stall import Served, held_s, serving

_TIMES = 12
"""A step of the event loop may take so much longer than the longest one of a plain question, which takes some 5 ms."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Served]:
    """In a process of its own."""
    with serving() as served:
        yield served


@pytest.mark.timing
@pytest.mark.parametrize("name", sorted(INPUTS))
async def test_no_input_holds_the_event_loop(name: str, gateway: Served) -> None:
    """Measured in CPU time of its thread, so that other processes do not count."""
    held_s(gateway)
    await INPUTS["idle"](gateway)
    usual_s = held_s(gateway)
    came = await INPUTS[name](gateway)
    assert held_s(gateway) < _TIMES * max(usual_s, 0.004), came
