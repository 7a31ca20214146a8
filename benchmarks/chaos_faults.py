"""Many questions through canned models, while every upstream fails in all ways."""

import asyncio
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from benchmarks.chaos_accounts import Accounts, accounts
from benchmarks.chaos_gateway import Patience, chaos_gateway, store_of
from benchmarks.chaos_questions import Asker, Load, Told
from router.runs.live import meanwhile

_LOOKS_EVERY_S = 0.5
_PATIENCE = Patience(timeout_s=8.0, first_token_timeout_s=1.0, call_timeout_s=3.0)
_THOUSAND = 1000


class Faulty(msgspec.Struct, frozen=True):
    """What became of them."""

    told: Told
    accounts: Accounts
    faults: dict[str, dict[str, int]]
    """Calls by upstream, by what went wrong with them."""
    own_mb: list[float]
    """Of the gateway's process, at the median while each thousand of questions was asked: what it alone has."""
    rss_mb: list[float]
    """With what it shares."""
    descriptors: list[float]
    """Its open files and sockets, likewise."""

    @property
    def growth(self) -> float:
        """Of its own memory from the first thousand to the last, as a share."""
        return self.own_mb[-1] / self.own_mb[0] - 1


async def faulty(folder: Path, load: Load, step: Callable[[int], None]) -> Faulty:
    """Ask, with a store in the new `folder`. `step` hears how many questions have ended."""
    samples: list[tuple[int, float, float, int]] = []
    async with chaos_gateway(folder, load.seed, _PATIENCE) as gateway:
        asker = Asker(gateway.client, _PATIENCE.timeout_s, load.seed)

        async def watch() -> None:
            while True:
                done, meter = min(len(asker.ended), load.questions - 1), gateway.meter
                samples.append((done, meter.own_bytes / 1e6, meter.rss_bytes / 1e6, meter.descriptors))
                step(done)
                await asyncio.sleep(_LOOKS_EVERY_S)

        await gateway.proxies.share(load.share)
        asked = (f"When was the director of film number {number} born?" for number in range(load.questions))
        async with meanwhile(watch(), asker.watch()):
            await asker.ask_all(asked, load.at_once)
        await gateway.proxies.look()
    return Faulty(
        Told.of(asker.ended, asker.lag_s),
        await accounts(store_of(folder), asker.ended, gateway.proxies.attempts),
        dict(gateway.proxies.faults),
        *(by_thousand((sample[0], sample[kind]) for sample in samples) for kind in (1, 2, 3)),
    )


def by_thousand(samples: Iterable[tuple[int, float]]) -> list[float]:
    """The median of what was seen while each thousand of questions was asked."""
    parts: dict[int, list[float]] = {}
    for done, value in samples:
        parts.setdefault(done // _THOUSAND, []).append(value)
    return [statistics.median(part) for part in parts.values()]
