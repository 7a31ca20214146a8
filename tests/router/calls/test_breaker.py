"""A breaker: when it keeps calls away, and how they come back."""

import pytest

from router.calls.replicas import Breaker, Endpoint
from router.errors import UpstreamUnavailable
from tests.router.clock import Clock, with_clock


def fail(breaker: Breaker, times: int = 5) -> None:
    """Let this many calls fail."""
    for _ in range(times):
        breaker.end(False, probe=breaker.begin())


def test_five_failures_in_a_row_open_a_breaker() -> None:
    """Four do not, and a success among them starts over. A call without a result changes
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


def test_a_half_open_breaker_lets_a_single_probe_through() -> None:
    """Calls from before the opening decide nothing."""

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


def test_every_failed_probe_doubles_the_pause() -> None:
    """Half a minute is the maximum; a success starts over."""

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


def test_a_probe_without_a_result_is_repeated() -> None:
    """Its client may have left. The next call is the probe."""

    async def main(clock: Clock) -> None:
        breaker = Breaker()
        fail(breaker)
        await clock.advance(1.0)
        breaker.end(None, probe=breaker.begin())
        assert (breaker.wait_s, breaker.begin()) == (0.0, True)

    with_clock(main)


def test_the_first_token_of_a_probe_closes_the_breaker() -> None:
    """A later failure of the probe counts as a single failure."""

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
