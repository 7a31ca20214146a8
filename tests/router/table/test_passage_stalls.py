"""No passage delays other requests, for any content."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.passage_stalls import INPUTS, SCENE
from tests.stall import Served, held_s, serving

_TIMES = 25
_USUAL_S = 0.005
"""Maximum factor of the longest step of the event loop, relative to plain passages."""
_TESTED = (
    "ligatures",
    "other squared words",
    "other sorted marks",
    "other sentences of a letter",
    "other Chinese",
)


async def _usual_s(served: Served) -> float:
    """Return the longest step of the event loop while a table of plain passages is filled."""
    await INPUTS["table, other plain"](served)
    return held_s(served)


@pytest.fixture(scope="module")
def gateway() -> Iterator[tuple[Served, float]]:
    """A gateway in its own process, and its usual longest step."""
    with serving(SCENE) as served:
        yield served, asyncio.run(_usual_s(served))


@pytest.mark.timing
@pytest.mark.parametrize("name", _TESTED)
async def test_no_passage_holds_the_event_loop(name: str, gateway: tuple[Served, float]) -> None:
    """The time is CPU time of its thread, so that other processes do not count."""
    served, usual_s = gateway
    held_s(served)
    came = await INPUTS[f"table, {name}"](served)
    assert held_s(served) < _TIMES * max(usual_s, _USUAL_S), came
