"""The replicas of a model, and which of them a call goes to."""

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
"""When to ask again while a probe is under way."""

BreakerState = Literal["closed", "open", "half_open"]


class Breaker:
    """Opens after five failures in a row, for a second; for twice as long, up to half a minute,
    after each probe that fails. What was begun before it opened decides nothing.
    """

    def __init__(self) -> None:
        self.state: BreakerState = "closed"
        self.openings = 0
        """How often it was opened."""
        self._in_a_row = 0
        self._open_s = _FIRST_S
        self._until = 0.0

    @property
    def wait_s(self) -> float:
        """In how many seconds a call may be let through; 0 for now."""
        if self.state == "closed":
            return 0.0
        remaining = self._until - asyncio.get_running_loop().time()
        return max(remaining, _PROBING_S if self.state == "half_open" else 0.0)

    def begin(self) -> bool:
        """Let a call through; whether it is a probe."""
        probes = self.state == "open"
        if probes:
            self.state = "half_open"
        return probes

    def end(self, good: bool | None, *, probe: bool) -> None:
        """A call has ended. `good`: None where that tells nothing of the endpoint."""
        if probe and good:
            self.state = "closed"
            self._open_s = _FIRST_S
        elif probe and good is None:
            self.state = "open"  # and due, for another probe
        elif probe:
            self.open()
        elif self.state == "closed" and good is not None:
            self._in_a_row = 0 if good else self._in_a_row + 1
            if self._in_a_row >= _IN_A_ROW:
                self.open()

    def open(self) -> None:
        """Let nothing through for a while."""
        self.state = "open"
        self.openings = self.openings + 1
        self._until = asyncio.get_running_loop().time() + self._open_s
        self._open_s = min(2 * self._open_s, _LONGEST_S)
        self._in_a_row = 0


class Endpoint:
    """The calls that are under way there, and what became of the last ones."""

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.in_flight = 0
        self.outstanding_tokens = 0
        """What the calls under way may read and write, by estimate."""
        self.unstopped = False
        """True once it met a stop string within its reasoning, so that none is sent there any
        more.
        """

    @contextmanager
    def calling(self, tokens: int, silent: Callable[[], bool]) -> Iterator[Callable[[], None]]:
        """A call of so many tokens; what it yields is to be called once it says something, as a
        probe need not be over to have shown that others may follow. `silent`: whether it has not
        said anything for suspiciously long; then that it is given up tells as much as a failure.
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
    """What an error says of its endpoint: one that refuses works, and one that is asked too
    often may.
    """
    if isinstance(error, UpstreamUnavailable):
        return None if error.throttled else False
    return not isinstance(error, UpstreamProtocolError)


_LONGEST_WAIT_S = 2.0
"""How long a call waits where all replicas are to be left alone for a while."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A model at one endpoint."""

    model: Model
    deployment: str
    """Where that is, as the ledger names it."""
    endpoint: Endpoint


def choose(
    replicas: Sequence[Replica],
    key: str,
    prompt_tokens: int,
    *,
    stay: bool,
    avoid: Collection[str] = (),
) -> Replica:
    """The one to call. Every `key` has a home (rendezvous hashing), which has its prefix in its
    cache.

    `stay`: whether the call goes home, whatever is under way there. Otherwise it goes where the
    least tokens are outstanding, counting `prompt_tokens` more wherever they would have to be read
    anew. `avoid`: deployments that have just failed; called only where there is no other. Raises
    `UpstreamUnavailable` where all are to be left alone.
    """
    working = [replica for replica in replicas if not replica.endpoint.breaker.wait_s]
    if not working:
        wait_s = min(replica.endpoint.breaker.wait_s for replica in replicas)
        model = replicas[0].model
        said = f"model {model.name!r}: left alone for {wait_s:.1f} s, because its last calls failed"
        raise UpstreamUnavailable(
            said, endpoint=model.endpoint, retry_after_s=wait_s, unspent=True, repeatable=False
        )
    fresh = [replica for replica in working if replica.deployment not in avoid] or working
    if len(fresh) == 1:
        return fresh[0]
    home = max(
        fresh, key=lambda one: blake2b(f"{key}\0{one.deployment}".encode(), digest_size=8).digest()
    )
    if stay:
        return home
    return min(
        (home, *fresh),
        key=lambda one: one.endpoint.outstanding_tokens + (0 if one is home else prompt_tokens),
    )


async def chosen(
    replicas: Sequence[Replica],
    key: str,
    prompt_tokens: int,
    *,
    stay: bool,
    avoid: Collection[str] = (),
    until: float,
) -> Replica:
    """Try `choose` again for a moment, but not beyond `until`, in the event loop's time."""
    clock = asyncio.get_running_loop().time
    until = min(until, clock() + _LONGEST_WAIT_S)
    while True:
        try:
            return choose(replicas, key, prompt_tokens, stay=stay, avoid=avoid)
        except UpstreamUnavailable as error:
            pause_s = (error.retry_after_s or 0.0) * random.uniform(1.0, 1.25)
            if clock() + pause_s > until:
                raise
        await asyncio.sleep(pause_s)


class Upstreams:
    """One endpoint for each deployment, and one health for each role, whichever of its versions
    calls.
    """

    def __init__(self) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        """By deployment, as the ledger names it."""
        self.roles: dict[RoleName, RoleHealth] = {}

    def endpoint(self, deployment: str) -> Endpoint:
        """The endpoint of a deployment."""
        return self.endpoints.setdefault(deployment, Endpoint())

    def role(self, name: RoleName, max_in_flight: int | None) -> RoleHealth:
        """The health of a role's calls; its limit is the one that was given first."""
        return self.roles.setdefault(name, RoleHealth(max_in_flight))
