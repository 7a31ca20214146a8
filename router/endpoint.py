"""How one place where models are served is doing, whichever roles call it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from router.breaker import Breaker
from router.errors import UpstreamError, UpstreamGarbled, UpstreamUnavailable


class Endpoint:
    """The calls that are under way there, and what became of the last ones."""

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.in_flight = 0
        self.outstanding_tokens = 0
        """What the calls under way may read and write, by estimate."""

    @contextmanager
    def calling(self, tokens: int, silent: Callable[[], bool]) -> Iterator[Callable[[], None]]:
        """A call of so many tokens; what it yields is to be called once it says something, as a probe need not be over
        to have shown that others may follow. `silent`: whether it has not said anything for suspiciously long; then
        that it is given up tells as much as a failure.
        """
        breaker = self.breaker  # while the call is under way there may come a new one
        probe = breaker.begin()
        self.in_flight += 1
        self.outstanding_tokens += tokens
        good: bool | None = None

        def spoke() -> None:
            nonlocal probe
            if probe:
                breaker.end(True, probe=True)
                probe = False

        try:
            yield spoke
            good = True
        except UpstreamError as error:
            good = _good(error)
            raise
        except BaseException:
            good = False if silent() else None
            raise
        finally:
            self.in_flight -= 1
            self.outstanding_tokens -= tokens
            breaker.end(good, probe=probe)


def _good(error: UpstreamError) -> bool | None:
    """What an error says of its endpoint: one that refuses works, and one that is asked too often may."""
    if isinstance(error, UpstreamUnavailable):
        return None if error.throttled else False
    return not isinstance(error, UpstreamGarbled)
