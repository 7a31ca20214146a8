"""Replicas of a model, their circuit breakers, and the choice of a replica for a call."""

import asyncio
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Literal

from router.background import loop_time
from router.calls.limits import RoleHealth
from router.errors import UpstreamError, UpstreamProtocolError, UpstreamUnavailable
from router.frozen import Frozen
from router.models import Model
from router.trace import RoleName

_IN_A_ROW = 5
_FIRST_S = 1.0
_LONGEST_S = 30.0
_PROBING_S = 0.25
"""Interval, in seconds, at which waiting calls check the breaker while a probe is under way."""

BreakerState = Literal["closed", "open", "half_open"]


class Breaker:
    """Circuit breaker of an endpoint: stops calls to an endpoint that keeps failing.

    After five consecutive failures, the breaker opens for a second and lets no calls through. Then
    it lets a single call through, the probe. If the probe succeeds, the breaker closes; if it
    fails, the breaker opens for twice as long as before, up to 30 seconds. While the breaker is not
    closed, only the result of the probe counts.
    """

    def __init__(self) -> None:
        self.state: BreakerState = "closed"
        self.openings = 0
        """Number of times that the breaker has opened."""
        self._in_a_row = 0
        self._open_s = _FIRST_S
        self._until = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds until the breaker may let a call through; 0 if it lets calls through now."""
        if self.state == "closed":
            return 0.0
        remaining = self._until - loop_time()
        return max(remaining, _PROBING_S if self.state == "half_open" else 0.0)

    def begin(self) -> bool:
        """Record that a call begins. Return True if the call is the probe of an open breaker."""
        probes = self.state == "open"
        if probes:
            self.state = "half_open"
        return probes

    def end(self, good: bool | None, *, probe: bool) -> None:
        """Record the result of a call. `good`: whether the endpoint worked; None if this is not
        known. `probe`: the value that `begin` returned for the call.
        """
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
        """Open the breaker: let no call through for a time that doubles with each opening, up to 30
        seconds.
        """
        self.state = "open"
        self.openings = self.openings + 1
        self._until = loop_time() + self._open_s
        self._open_s = min(2 * self._open_s, _LONGEST_S)
        self._in_a_row = 0


class Endpoint:
    """State of an endpoint that all its callers share: load, circuit breaker and last failure."""

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.last_failure = "the last calls failed"
        """Error message of the last failed call, except calls that were refused because of their
        prompt.
        """
        self.in_flight = 0
        self.outstanding_tokens = 0
        """Estimated prompt and output tokens of the calls under way."""
        self.unstopped = False
        """True if the endpoint also looks for stop strings in the model's reasoning, and so cuts
        the reasoning off. Such an endpoint is sent no stop strings.
        """

    @contextmanager
    def calling(self, tokens: int, silent: Callable[[], bool]) -> Iterator[Callable[[], None]]:
        """Count a call of `tokens` tokens as part of the load while the context is open, and pass
        its result to the breaker.

        Yields a function that the caller calls at the first token: if the call is a probe, the
        breaker closes at that moment and not only at the end of the call. `silent`: returns whether
        the call has had no output for suspiciously long. If so, a cancellation of the call counts
        as a failure of the endpoint.
        """
        breaker = self.breaker  # `self.breaker` may be replaced during the call
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
    """Return whether the endpoint works although a call failed with this error: True for a refusal,
    False for other errors, and None (unknown) if the endpoint limits the rate of calls.
    """
    if isinstance(error, UpstreamUnavailable):
        return None if error.throttled else False
    return not isinstance(error, UpstreamProtocolError)


_LONGEST_WAIT_S = 2.0
"""Max seconds that a call waits while the breakers of all replicas are open."""


class Replica(Frozen):
    """One of the endpoints that serve the same model."""

    model: Model
    deployment: str
    """Name of the endpoint in the ledger."""
    endpoint: Endpoint


def choose(
    replicas: Sequence[Replica],
    key: str,
    prompt_tokens: int,
    *,
    stay: bool,
    avoid: Collection[str] = (),
) -> Replica:
    """Return the replica to call for a prompt of about `prompt_tokens` tokens.

    Rendezvous hashing assigns each `key`, such as a run, to one replica, its home. Prompts with
    the same key begin alike, so the prefix cache of the home already holds their beginning.

    `stay`: True to choose the home, however busy it is. Otherwise the replica with the fewest
    outstanding tokens is chosen. Each replica except the home would have to read the whole prompt,
    so `prompt_tokens` are added to its outstanding tokens. `avoid`: deployments that have just
    failed; chosen only if no other replica works. Raises `UpstreamUnavailable` if no breaker lets a
    call through.
    """
    working = [replica for replica in replicas if not replica.endpoint.breaker.wait_s]
    if not working:
        first = min(replicas, key=lambda replica: replica.endpoint.breaker.wait_s)
        wait_s = first.endpoint.breaker.wait_s
        raise UpstreamUnavailable(
            f"{first.endpoint.last_failure}. The gateway sends no calls to this endpoint for "
            f"{wait_s:.1f} s; try again after that",
            endpoint=first.model.endpoint,
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
    """Return the result of `choice`, a function that calls `choose`. While all breakers are open,
    wait and try again, for at most two seconds and not beyond `until`, in the event loop's time.
    After that, raise the `UpstreamUnavailable` of `choice`.
    """
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
    """Holds the state of all endpoints and roles. All versions of the executor share it."""

    def __init__(self) -> None:
        self.endpoints = dict[str, Endpoint]()
        """State of endpoints by deployment, that is, by their names in the ledger."""
        self.roles = dict[RoleName, RoleHealth]()

    def endpoint(self, deployment: str) -> Endpoint:
        """Return the state of a deployment's endpoint. The first call for it creates the state."""
        return self.endpoints.setdefault(deployment, Endpoint())

    def role(self, name: RoleName, max_in_flight: int | None) -> RoleHealth:
        """Return the state of a role, with a limit of `max_in_flight` concurrent attempts. If the
        role already has a state, `max_in_flight` is ignored.
        """
        return self.roles.setdefault(name, RoleHealth(max_in_flight))
