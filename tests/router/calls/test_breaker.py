"""A breaker: when it keeps calls away, and how they come back."""

import pytest

from router.calls.replicas import Breaker, Endpoint
from router.errors import UpstreamUnavailable
from tests.router.clock import Clock, with_clock


def fail(breaker: Breaker, times: int = 5) -> None:
    """That many calls fail."""
    for _ in range(times):
        breaker.end(False, probe=breaker.begin())


def test_five_failures_in_a_row_open_it() -> None:
    """Not four, and not five with a good one among them; a call that tells nothing changes
    nothing.
    """

    async def main(clock: Clock) -> None:
        breaker = Breaker()
        fail(breaker, 4)
        breaker.end(True, probe=breaker.begin())
        fail(breaker, 4)
        breaker.end(None, probe=breaker.begin())
        assert (breaker.state, breaker.wait_s) == ("closed", 0.0)
        fail(breaker, 1)
        assert (breaker.state, breaker.wait_s, breaker.openings) == ("open", 1.0, 1)

    with_clock(main)


def test_one_probe_at_a_time() -> None:
    """While it is under way the others are kept away, and what was begun before decides nothing."""

    async def main(clock: Clock) -> None:
        breaker = Breaker()
        early = breaker.begin()
        fail(breaker)
        await clock.advance(1.0)
        assert breaker.wait_s == 0.0
        probe = breaker.begin()
        assert (early, probe, breaker.state) == (False, True, "half_open")
        assert breaker.wait_s > 0
        breaker.end(True, probe=early)
        assert breaker.state == "half_open"
        breaker.end(True, probe=probe)
        assert (breaker.state, breaker.wait_s) == ("closed", 0.0)

    with_clock(main)


def test_every_probe_that_fails_doubles_the_pause() -> None:
    """Up to half a minute; a good one starts over."""

    async def main(clock: Clock) -> None:
        breaker = Breaker()
        pauses = list[float]()
        fail(breaker)
        for _ in range(7):
            pauses.append(breaker.wait_s)
            await clock.advance(breaker.wait_s)
            fail(breaker, 1)
        assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
        await clock.advance(30.0)
        breaker.end(True, probe=breaker.begin())
        fail(breaker)
        assert breaker.wait_s == 1.0

    with_clock(main)


def test_a_probe_that_tells_nothing_is_repeated() -> None:
    """Its client left, say: the next call is the probe."""

    async def main(clock: Clock) -> None:
        breaker = Breaker()
        fail(breaker)
        await clock.advance(1.0)
        breaker.end(None, probe=breaker.begin())
        assert (breaker.wait_s, breaker.begin()) == (0.0, True)

    with_clock(main)


def test_a_probe_that_speaks_lets_others_in() -> None:
    """Long before its end; that it fails later on is one failure, as any other."""

    async def main(clock: Clock) -> None:
        endpoint = Endpoint()
        fail(endpoint.breaker)
        await clock.advance(1.0)
        with pytest.raises(UpstreamUnavailable), endpoint.calling(1, lambda: False) as spoke:
            assert endpoint.breaker.wait_s > 0
            spoke()
            assert (endpoint.breaker.state, endpoint.breaker.wait_s) == ("closed", 0.0)
            raise UpstreamUnavailable("cut", endpoint="e")
        fail(endpoint.breaker, 3)
        assert endpoint.breaker.wait_s == 0.0
        fail(endpoint.breaker, 1)
        assert endpoint.breaker.wait_s == 1.0

    with_clock(main)
