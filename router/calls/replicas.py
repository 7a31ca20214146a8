"""Replicas of a model, their breakers, and the choice of a replica for a call."""

import asyncio
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from router.calls.limits import RoleHealth
from router.errors import UpstreamError, UpstreamProtocolError, UpstreamUnavailable
from router.models import Model
from router.trace import RoleName

_IN_A_ROW = 5
_FIRST_S = 1.0
_LONGEST_S = 30.0
_PROBING_S = 0.25
"""Seconds to wait while a probe is under way."""

BreakerState = Literal["closed", "open", "half_open"]


class Breaker:
    """Circuit breaker of an endpoint.

    Opens for a second after five failures in a row, and for twice as long, up to 30 seconds, after
    each failed probe. The results of calls that began before it opened are ignored.
    """

    def __init__(self) -> None:
        self.state: BreakerState = "closed"
        self.openings = 0
        """Number of times that it opened."""
        self._in_a_row = 0
        self._open_s = _FIRST_S
        self._until = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds until a call may be let through; 0 for now."""
        if self.state == "closed":
            return 0.0
        remaining = self._until - asyncio.get_running_loop().time()
        return max(remaining, _PROBING_S if self.state == "half_open" else 0.0)

    def begin(self) -> bool:
        """Let a call through. Return whether it is a probe."""
        probes = self.state == "open"
        if probes:
            self.state = "half_open"
        return probes

    def end(self, good: bool | None, *, probe: bool) -> None:
        """Take the result of a call. `good`: None if it says nothing about the endpoint."""
        if probe and good:
            self.state = "closed"
            self._open_s = _FIRST_S
        elif probe and good is None:
            self.state = "open"  # the next call is a probe
        elif probe:
            self.open()
        elif self.state == "closed" and good is not None:
            self._in_a_row = 0 if good else self._in_a_row + 1
            if self._in_a_row >= _IN_A_ROW:
                self.open()

    def open(self) -> None:
        """Let no call through for a while."""
        self.state = "open"
        self.openings = self.openings + 1
        self._until = asyncio.get_running_loop().time() + self._open_s
        self._open_s = min(2 * self._open_s, _LONGEST_S)
        self._in_a_row = 0


class Endpoint:
    """Load and breaker of an endpoint."""

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.in_flight = 0
        self.outstanding_tokens = 0
        """Estimated prompt and output tokens of the calls under way."""
        self.unstopped = False
        """True once a stop string ended its reasoning, so that it gets no stop strings any more."""

    @contextmanager
    def calling(self, tokens: int, silent: Callable[[], bool]) -> Iterator[Callable[[], None]]:
        """Count a call of so many tokens, and give its result to the breaker.

        Yields a function to call at its first token, because a probe that answers closes the
        breaker. `silent`: returns whether there was no output for suspiciously long; then a
        cancellation counts as a failure.
        """
        breaker = self.breaker  # may be replaced during the call
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
    """Return whether an error leaves its endpoint healthy; None if unknown. A refusal does, and
    throttling may.
    """
    if isinstance(error, UpstreamUnavailable):
        return None if error.throttled else False
    return not isinstance(error, UpstreamProtocolError)


_LONGEST_WAIT_S = 2.0
"""Max wait of a call while the breakers of all replicas are open."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A model at one endpoint."""

    model: Model
    deployment: str
    """Name of the place where it is served, as in the ledger."""
    endpoint: Endpoint


def choose(
    replicas: Sequence[Replica],
    key: str,
    prompt_tokens: int,
    *,
    stay: bool,
    avoid: Collection[str] = (),
) -> Replica:
    """Return the replica to call. Every `key` has a home by rendezvous hashing, whose cache holds
    its prefix.

    `stay`: call the home, however busy. Otherwise, the replica with the fewest outstanding tokens
    is called; `prompt_tokens` are added for replicas that have to read the prompt again. `avoid`:
    deployments that have just failed, called only if no other works. Raises `UpstreamUnavailable`
    if all breakers are open.
    """
    working = [replica for replica in replicas if not replica.endpoint.breaker.wait_s]
    if not working:
        wait_s = min(replica.endpoint.breaker.wait_s for replica in replicas)
        model = replicas[0].model
        raise UpstreamUnavailable(
            f"model {model.name!r}: not called for {wait_s:.1f} s, because its last calls failed",
            endpoint=model.endpoint,
            retry_after_s=wait_s,
            unspent=True,
            repeatable=False,
        )

    def weight(replica: Replica) -> bytes:
        return blake2b(f"{key}\0{replica.deployment}".encode(), digest_size=8).digest()

    def load(replica: Replica) -> int:
        reading = 0 if replica is home else prompt_tokens
        return replica.endpoint.outstanding_tokens + reading

    candidates = [replica for replica in working if replica.deployment not in avoid] or working
    home = max(candidates, key=weight)
    return home if stay else min((home, *candidates), key=load)


async def chosen(choice: Callable[[], Replica], until: float) -> Replica:
    """Repeat a `choose` for up to two seconds, until `until` in the event loop's time."""
    clock = asyncio.get_running_loop().time
    until = min(until, clock() + _LONGEST_WAIT_S)
    while True:
        try:
            return choice()
        except UpstreamUnavailable as error:
            pause_s = (error.retry_after_s or 0.0) * random.uniform(1.0, 1.25)
            if clock() + pause_s > until:
                raise
        await asyncio.sleep(pause_s)


class Upstreams:
    """Endpoints by deployment and health by role, shared by all executor versions."""

    def __init__(self) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        """Endpoints by deployment, as in the ledger."""
        self.roles: dict[RoleName, RoleHealth] = {}

    def endpoint(self, deployment: str) -> Endpoint:
        """Return the endpoint of a deployment."""
        return self.endpoints.setdefault(deployment, Endpoint())

    def role(self, name: RoleName, max_in_flight: int | None) -> RoleHealth:
        """Return the health of a role. The limit of the first call counts."""
        return self.roles.setdefault(name, RoleHealth(max_in_flight))
