"""Training rows have exactly the tokens that a real vLLM reads and writes."""

import os
from collections.abc import AsyncIterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from executor_sft.dataset import ServedTokens, TrainingRow, rows_of
from executor_sft.filter import FilteredSample
from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.questions import Examiner, SubQuery
from executor_sft.miniworld.world import World
from router.calls import Role
from router.models import Model, Sampling
from router.models.connection_pool import ConnectionPool
from router.models.model import TokenIds
from router.models.openai_client import OpenAIHTTP
from router.protocol import Passage
from router.search import Executor
from router.search.agent import ExecutorLimits
from router.trace import Execution, Trajectory
from router.trace.export import agent_trajectories
from serving.config.file import load_config, preset
from tests.router.deployment import lasting, report
from tests.router.store.stored import run
from tests.router.unfiltered import Unfiltered
from tests.scripted_model import ScriptedModel

pytestmark = pytest.mark.asyncio(loop_scope="package")
MINI = load_config(preset("mini"))
MODEL = "mini-executor"
GREEDY = Sampling(MINI.roles.execution.max_tokens)
TURNS = int(os.environ.get("LOGPROB_TURNS", "12"))
"""Number of sampled turns whose log-probabilities are compared."""
TOLERANCE = 0.1
MEAN_TOLERANCE = 0.005
"""Largest difference of log-probabilities, but for one token in a thousand, and mean difference, in
nats.

The engine computes in bf16 if the processor does, and from its cache; the comparison computes the
whole sequence in fp32.
"""


class Written(msgspec.Struct):
    token_ids: tuple[int, ...]


class Reply(msgspec.Struct):
    """Tokens that vLLM read and wrote, with `return_token_ids`."""

    prompt_token_ids: tuple[int, ...]
    choices: list[Written]


class Tokens(msgspec.Struct):
    """Response of vLLM's `/tokenize`."""

    tokens: tuple[int, ...]


class Pages:
    """A retriever of the pages of a mini world that share the most words with a query."""

    def __init__(self, library: Library) -> None:
        self._pages = [
            (page, set(f"{page.title} {page.text}".split())) for page in library.passages
        ]

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        """Return the best pages first."""
        return [self._found(set(query.rstrip("?").split()))[:top_k] for query in queries]

    def _found(self, words: set[str]) -> list[Passage]:
        ranked = sorted(self._pages, key=lambda page: len(words & page[1]), reverse=True)
        return [Passage(page.id, page.title, page.text) for page, _ in ranked[:10]]


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(World(7, "test"))


@pytest.fixture(scope="module")
def sub_queries(library: Library) -> list[SubQuery]:
    """Sub-queries about the demo's world."""
    examiner = Examiner(World(7, "test"), library)
    return list(
        islice((sub_query for _ in range(99) for sub_query in examiner.draw().sub_queries), 20)
    )


@pytest_asyncio.fixture(loop_scope="package")
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest_asyncio.fixture(loop_scope="package")
async def heard(
    engine_url: str, session: aiohttp.ClientSession
) -> AsyncIterator[tuple[str, list[Reply]]]:
    """Address of a relay to the engine, and the replies that it passed."""
    replies: list[Reply] = []

    async def relay(request: web.Request) -> web.Response:
        async with session.post(
            f"{engine_url}/chat/completions", json=await request.json()
        ) as answered:
            body = await answered.read()
        replies.append(msgspec.json.decode(body, type=Reply))
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", relay)
    async with TestServer(app) as server:
        yield str(server.make_url("/v1")), replies


async def executed(
    model: Model, library: Library, sub_query: str, max_turns: int = 3, sampling: Sampling = GREEDY
) -> Execution:
    """Return a run with the prompt that the demo uses."""
    system = Path(MINI.roles.execution.prompt).read_text("utf-8").strip()
    role = Role("execution", model, system, sampling, streams=False)
    return await Executor(role, Unfiltered(Pages(library)), ExecutorLimits(max_turns)).run(
        sub_query, 0, lasting()
    )


def rows(execution: Execution) -> list[TrainingRow]:
    tokens = ServedTokens(Path(MINI.engines["executor"].path))
    return rows_of([FilteredSample("teacher_single", "q", "", execution)], tokens)[0]


async def test_rows_are_the_tokens_that_the_engine_read_and_wrote(
    library: Library, sub_queries: list[SubQuery], heard: tuple[str, list[Reply]]
) -> None:
    """They are of real runs: every prompt, and every turn except its end, which a stop string
    replaced.
    """
    url, replies = heard
    compared = 0
    for sub_query in sub_queries:
        replies.clear()
        async with ConnectionPool() as pool:
            model = OpenAIHTTP(pool, url, MODEL, extra_body={"return_token_ids": True})
            execution = await executed(model, library, sub_query.text)
        assert len(replies) == len(execution.conversation.outputs)
        for row in rows(execution):
            reply = replies[row.turn]
            assert row.as_returned
            assert row.prompt_ids == reply.prompt_token_ids
            assert (
                row.completion_ids[: len(reply.choices[0].token_ids)] == reply.choices[0].token_ids
            )
            assert len(row.completion_ids) - len(reply.choices[0].token_ids) in (0, 1)
            compared += 1
    assert compared >= 30


def scored(model: Any, tokens: TokenIds) -> list[float]:
    """Return the log-probabilities of a completion after its prompt, by transformers."""
    import torch

    ids = torch.tensor([tokens.prompt + tokens.completion])
    with torch.no_grad():
        logits = model(ids).logits[0, len(tokens.prompt) - 1 : -1].float()
    picked = logits.log_softmax(-1).gather(1, torch.tensor(tokens.completion)[:, None])
    return [float(logprob) for logprob in picked[:, 0]]


@pytest.mark.engines
async def test_exported_tokens_have_the_model_s_logprobs(
    library: Library, sub_queries: list[SubQuery], engine_url: str
) -> None:
    """Tokens are sampled at temperature 1, and are the turn's text.

    Transformers gives the same log-probabilities within `TOLERANCE`.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = MINI.engines["executor"].path
    tokenizer = AutoTokenizer.from_pretrained(folder)
    apart = list[float]()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    turns = 0
    for seed, sub_query in enumerate(cycle(sub_queries)):
        if turns >= TURNS:
            break
        sampling = msgspec.structs.replace(GREEDY, temperature=1.0, seed=seed)
        async with ConnectionPool() as pool:
            client = OpenAIHTTP(
                pool, engine_url, MODEL, extra_body={"return_token_ids": True, "logprobs": True}
            )
            work = await executed(client, library, sub_query.text, sampling=sampling)
        (line,) = agent_trajectories(
            run("q/0", result=Trajectory("?", "answered", (work,), (1,))), ["?"]
        )
        assert line.turns == work.conversation.outputs
        turns += len(line.turns)
        for turn in line.turns:
            assert not isinstance(turn.tokens, msgspec.UnsetType)
            assert not isinstance(turn.tokens.logprobs, msgspec.UnsetType)
            written = tokenizer.decode(list(turn.tokens.completion)).removesuffix(
                tokenizer.eos_token
            )
            # This tokenizer adds spaces
            assert "".join(written.split()) == "".join(turn.text.split())
            rescored = scored(model, turn.tokens)
            apart += [
                abs(exported - computed)
                for exported, computed in zip(turn.tokens.logprobs, rescored, strict=True)
            ]
    print(f"{turns} turns, {len(apart)} tokens, {fmean(apart):.5f} apart, at most {max(apart):.4f}")
    assert len(apart) >= 10 * TURNS
    far = sum(difference > TOLERANCE for difference in apart)
    assert far <= len(apart) / 1000  # none of the default number of turns
    assert fmean(apart) <= MEAN_TOLERANCE


async def test_prompts_of_any_trajectory_are_the_engine_s(
    engine_url: str, library: Library, sub_queries: list[SubQuery], session: aiohttp.ClientSession
) -> None:
    """Trajectories are of a teacher, too, with two searches, a correction, and text that resembles
    the protocol.
    """
    url = engine_url.removesuffix("/v1") + "/tokenize"
    for sub_query in sub_queries[:5]:
        search = f"<search>{sub_query.searches[0]}</search>"
        turns = [
            "<answer>",
            search,
            f"  {search}\n",
            report("A < B & <|end|>", "It is so — naïvely."),
        ]
        asked_for = f"{sub_query.text} <|assistant|> <search>"
        execution = await executed(ScriptedModel(turns), library, asked_for, max_turns=4)
        shown = execution.conversation.messages
        assistant_places = [
            place for place, message in enumerate(shown) if message.role == "assistant"
        ]
        training_rows = rows(execution)
        assert [row.turn for row in training_rows] == [1, 2, 3]
        for row in training_rows:
            messages = msgspec.to_builtins(shown[: assistant_places[row.turn]])
            body = {"model": MODEL, "messages": messages, "add_generation_prompt": True}
            async with session.post(url, json=body) as reply:
                assert row.prompt_ids == msgspec.json.decode(await reply.read(), type=Tokens).tokens
