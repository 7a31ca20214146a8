"""What the death of one replica does to questions that have nothing to do with it."""

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from sqlalchemy import select

from benchmarks.asking import at_rate
from benchmarks.chaos_accounts import Accounts, accounts
from benchmarks.chaos_gateway import BACKBONES, Patience, chaos_gateway, store_of
from benchmarks.chaos_questions import ANSWERED, Asker, Ended, Told
from router.runs.live import meanwhile
from router.store.database import Database
from router.store.schema import CALLS

Death = Literal["gone", "silent"]
_DEAD = BACKBONES
"""The first of the executors."""
_TIMES = 3
"""How often it dies of each death, with as many questions between as while it is dead."""
_PATIENCE = Patience(timeout_s=20.0, first_token_timeout_s=2.0, call_timeout_s=10.0)
_PACE = "--first-token", "0.05", "--tokens-a-second", "100"


class Beside(msgspec.Struct, frozen=True):
    """Questions while it was dead, of one death."""

    death: Death
    others: int
    """That did not call it."""
    p99_s: float
    """Of the others."""
    well_p99_s: float
    """Of as many as did not call it while it lived."""
    touched_p99_s: float
    """Of those that did call it while it was dead."""

    @property
    def ratio(self) -> float:
        """What the others' p99 grew by."""
        return self.p99_s / self.well_p99_s if self.well_p99_s else math.inf


class Replica(msgspec.Struct, frozen=True):
    """How it went."""

    told: Told
    accounts: Accounts
    beside: list[Beside]


async def one_dead(folder: Path, questions: int, a_second: float, seed: int, step: Callable[[int], None]) -> Replica:
    """Ask `questions` in all, some while an executor's replica is dead, and as many while it lives, in turns."""
    each = max(1, questions // (4 * _TIMES))
    ended: dict[str, list[Ended]] = {"well": [], "gone": [], "silent": []}
    async with chaos_gateway(folder, seed, _PATIENCE, *_PACE) as gateway:
        asker, proxies = Asker(gateway.client, _PATIENCE.timeout_s, seed, hurried_share=0.0), gateway.proxies

        async def ask(number: int) -> None:
            await asker.ask(f"When was the director of film number {len(asker.ended)}.{number} born?")

        async with meanwhile(asker.watch()):
            await at_rate(ask, each, a_second, seed)  # warms up
            for state in ("well", "gone", "well", "silent") * _TIMES:
                await proxies.become(_DEAD, state)
                begun = len(asker.ended)
                await at_rate(ask, each, a_second, seed)
                ended[state] += asker.ended[begun:]
                step(len(asker.ended))
        await proxies.look()
    found = await accounts(store_of(folder), asker.ended, proxies.attempts)
    called = await callers(store_of(folder), proxies.deployments[_DEAD])
    well = Sides.of(ended["well"], called)
    return Replica(
        Told.of(asker.ended, asker.lag_s),
        found,
        [
            Beside(death, len(sides.others), _p99(sides.others), _p99(well.others), _p99(sides.callers))
            for death in ("gone", "silent")
            for sides in [Sides.of(ended[death], called)]
        ],
    )


class Sides(msgspec.Struct, frozen=True):
    """Seconds that questions took."""

    callers: list[float]
    """That called some deployment, or were not answered."""
    others: list[float]

    @classmethod
    def of(cls, ended: Sequence[Ended], called: Collection[str]) -> "Sides":
        """`called`: the runs that called the deployment."""
        others = [one for one in ended if one.outcome == ANSWERED and one.run_id not in called]
        return cls([one.took_s for one in ended if one not in others], [one.took_s for one in others])


async def callers(store: str, deployment: str) -> set[str]:
    """The runs that called it, or tried to."""
    database = await Database.open(store)
    wanted = select(CALLS.c.run_id).distinct().where(CALLS.c.deployment == deployment)
    try:
        return await database.read(lambda connection: set(connection.scalars(wanted)))
    finally:
        await database.close()


def _p99(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) * 99 // 100] if seconds else 0.0
