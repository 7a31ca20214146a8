"""Questions with a deadline, and how each of them ended."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence

import grpc
import msgspec
from rolegate.client import AsyncClient, GatewayError

ANSWERED = "answered"
LATE_S = 0.1
"""How much after its deadline a question may end."""
_BEYOND_S = 30.0
"""How much longer than the gateway's deadline is waited for it, to see how late it is."""
_HURRIED_SHARE = 0.2
_LEAST_S = 0.5
_LOOKS_EVERY_S = 0.05


class Load(msgspec.Struct, frozen=True):
    """What is asked, and what goes wrong meanwhile."""

    questions: int
    at_once: int
    share: float
    """Of calls with which something goes wrong."""
    seed: int


class Ended(msgspec.Struct, frozen=True):
    """How a question ended."""

    outcome: str
    """`answered`, or the reason of a typed error, or what was not one."""
    typed: bool
    took_s: float
    deadline_s: float
    run_id: str = ""
    """Of an answer; empty otherwise."""
    attempts: int = 0
    """Upstream calls that the answer was told to have taken."""
    tokens: int = 0

    @property
    def late_s(self) -> float:
        """After its deadline; negative before."""
        return self.took_s - self.deadline_s


class Asker:
    """Asks one gateway, some questions with less time than it gives."""

    def __init__(self, client: AsyncClient, timeout_s: float, seed: int, hurried_share: float = _HURRIED_SHARE) -> None:
        """`timeout_s`: what the gateway gives a request at most. `hurried_share`: of questions with less."""
        self._client, self._timeout_s, self._hurried = client, timeout_s, hurried_share
        self._chance = random.Random(seed)
        self.ended: list[Ended] = []
        """In the order of ending."""
        self.lag_s = 0.0
        """By how much this process itself was late at most, as far as `watch` has seen."""

    async def watch(self) -> None:
        """See how late this process is, for ever: a machine that is too busy makes everything late."""
        while True:
            due = time.perf_counter() + _LOOKS_EVERY_S
            await asyncio.sleep(_LOOKS_EVERY_S)
            self.lag_s = max(self.lag_s, time.perf_counter() - due)

    async def ask(self, question: str) -> Ended:
        """Ask one."""
        deadline_s, wait_s = self._timeout_s, self._timeout_s + _BEYOND_S
        if self._chance.random() < self._hurried:
            deadline_s = wait_s = self._chance.uniform(_LEAST_S, self._timeout_s)
        begun = time.perf_counter()
        try:
            answer = await self._client.ask(question, wait_s)
        except GatewayError as error:
            ended = _failed(error, time.perf_counter() - begun, deadline_s)
        else:
            took_s = time.perf_counter() - begun
            attempts = sum(usage.attempts for usage in answer.usage)
            tokens = sum(usage.prompt_tokens + usage.completion_tokens for usage in answer.usage)
            ended = Ended(ANSWERED, True, took_s, deadline_s, answer.run_id, attempts, tokens)
        self.ended.append(ended)
        return ended

    async def ask_all(self, questions: Iterable[str], at_once: int, pause_s: float = 0.0) -> None:
        """Ask them, `at_once` at a time. `pause_s`: after one that was not answered."""
        left = iter(questions)

        async def keep_asking() -> None:
            for question in left:
                if (await self.ask(question)).outcome != ANSWERED:
                    await asyncio.sleep(pause_s)

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(keep_asking())


class Told(msgspec.Struct, frozen=True):
    """How questions ended, summed up."""

    questions: int
    outcomes: dict[str, int]
    untyped: dict[str, int]
    """Those that ended neither in an answer nor in an error of the gateway's, nor at the client's own deadline."""
    late: int
    """Those that ended more than 100 ms after their deadline."""
    latest_ms: float
    """After the deadline, of the question that was closest to it, or furthest beyond."""
    lag_ms: float
    """By how much whoever asked was late at most, which the machine was too busy for."""
    p50_s: float
    p99_s: float

    @classmethod
    def of(cls, ended: Sequence[Ended], lag_s: float = 0.0) -> "Told":
        """Of at least one."""
        took = sorted(one.took_s for one in ended)
        return cls(
            questions=len(ended),
            outcomes=dict(Counter(one.outcome for one in ended).most_common()),
            untyped=dict(Counter(one.outcome for one in ended if not one.typed)),
            late=sum(one.late_s > LATE_S for one in ended),
            latest_ms=max(one.late_s for one in ended) * 1000,
            lag_ms=lag_s * 1000,
            p50_s=took[len(took) // 2],
            p99_s=took[len(took) * 99 // 100],
        )


def _failed(error: GatewayError, took_s: float, deadline_s: float) -> Ended:
    if error.reason:
        typed = error.reason != "INTERNAL"
        return Ended(error.reason, typed, took_s, deadline_s)
    typed = error.code is grpc.StatusCode.DEADLINE_EXCEEDED
    return Ended(f"{error.code.name}, by the client", typed, took_s, deadline_s)
