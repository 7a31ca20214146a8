"""Recorded replies of real engines, including headers, through the real client and the whole
search.

Each file of `recorded` holds the replies of one engine to one search, by role and in order, in the
engine's published format (`format` names its source).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from router.calls import Role
from router.errors import UpstreamRefused
from router.models import Completion, Message, Sampling
from router.models.connection_pool import ConnectionPool
from router.models.openai_client import OpenAIHTTP
from router.protocol import Passage, Report, prompts
from router.search import Answerer, Delegator, Executor, FactorizedSearch, RunContext
from router.search.agent import ExecutorLimits
from router.trace import RoleName, Trajectory
from tests.openai_server import MODEL, OpenAIServer
from tests.router.deployment import lasting
from tests.router.retriever import FixedRetriever
from tests.router.unfiltered import Unfiltered

FOLDER = Path(__file__).parent / "recorded"
PROMPT_FOLDER = Path(__file__).parents[3] / "serving" / "prompts" / "full"
NAMES: tuple[RoleName, ...] = ("delegation", "execution", "answer")
PROMPTS: Mapping[RoleName, str] = {
    name: (PROMPT_FOLDER / f"{name}.txt").read_text("utf-8").strip() for name in NAMES
}

QUESTION = "Where was the director of the film Heat born?"
SUB_QUERY = "Who directed the film Heat?"
EVIDENCE = "Heat is a 1995 film directed by Michael Mann, who was born in Chicago."
FOUND = [
    Passage("heat", "Heat (1995 film)", EVIDENCE, 0.9),
    Passage("band", "Heat (band)", "Heat is a rock band from Upplands Väsby.", 0.5),
    Passage("team", "Miami Heat", "The Miami Heat are a basketball team.", 0.4),
]


class Recording:
    """A server that plays the replies of one file, in order by role."""

    def __init__(self, name: str) -> None:
        replies = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
        self._replies = {role: iter(replies[role]) for role in NAMES}

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        opening = (await request.json())["messages"][0]["content"]
        (role,) = (role for role in NAMES if opening.startswith(PROMPTS[role]))
        reply = next(self._replies[role])
        return web.Response(
            body=json.dumps(reply["body"]), status=reply["status"], headers=reply["headers"]
        )

    @property
    def left(self) -> int:
        """Return the number of replies that are left."""
        return sum(len(list(replies)) for replies in self._replies.values())


async def searched(model: OpenAIHTTP, context: RunContext, **settings: Any) -> Trajectory:
    """Run a whole search of one sub-query; `settings` apply to every role."""

    def role(name: RoleName) -> Role:
        return Role(name, model, PROMPTS[name], Sampling(), **settings)

    executor = Executor(
        role("execution"), Unfiltered(FixedRetriever({SUB_QUERY: FOUND})), ExecutorLimits()
    )
    search = FactorizedSearch(Delegator(role("delegation")), executor, Answerer(role("answer")))
    return await search.run(QUESTION, context)


def is_whole(trajectory: Trajectory) -> bool:
    """Assert that the sub-query was searched and reported, and that the answer came from the
    report.
    """
    assert (trajectory.answer, trajectory.outcome, trajectory.rounds) == (
        "Chicago",
        "answered",
        (1,),
    )
    (execution,) = trajectory.executions
    assert (execution.sub_query, execution.outcome) == (SUB_QUERY, "reported")
    assert execution.report == Report("Michael Mann", (EVIDENCE,))
    assert [(search.query, search.passages) for search in execution.searches] == [
        (SUB_QUERY, tuple(FOUND))
    ]
    return True


def outputs(trajectory: Trajectory) -> list[Completion]:
    """Return all outputs of the three models."""
    assert trajectory.delegation
    assert trajectory.answering
    conversations = (
        trajectory.delegation,
        trajectory.executions[0].conversation,
        trajectory.answering,
    )
    return [output for conversation in conversations for output in conversation.outputs]


def test_every_recording_is_played() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {
        *THINKING,
        *(
            "qwen3_vllm_thinking_off",
            "gemma_vllm_no_system_role",
            "ollama_ignores_stop",
            "openai_rate_limit",
        ),
        "llama_cpp_context",
    }


THINKING = ["deepseek_reasoner", "qwen3_vllm_reasoning_parser", "qwen3_vllm_no_parser"]


@pytest.mark.parametrize("name", THINKING)
async def test_thinking_is_kept_and_never_read(
    pool: ConnectionPool, openai_server: OpenAIServer, name: str
) -> None:
    """Holds wherever an engine puts it, with any tags in it."""
    openai_server.plays(recording := Recording(name))
    trajectory = await searched(OpenAIHTTP(pool, openai_server.base_url, MODEL), lasting())
    assert is_whole(trajectory)
    assert recording.left == 0
    assert all(output.reasoning or "<think>" in output.text for output in outputs(trajectory))
    assert "report names him" not in repr(openai_server.bodies)


async def test_cached_and_reasoning_tokens_are_booked_separately(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """DeepSeek reports both."""
    openai_server.plays(Recording("deepseek_reasoner"))
    context = lasting()
    await searched(OpenAIHTTP(pool, openai_server.base_url, MODEL), context)
    usages = [call.usage for call in context.ledger.calls]
    assert [usage and usage.cached_tokens for usage in usages] == [0, 0, 448, 896, 0]
    assert [usage and usage.reasoning_tokens for usage in usages] == [41, 43, 44, 42, 45]


async def test_reasoning_is_the_output_of_a_model_with_thinking_off(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """A parser may file the output as reasoning."""
    openai_server.plays(Recording("qwen3_vllm_thinking_off"))
    model = OpenAIHTTP(pool, openai_server.base_url, MODEL, thinking=False)
    assert is_whole(await searched(model, lasting()))
    assert {body["chat_template_kwargs"]["enable_thinking"] for body in openai_server.bodies} == {
        False
    }


async def test_text_after_an_ignored_stop_string_is_cut(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """It counts for nothing, and the trace records the overrun."""
    openai_server.plays(Recording("ollama_ignores_stop"))
    trajectory = await searched(OpenAIHTTP(pool, openai_server.base_url, MODEL), lasting())
    assert is_whole(trajectory)
    assert [output.overran for output in outputs(trajectory)] == [True, False, True, True, True]
    assert "Spielberg" not in repr(trajectory)


async def test_a_template_without_a_system_role_needs_its_setting(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """The error names the setting. With it, only turns are sent."""
    openai_server.plays(Recording("gemma_vllm_no_system_role"))
    model = OpenAIHTTP(pool, openai_server.base_url, MODEL)
    with pytest.raises(UpstreamRefused, match=r"System role not supported.*system_role = false"):
        await searched(model, lasting())
    trajectory = await searched(model, lasting(), system_role=False)
    assert is_whole(trajectory)
    sent = [[message["role"] for message in body["messages"]] for body in openai_server.bodies[1:]]
    assert all(roles == ["user", "assistant", "user"][: len(roles)] for roles in sent)
    assert (
        openai_server.bodies[1]["messages"][0]["content"]
        == f"{PROMPTS['delegation']}\n\n{QUESTION}"
    )
    assert trajectory.delegation
    assert trajectory.delegation.messages[:2] == (
        Message("system", PROMPTS["delegation"]),
        Message("user", QUESTION),
    )


async def test_a_rate_limit_with_a_retry_delay_is_waited_for(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """Every attempt has its row."""
    openai_server.plays(Recording("openai_rate_limit"))
    context = lasting()
    assert is_whole(await searched(OpenAIHTTP(pool, openai_server.base_url, MODEL), context))
    outcomes = [(call.role, call.outcome) for call in context.ledger.calls]
    assert outcomes.count(("delegation", "connect_error")) == 1
    assert outcomes.count(("execution", "connect_error")) == 2
    assert len(outcomes) == len(openai_server.bodies) == 8


async def test_passages_are_dropped_until_the_context_fits(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """The trace has the passages that the model finally got."""
    openai_server.plays(Recording("llama_cpp_context"))
    context = lasting()
    trajectory = await searched(OpenAIHTTP(pool, openai_server.base_url, MODEL), context)
    assert is_whole(trajectory)
    (execution,) = trajectory.executions
    assert execution.searches[0].dropped_passages == 2
    documents = prompts.documents(FOUND[:1], last=False)
    assert execution.conversation.messages[3] == Message("user", documents)
    documents_sent = [
        body["messages"][-1]["content"].count("<document ") for body in openai_server.bodies[2:5]
    ]
    assert documents_sent == [3, 2, 1]
    calls = [
        (call.purpose, call.outcome) for call in context.ledger.calls if call.role == "execution"
    ]
    assert calls == [
        ("first", "completed"),
        ("first", "refused"),
        ("shortened", "refused"),
        ("shortened", "completed"),
    ]
