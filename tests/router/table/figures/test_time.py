"""Time that a table takes with more slots and without a barrier, as ratios of runs in turn on
one machine. Models write over HTTP, with 100 ms to the first token and then 200 tokens a second,
times a random factor for each ask. 40 rows of 3 columns take 10 discoveries and 40 fills.
"""

import asyncio
import html
import math
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import msgspec
import pytest

from router.calls import Role
from router.models.connection_pool import ConnectionPool
from router.models.openai_client import OpenAIHTTP
from router.search import RunContext
from router.search.executor import Executes
from router.table import TableLimits, table_of
from router.trace import Execution
from tests.openai_server import ChatRequest, OpenAIServer, Reply, serving, writes
from tests.router.table.figures.runs import run_of, show
from tests.router.table.small_world import Reader, World, lead_turn
from tests.router.table.test_filling import result, values

pytestmark = pytest.mark.slow

_FIRST_TOKEN_S = 0.1
_TOKEN_S = 0.005
_A_TURN = 5
WORLD = World(40)
Around = Callable[[Executes], Executes]


class Paced:
    """Text and pace of each reply.

    The pace of an executor is drawn from a log-normal distribution, seeded by its ask.
    """

    def __init__(self, sigma: float = 0.0, seed: int = 0) -> None:
        self._sigma = sigma
        self._seed = seed
        self._reader = Reader()

    def __call__(self, asked: ChatRequest) -> Reply:
        slower = 1.0
        request = html.unescape(asked.texts[1])
        if asked.model == "lead":
            text = lead_turn(WORLD, len(asked.texts), _A_TURN)
        else:
            slower = math.exp(random.Random(f"{self._seed}/{request}").gauss(0, self._sigma))
            text = f"<search>{asked.texts[1]}</search>"
            if len(asked.texts) > 2:
                text = self._reader.report(request, "\n".join(asked.texts[2:]))
        return Reply(Reply.of(text).tokens, _FIRST_TOKEN_S * slower, lambda: _TOKEN_S * slower)


class Held:
    """Executors whose reports wait for all running ones, as a lead waits for the reports of its
    turn.
    """

    def __init__(self, executor: Executes, of: Callable[[str], bool]) -> None:
        """Hold the sub-queries for which `of` returns True."""
        self._executor = executor
        self._of = of
        self._at_work = 0
        self._all_done = asyncio.Event()

    @property
    def report_tokens(self) -> int:
        return self._executor.report_tokens

    def role(self, context: RunContext) -> Role:
        return self._executor.role(context)

    async def run(self, sub_query: str, index: int, context: RunContext) -> Execution:
        if not self._of(sub_query):
            return await self._executor.run(sub_query, index, context)
        self._at_work = self._at_work + 1
        all_done = self._all_done
        execution = await self._executor.run(sub_query, index, context)
        self._at_work -= 1
        if not self._at_work:
            self._all_done = asyncio.Event()
            all_done.set()
        await all_done.wait()
        return execution


def every_turn(executor: Executes) -> Executes:
    """Wait for all running executors before any other begins, like the papers."""
    return Held(executor, lambda _: True)


def discoveries_first(executor: Executes) -> Executes:
    """Wait for all discoveries of a turn before any row is filled."""
    return Held(executor, lambda sub_query: "part" in sub_query)


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with serving(recording=False) as server:
        yield server


@asynccontextmanager
async def _models(server: OpenAIServer) -> AsyncIterator[dict[str, OpenAIHTTP]]:
    async with ConnectionPool() as pool:
        yield {
            "executor": OpenAIHTTP(pool, server.base_url, "reader"),
            "delegator": OpenAIHTTP(pool, server.base_url, "lead"),
        }


async def timed(
    folder: Path, server: OpenAIServer, width: int, around: Around = lambda executor: executor
) -> tuple[float, bytes]:
    """Return the seconds of a run, and its table with all support."""
    async with _models(server) as models:
        began = time.perf_counter()
        limits = TableLimits(width=width)
        run = await run_of(folder, WORLD, **models, limits=limits, early=False, around=around)
        seconds = time.perf_counter() - began
    assert sorted(values(run)) == sorted(WORLD.rows())
    return seconds, msgspec.json.encode(table_of(result(run)))


async def test_eight_slots_are_three_times_as_fast_and_change_no_table(
    tmp_path: Path, server: OpenAIServer
) -> None:
    server.plays(writes(Paced()))
    seconds: dict[int, list[float]] = {1: [], 2: [], 4: [], 8: [], 16: []}
    tables = set[bytes]()
    for turn in range(3):
        for width, durations in seconds.items():
            taken, table = await timed(tmp_path / f"{width}-{turn}", server, width)
            durations.append(taken)
            tables.add(table)
    sooner = {
        width: [single / other for single, other in zip(seconds[1], durations, strict=True)]
        for width, durations in seconds.items()
    }
    show(
        f"{len(WORLD.cities)} rows x 3 columns by slots, 3 runs each: {len(tables)} table",
        [
            {
                "slots": width,
                "times as soon as with one": median(ratios),
                "least": min(ratios),
                "most": max(ratios),
            }
            for width, ratios in sooner.items()
        ],
    )
    assert len(tables) == 1
    assert median(sooner[8]) >= 3


async def test_a_barrier_makes_a_table_at_least_1_3_times_as_slow(
    tmp_path: Path, server: OpenAIServer
) -> None:
    """The durations of executors have a log-normal distribution of sigma 1, and a turn waits for
    all its executors.
    """
    variants: dict[str, Around] = {
        "no": lambda executor: executor,
        "turn": every_turn,
        "discoveries": discoveries_first,
    }
    rows = list[dict[str, object]]()
    tables = set[bytes]()
    longer: dict[str, list[float]] = {name: [] for name in variants}
    for seed in range(5):
        server.plays(writes(Paced(1.0, seed)))
        seconds = dict[str, float]()
        for name, around in variants.items():
            seconds[name], table = await timed(tmp_path / f"{name}-{seed}", server, 8, around)
            tables.add(table)
        for name, ratios in longer.items():
            ratios.append(seconds[name] / seconds["no"])
        rows.append({"seed": seed, **{name: ratios[-1] for name, ratios in longer.items()}})
    rows.append({"seed": "median", **{name: median(ratios) for name, ratios in longer.items()}})
    show(
        "Time with a barrier to without, 8 slots, sigma 1: of every turn; of discoveries "
        "before fills",
        rows,
    )
    assert len(tables) == 1
    assert median(longer["turn"]) >= 1.3
