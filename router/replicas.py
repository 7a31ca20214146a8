"""The replicas of a model, and which of them a call goes to."""

import asyncio
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from router.endpoint import Endpoint
from router.errors import UpstreamUnavailable
from router.model import Model

_OUTLIER_SHARE, _OUTLIER_FACTOR = 0.3, 3.0
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
    replicas: Sequence[Replica], key: str, prompt_tokens: int, *, stay: bool, avoid: Collection[str] = ()
) -> Replica:
    """The one to call. Every `key` has a home (rendezvous hashing), which has its prefix in its cache.

    `stay`: whether the call goes home, whatever is under way there. Otherwise it goes where the least tokens are
    outstanding, counting `prompt_tokens` more wherever they would have to be read anew. `avoid`: deployments that have
    just failed; called only where there is no other. Raises `UpstreamUnavailable` where all are to be left alone.
    """
    working = [replica for replica in replicas if not replica.endpoint.breaker.wait_s]
    if not working:
        wait_s = min(replica.endpoint.breaker.wait_s for replica in replicas)
        model = replicas[0].model
        said = f"model {model.name!r}: left alone for {wait_s:.1f} s, because its last calls failed"
        raise UpstreamUnavailable(said, endpoint=model.endpoint, retry_after_s=wait_s, unspent=True, repeatable=False)
    fresh = [replica for replica in working if replica.deployment not in avoid] or working
    if len(fresh) == 1:
        return fresh[0]
    home = max(fresh, key=lambda replica: _weight(key, replica))
    if stay:
        return home

    def cost(replica: Replica) -> int:
        return replica.endpoint.outstanding_tokens + (0 if replica is home else prompt_tokens)

    return min((home, *fresh), key=cost)


async def chosen(
    replicas: Sequence[Replica], key: str, prompt_tokens: int, *, stay: bool, avoid: Collection[str] = (), until: float
) -> Replica:
    """As `choose`, which is tried again for a moment, but not beyond `until`, in the event loop's time."""
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


def eject_outliers(replicas: Sequence[Replica]) -> None:
    """Leave those alone that fail far more often than the others, but never more than half of all."""
    shares = [(replica, replica.endpoint.breaker.failing_share) for replica in replicas]
    away = sum(replica.endpoint.breaker.state != "closed" for replica in replicas)
    for replica, share in shares:
        others = [other for one, other in shares if one is not replica and other is not None]
        if share is None or not others or share < _OUTLIER_SHARE or 2 * (away + 1) > len(replicas):
            continue
        if share >= _OUTLIER_FACTOR * sum(others) / len(others):
            replica.endpoint.breaker.open()
            away += 1


def _weight(key: str, replica: Replica) -> bytes:
    return blake2b(f"{key}\0{replica.deployment}".encode(), digest_size=8).digest()
