"""Time that it saves to begin a sub-query once its closing quote is written, and not once its block
is: wall time of a question with one block, through two gateways, with and without early dispatch,
in front of the same paced models. Both are asked the same at the same time, so that what else the
machine does hits both.

Sub-queries have some 25 tokens. The delegator writes and then stops; executors search once or twice
and report; the answerer writes one sentence. With early dispatch the first sub-queries are done
sooner; the last one begins no earlier, but finds the engine free. So the gain depends on where
executors work: those of one question either have an engine that writes at full speed for two of
them (`shared`), as a small or busy one does, or one each (`alone`).
"""

import asyncio
import json
import random
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import product
from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta
from rolegate.client import AsyncClient

from benchmarks import harness
from benchmarks.gateway import MODELS, canned_config, gateway, played
from benchmarks.harness import work_folder
from benchmarks.load import in_flight, timed
from router.testing.openai_server import ChatRequest, Reply, writes

_EXECUTORS = {"fast": 150.0, "usual": 75.0, "slow": 30.0}
"""Tokens a second."""
_ENGINES: dict[Literal["shared", "alone"], int] = {"shared": 2, "alone": 1000}
"""Calls of a question that are written at full speed."""
_THINKS_S = 10.0
_ANSWERS_PER_S = 100.0
_FIRST_TOKEN_S = 0.05
_SEARCHES_TWICE = 0.4
_ROLES = {role: {"max_tokens": 4096} for role in MODELS}
_TOLD = re.compile(r"(\w+)=([\w.]+)")
_QUERY = "<search>what is to be known of this in the passages that there are</search>"
_REPORT = (
    "<answer>what the passage says of it</answer>\n<evidence>Heat is a film by Michael "
    "Mann, who was born in Chicago "
    "in 1943, and this is the point that the answer rests on.</evidence>"
)


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    questions: Annotated[int, Meta(ge=1, description="of each setting")] = 6
    blocks: Annotated[tuple[int, ...], Meta(description="sub-queries")] = (1, 2, 4, 8)
    speeds: Annotated[tuple[float, ...], Meta(description="the delegator's tokens a second")] = (
        25.0,
        50.0,
        100.0,
    )
    at_once: Annotated[int, Meta(ge=1, description="pairs of questions")] = 2
    tokens_per_event: Annotated[tuple[int, ...], Meta(description="of all models' streams")] = (1,)


class Setting(msgspec.Struct, frozen=True):
    """Sub-queries of a question, and how fast it is worked on."""

    block: int
    """Sub-queries."""
    delegator: float
    """Tokens a second."""
    thinks_s: float = 0.0
    executors: str = "usual"
    engine: Literal["shared", "alone"] = "shared"
    tokens_per_event: int = 1

    def question(self, number: int) -> str:
        """A question that is worked on so; no two numbers share a sub-query."""
        return " ".join(
            f"{name}={value}"
            for name, value in {"number": number, **msgspec.structs.asdict(self)}.items()
        )


class Row(Setting, frozen=True, kw_only=True):
    """Wall time of a question, in seconds at the median."""

    without_s: float
    with_s: float
    gain: float
    """Share of the time without that is saved, at the median over questions."""


class Figures(msgspec.Struct, frozen=True):
    """Rows of all settings; of most interest is that of 4 sub-queries at 50 tokens a second."""

    questions: int
    """Of each setting, with and without."""
    rows: list[Row]


async def measure(options: Options) -> Figures:
    """Ask the questions of each setting through both gateways."""
    settings = [Setting(block, speed) for block, speed in product(options.blocks, options.speeds)]
    settings += [
        Setting(4, 50.0, 0.0, executors, engine) for engine in _ENGINES for executors in _EXECUTORS
    ]
    settings += [Setting(4, 50.0, _THINKS_S, executors) for executors in _EXECUTORS]
    replaced = msgspec.structs.replace
    each = product(dict.fromkeys(settings), options.tokens_per_event)
    settings = [replaced(setting, tokens_per_event=tokens) for setting, tokens in each]
    asked = [setting for setting in settings for _ in range(options.questions)]
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(work_folder(None))
        models, retrieval = await stack.enter_async_context(played(_Paced()))
        clients = []
        for early in (False, True):
            own = folder / str(early)
            search = {"early_dispatch": early}
            config = canned_config(own, [models.base_url], retrieval, _ROLES, search=search)
            process = await stack.enter_async_context(gateway(config))
            clients.append(await stack.enter_async_context(AsyncClient(process.words[0])))

        async def pair(question: str) -> list[float]:
            return await asyncio.gather(*(timed(client.ask)(question) for client in clients))

        questions = [setting.question(number) for number, setting in enumerate(asked)]
        seconds = await in_flight(pair, questions, options.at_once, "pairs of questions")
    pairs: dict[Setting, list[list[float]]] = {}
    for setting, pair_s in zip(asked, seconds, strict=True):
        pairs.setdefault(setting, []).append(pair_s)
    return Figures(options.questions, [_row(setting, found) for setting, found in pairs.items()])


def _row(setting: Setting, pairs: Sequence[Sequence[float]]) -> Row:
    without_s, with_s = map(statistics.median, zip(*pairs, strict=True))
    gain = statistics.median(1 - one / other for other, one in pairs)
    return Row(**msgspec.structs.asdict(setting), without_s=without_s, with_s=with_s, gain=gain)


class _Paced:
    """Models that write at the pace that a question asks for; executors of a run share an
    engine.
    """

    def __init__(self) -> None:
        self._under_way = Counter[str]()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        runs: list[str] = []
        try:
            return await writes(lambda asked: self._reply(asked, runs))(request)
        finally:
            self._under_way.subtract(runs)

    def _reply(self, asked: ChatRequest, runs: list[str]) -> Reply:
        told = dict(_TOLD.findall(asked.texts[1]))
        turns = len(asked.texts)
        per_event = int(told["tokens_per_event"])
        if asked.model == "answerer":
            return _written("<answer>in 1943</answer>", _ANSWERS_PER_S, per_event)
        if asked.model == "delegator":
            speed = float(told["delegator"])
            if turns > 2:
                return _written("<stop/>Enough evidence<stop>", speed, per_event)
            return _written(
                _block(told), speed, per_event, thinks=int(float(told["thinks_s"]) * speed)
            )
        runs.append(asked.run_id)
        self._under_way[asked.run_id] += 1
        twice = random.Random(f"{told['number']}-{told['item']}").random() < _SEARCHES_TWICE
        text = _QUERY if turns <= (4 if twice else 2) else _REPORT
        engine = _ENGINES["alone" if told["engine"] == "alone" else "shared"]
        speed = _EXECUTORS[told["executors"]]
        return Reply(
            _tokens(text),
            (),
            _FIRST_TOKEN_S,
            lambda: max(1.0, self._under_way[asked.run_id] / engine) / speed,
            per_event,
        )


def _written(text: str, per_s: float, per_event: int, thinks: int = 0) -> Reply:
    return Reply(_tokens(text), ["hm "] * thinks, _FIRST_TOKEN_S, lambda: 1 / per_s, per_event)


def _block(told: dict[str, str]) -> str:
    """Sub-queries of some 25 tokens each, which carry on what their executors need to know."""
    carried = " ".join(
        f"{name}={told[name]}" for name in ("number", "executors", "engine", "tokens_per_event")
    )
    asked = [
        f"Of item={item} {carried}: what is said, and when did it begin?"
        for item in range(int(told["block"]))
    ]
    return f"<search>{json.dumps(asked)}</search>"


def _tokens(text: str) -> list[str]:
    """Words and signs, much as a tokenizer tells them apart."""
    return re.findall(r"\s*(?:\w+|[^\w\s]+)", text)
