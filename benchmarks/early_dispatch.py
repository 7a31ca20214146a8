"""Measure the time that early dispatch saves. The delegator writes its sub-queries as a JSON list,
called a block. With early dispatch, an executor starts on a sub-query as soon as the sub-query's
closing quote is written. Without early dispatch, executors start when the whole block is written.

Two gateways answer questions with one block, and their wall times are compared. One gateway
dispatches early, the other does not. Both gateways use the same simulated models, which write at a
set speed. Each question is sent to both gateways at the same time, so that other load on the
machine affects both.

A sub-query has about 25 tokens. The delegator writes one block and then stops; executors search
once or twice and report; the answerer writes one sentence. Early dispatch cannot start the last
sub-query of a block sooner, but the other sub-queries finish sooner, so that the last sub-query has
the engine for itself. So the gain depends on the executors' engines. With `shared`, the executors
of a question share an engine that serves only two calls at full speed, like a small or busy engine.
With `alone`, every executor has full speed.
"""

import asyncio
import json
import random
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from itertools import product, starmap

from aiohttp import web
from msgspec import structs
from rolegate.client import AsyncClient

from benchmarks import harness
from benchmarks.gateway import MODELS, canned_config, gateway, played
from benchmarks.harness import work_folder
from benchmarks.load import in_flight, timed
from executor_sft.command import Count
from router.frozen import Frozen
from router.testing.openai_server import ChatRequest, Reply, writes

_EXECUTORS_PER_S = 75.0
_ENGINES = {"shared": 2, "alone": 1000}
"""For each kind of engine: number of concurrent calls for one question that the engine serves at
full speed.
"""
_PAIRS_AT_ONCE = 2
"""Number of questions to ask at the same time, each with and without early dispatch."""
_ANSWERS_PER_S = 100.0
_FIRST_TOKEN_S = 0.05
_SEARCHES_TWICE = 0.4
"""Share of executors that search twice; the others search once."""
_ROLES = {role: {"max_tokens": 4096} for role in MODELS}
_SETTINGS = re.compile(r"(\w+)=([\w.]+)")
_QUERY = "<search>what is to be known of this in the passages that there are</search>"
_REPORT = (
    "<answer>what the passage says of it</answer>\n<evidence>Heat is a film by Michael Mann, who "
    "was born in Chicago in 1943, and this is the point that the answer rests on.</evidence>"
)


class Options(harness.Options):
    """Options of the benchmark."""

    questions: Count = 6
    """number of questions per setting"""
    blocks: tuple[int, ...] = (1, 2, 4, 8)
    """numbers of sub-queries in a round; each number is measured"""
    speeds: tuple[float, ...] = (
        25.0,
        50.0,
        100.0,
    )
    """generation speeds of the delegator to measure, in tokens per second"""


class Setting(Frozen):
    """Setting of a measurement: number of sub-queries, speed of the delegator, and kind of the
    executors' engine.
    """

    block: int
    """Number of sub-queries in the question's block."""
    delegator: float
    """Speed of the delegator, in tokens per second."""
    engine: str
    """Kind of the executors' engine: a key of `_ENGINES`."""

    def question(self, number: int) -> str:
        """Return a question with this setting in its text, where the simulated models read it.
        Questions with different numbers have no sub-query in common.
        """
        fields = {"number": number, **structs.asdict(self)}
        return " ".join(f"{name}={value}" for name, value in fields.items())


class SettingTimes(Setting, kw_only=True):
    """Wall times of a question in one setting, as medians over questions."""

    without_s: float
    """Seconds without early dispatch."""
    with_s: float
    """Seconds with early dispatch."""
    gain: float
    """Time that early dispatch saves, as a share of the time without it; median over questions."""


class Figures(Frozen):
    """Times in all settings. A typical setting is a block of 4 sub-queries and a delegator that
    writes 50 tokens per second.
    """

    rows: list[SettingTimes]


async def measure(options: Options) -> Figures:
    """Ask the questions of each setting through both gateways, and return the times."""
    kinds = product(options.blocks, options.speeds, _ENGINES)
    asked = [setting for setting in starmap(Setting, kinds) for _ in range(options.questions)]
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(work_folder(None))
        models, retrieval = await stack.enter_async_context(played(_Paced()))
        clients = []
        for early in (False, True):
            config = canned_config(
                folder / str(early),
                [models.base_url],
                retrieval,
                _ROLES,
                search={"early_dispatch": early},
            )
            process = await stack.enter_async_context(gateway(config))
            clients.append(await stack.enter_async_context(AsyncClient(process.words[0])))

        async def pair(question: str) -> list[float]:
            return await asyncio.gather(*(timed(client.ask)(question) for client in clients))

        questions = [setting.question(number) for number, setting in enumerate(asked)]
        seconds = await in_flight(pair, questions, _PAIRS_AT_ONCE, "pairs of questions")

    pairs = dict[Setting, list[list[float]]]()
    for setting, pair_s in zip(asked, seconds, strict=True):
        pairs.setdefault(setting, []).append(pair_s)
    return Figures([_row(setting, times) for setting, times in pairs.items()])


def _row(setting: Setting, pairs: Sequence[Sequence[float]]) -> SettingTimes:
    """Return the figures of a setting. `pairs`: seconds without and with early dispatch, for each
    question.
    """
    without_s, with_s = map(statistics.median, zip(*pairs, strict=True))
    gain = statistics.median(1 - early_s / late_s for late_s, early_s in pairs)
    fields = structs.asdict(setting)
    return SettingTimes(
        **fields,
        without_s=without_s,
        with_s=with_s,
        gain=gain,
    )


class _Paced:
    """Simulated models that write at the speed in the question's text. The executors of a run share
    the speed of their engine.
    """

    def __init__(self) -> None:
        self._executing = Counter[str]()
        """For each run, by run id: number of calls of executors that are in progress."""

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        runs = list[str]()
        try:
            return await writes(lambda asked: self._reply(asked, runs))(request)
        finally:
            self._executing.subtract(runs)

    def _reply(self, asked: ChatRequest, runs: list[str]) -> Reply:
        setting = dict(_SETTINGS.findall(asked.texts[1]))
        turns = len(asked.texts)
        if asked.model == "answerer":
            return _written("<answer>in 1943</answer>", lambda: _ANSWERS_PER_S)
        if asked.model == "delegator":
            text = _block(setting) if turns == 2 else "<stop/>Enough evidence<stop>"
            return _written(text, lambda: float(setting["delegator"]))

        runs.append(asked.run_id)
        self._executing[asked.run_id] += 1
        twice = random.Random(f"{setting['number']}-{setting['item']}").random() < _SEARCHES_TWICE
        last_search = 4 if twice else 2

        def speed() -> float:
            share = _ENGINES[setting["engine"]] / self._executing[asked.run_id]
            return _EXECUTORS_PER_S * min(1.0, share)

        return _written(_QUERY if turns <= last_search else _REPORT, speed)


def _written(text: str, speed: Callable[[], float]) -> Reply:
    """Return a reply that streams `text` in pieces of about one token. `speed`: returns the current
    number of tokens per second.
    """
    tokens = re.findall(r"\s*(?:\w+|[^\w\s]+)", text)
    return Reply(tokens, _FIRST_TOKEN_S, lambda: 1 / speed())


def _block(setting: dict[str, str]) -> str:
    """Return a block of sub-queries of about 25 tokens each. Each text contains the parts of the
    setting that the simulated executors need.
    """
    carried = " ".join(f"{name}={setting[name]}" for name in ("number", "engine"))
    sub_queries = [
        f"Of item={item} {carried}: what is said, and when did it begin?"
        for item in range(int(setting["block"]))
    ]
    return f"<search>{json.dumps(sub_queries)}</search>"
