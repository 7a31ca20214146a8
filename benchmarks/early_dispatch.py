"""Time saved by early dispatch: a sub-query starts when its closing quote is written, and not when
its block is. Measures the wall time of questions with one block, with and without early dispatch,
by two gateways in front of the same paced models. Both get each question at the same time, so that
other load on the machine affects both.

Sub-queries have some 25 tokens. The delegator writes one block and then stops; executors search
once or twice and report; the answerer writes one sentence. With early dispatch the first
sub-queries finish sooner; the last one starts no earlier, but finds the engine free. So the gain
depends on the engines: the executors of a question share one that serves two calls at full speed
(`shared`), like a small or busy engine, or have one each (`alone`).
"""

import asyncio
import json
import random
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from itertools import product
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta
from rolegate.client import AsyncClient

from benchmarks import harness
from benchmarks.gateway import MODELS, canned_config, gateway, played
from benchmarks.harness import work_folder
from benchmarks.load import in_flight, timed
from router.testing.openai_server import ChatRequest, Reply, writes

_EXECUTORS_PER_S = 75.0
_ENGINES = {"shared": 2, "alone": 1000}
"""Calls of a question that the engine serves at full speed."""
_PAIRS_AT_ONCE = 2
_ANSWERS_PER_S = 100.0
_FIRST_TOKEN_S = 0.05
_SEARCHES_TWICE = 0.4
_ROLES = {role: {"max_tokens": 4096} for role in MODELS}
_SETTINGS = re.compile(r"(\w+)=([\w.]+)")
_QUERY = "<search>what is to be known of this in the passages that there are</search>"
_REPORT = (
    "<answer>what the passage says of it</answer>\n<evidence>Heat is a film by Michael "
    "Mann, who was born in Chicago "
    "in 1943, and this is the point that the answer rests on.</evidence>"
)


class Options(harness.Options, frozen=True, kw_only=True):
    """Options of the benchmark."""

    questions: Annotated[int, Meta(ge=1, description="questions per setting")] = 6
    blocks: Annotated[tuple[int, ...], Meta(description="sub-queries per block")] = (1, 2, 4, 8)
    speeds: Annotated[tuple[float, ...], Meta(description="the delegator's tokens a second")] = (
        25.0,
        50.0,
        100.0,
    )


class Setting(msgspec.Struct, frozen=True):
    """Number of sub-queries of a question, and speed of the models."""

    block: int
    """Number of sub-queries."""
    delegator: float
    """Tokens per second."""
    engine: str
    """Engine of the executors, of `_ENGINES`."""

    def question(self, number: int) -> str:
        """Return a question that tells the models this setting; no two numbers share a
        sub-query.
        """
        fields = {"number": number, **msgspec.structs.asdict(self)}
        return " ".join(f"{name}={value}" for name, value in fields.items())


class SettingTimes(Setting, frozen=True, kw_only=True):
    """Median wall time of a question in a setting, in seconds."""

    without_s: float
    with_s: float
    gain: float
    """Median over questions of the share of time that early dispatch saves."""


class Figures(msgspec.Struct, frozen=True):
    """Rows of all settings; the usual case is 4 sub-queries at 50 tokens per second."""

    rows: list[SettingTimes]


async def measure(options: Options) -> Figures:
    """Ask the questions of each setting through both gateways."""
    asked = [setting for setting in _settings(options) for _ in range(options.questions)]
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

    pairs: dict[Setting, list[list[float]]] = {}
    for setting, pair_s in zip(asked, seconds, strict=True):
        pairs.setdefault(setting, []).append(pair_s)
    return Figures([_row(setting, times) for setting, times in pairs.items()])


def _settings(options: Options) -> list[Setting]:
    """Return all settings."""
    return [Setting(*setting) for setting in product(options.blocks, options.speeds, _ENGINES)]


def _row(setting: Setting, pairs: Sequence[Sequence[float]]) -> SettingTimes:
    without_s, with_s = map(statistics.median, zip(*pairs, strict=True))
    gain = statistics.median(1 - early_s / late_s for late_s, early_s in pairs)
    fields = msgspec.structs.asdict(setting)
    return SettingTimes(
        **fields,
        without_s=without_s,
        with_s=with_s,
        gain=gain,
    )


class _Paced:
    """Simulated models that write at the speed given in the question; the executors of a run share
    an engine.
    """

    def __init__(self) -> None:
        self._executing = Counter[str]()
        """Executor calls in progress, by run."""

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        runs: list[str] = []
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
    """Write a text in tokens, much as a tokenizer splits it. `speed`: tokens per second now."""
    tokens = re.findall(r"\s*(?:\w+|[^\w\s]+)", text)
    return Reply(tokens, _FIRST_TOKEN_S, lambda: 1 / speed())


def _block(setting: dict[str, str]) -> str:
    """Return sub-queries of some 25 tokens each, which pass the setting on to executors."""
    carried = " ".join(f"{name}={setting[name]}" for name in ("number", "engine"))
    sub_queries = [
        f"Of item={item} {carried}: what is said, and when did it begin?"
        for item in range(int(setting["block"]))
    ]
    return f"<search>{json.dumps(sub_queries)}</search>"
