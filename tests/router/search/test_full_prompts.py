"""Searches with the full-length prompts and the real client, on outputs as real models write
them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from router.calls import Role
from router.models import Sampling
from router.models.connection_pool import ConnectionPool
from router.models.openai_client import OpenAIHTTP
from router.protocol import Passage, parse_decision, parse_turn
from router.protocol.decision import Dispatch, Stop
from router.protocol.turns import SearchTurn, parse_answer
from router.search import Answerer, Delegator, Executor, FactorizedSearch
from router.search.agent import ExecutorLimits
from router.trace import RoleName, Trajectory
from tests.openai_server import MODEL, Behaviour, OpenAIServer, says
from tests.router.deployment import lasting
from tests.router.retriever import FixedRetriever
from tests.router.unfiltered import Unfiltered

FOLDER = Path(__file__).parents[3] / "serving" / "prompts" / "full"
NAMES: tuple[RoleName, ...] = ("delegation", "execution", "answer")
PROMPTS: Mapping[RoleName, str] = {
    name: (FOLDER / f"{name}.txt").read_text("utf-8").strip() for name in NAMES
}

QUESTION = "Are the directors of Heat and Jaws from the same country?"
FIRST = "Which country is the director of Heat from?"
SECOND = "Which country is the director of Jaws from?"
HEAT = Passage(
    "heat",
    "Heat (1995 film)",
    "Heat is a 1995 American film directed by Michael Mann, an American.",
    0.9,
)
JAWS = Passage(
    "jaws",
    "Jaws (film)",
    "Jaws is a 1975 film directed by Steven Spielberg, an American director.",
    0.8,
)
RETRIEVER = FixedRetriever({FIRST: [HEAT], SECOND: [JAWS]})
LIST = json.dumps([FIRST, SECOND])
THOUGHT = "The user asks about two films. I should ask for each of them.\n"


def of_content(text: str, finish_reason: str = "stop") -> Behaviour:
    """Return a reply without a reasoning parser: any thinking stands in the content."""
    return says(text, finish_reason=finish_reason)


def of_deepseek(thought: str, text: str) -> Behaviour:
    """Return a reply with thinking as `reasoning_content`, like DeepSeek's."""
    return says(text, reasoning={"reasoning_content": thought})


def of_vllm(thought: str, text: str, stop_reason: str | None = None) -> Behaviour:
    """Return a reply of vLLM with a reasoning parser, which names the stop string and leaves it
    out.
    """
    return says(text, reasoning={"reasoning": thought}, stop_reason=stop_reason)


def reports(answer: str, evidence: str) -> str:
    """Return a report in the form that the prompt asks for."""
    return f"<answer>{answer}</answer><evidence>{evidence}</evidence>"


class Script:
    """Behaviours played in order for the delegator, the answerer, and the executor of each
    sub-query.
    """

    def __init__(
        self, delegation: list[Behaviour], execution: dict[str, list[Behaviour]], answer: Behaviour
    ) -> None:
        self._delegation = iter(delegation)
        self._answer = answer
        self._execution = {sub_query: iter(turns) for sub_query, turns in execution.items()}

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        system, asked, *_ = (message["content"] for message in (await request.json())["messages"])
        if system == PROMPTS["execution"]:
            return await next(self._execution[asked])(request)
        return await (next(self._delegation) if system == PROMPTS["delegation"] else self._answer)(
            request
        )


SEARCHES: dict[str, Behaviour] = {
    "plain": of_content(f"<search>{LIST}</search>"),
    "the stop string is left out": says(f"<search>{LIST}", stop_reason="</search>"),
    "thinking in the content": of_content(f"<think>\n{THOUGHT}</think>\n\n<search>{LIST}</search>"),
    "thinking that the template opened": of_content(
        f"{THOUGHT}</think>\n\n<search>{LIST}</search>"
    ),
    "reasoning_content": of_deepseek(THOUGHT, f"<search>{LIST}</search>"),
    "reasoning": of_vllm(THOUGHT, f"\n\n<search>{LIST}", "</search>"),
    "Markdown and chatter": of_content(
        f"**Step 1.** I need two facts.\n\n<search>\n1. {FIRST}\n2. {SECOND}\n</search>"
    ),
    "two blocks, stop strings ignored": of_content(
        f"<search>{LIST}</search>\n\n<search_results><result "
        "index='0'>France</result></search_results>\n<stop/>"
    ),
    "it goes on to invent results": of_content(
        f"<search>{LIST}\n<search_results><result "
        "index='0'><answer>France</answer></result></search_results>"
    ),
}
STOPS: dict[str, Behaviour] = {
    "as printed": of_content("<stop/>Enough evidence<stop>"),
    "thought over": of_content(
        "<think>No <search> is needed.</think>\n<stop/>Enough evidence<stop>"
    ),
    "reasoned": of_deepseek("Should I <search>more</search>? No.", "<stop/>Enough evidence<stop>"),
}
ANSWERS: dict[str, Behaviour] = {
    "plain": of_content("<answer>yes</answer>"),
    "the stop string is left out": says("<answer>yes", stop_reason="</answer>"),
    "thinking": of_content("<think>Both American.</think>\n<answer>yes</answer>"),
    "reasoned": of_deepseek(
        "Both American, so <answer>no</answer> is wrong.", "<answer>yes</answer>"
    ),
}
LOOKS_UP = {
    "plain": "<search>{}</search>",
    "thinking": "<think>\nI must search first.\n</think>\n\n<search>{}</search>",
    "two blocks": "<search>{}</search>\n<search>something else entirely</search>",
    "invented results": "<search>{}</search>\n<documents><document>France</document></documents>\n"
    + reports("France", "France."),
}
REPORTS = {
    "plain": reports("United States", "directed by Michael Mann, an American"),
    "bullets": (
        "<answer>\nUnited States\n</answer>\n\n<evidence>\n- an American\n- a 1995 film\n"
        "</evidence>"
    ),
    "thinking": "<think>It says American. I need no <search>.</think>"
    + reports("United States", "an American"),
}


@dataclass(frozen=True)
class Manner:
    """Manner in which the models of a search write."""

    delegation: tuple[Behaviour, ...] = (SEARCHES["plain"], STOPS["as printed"])
    execution: tuple[str, ...] = (LOOKS_UP["plain"], REPORTS["plain"])
    """Text with a place for the query."""
    answer: Behaviour = ANSWERS["plain"]


async def searched(pool: ConnectionPool, server: OpenAIServer, manner: Manner) -> Trajectory:
    """Run a search of two sub-queries."""
    execution = {
        asked: [of_content(turn.format(asked)) for turn in manner.execution]
        for asked in (FIRST, SECOND)
    }
    server.plays(Script(list(manner.delegation), execution, manner.answer))
    model = OpenAIHTTP(pool, server.base_url, MODEL)

    def role(name: RoleName) -> Role:
        return Role(name, model, PROMPTS[name], Sampling())

    executor = Executor(role("execution"), Unfiltered(RETRIEVER), ExecutorLimits())
    search = FactorizedSearch(Delegator(role("delegation")), executor, Answerer(role("answer")))
    return await search.run(QUESTION, lasting())


def is_whole(trajectory: Trajectory) -> bool:
    """Return whether both sub-queries were searched and reported, and the answer came from them."""
    assert (trajectory.answer, trajectory.outcome, trajectory.rounds) == ("yes", "answered", (2,))
    assert [execution.sub_query for execution in trajectory.executions] == [FIRST, SECOND]
    for execution in trajectory.executions:
        assert execution.outcome == "reported"
        assert execution.report.answer == "United States"
        assert execution.searches[0].query == execution.sub_query
        assert execution.searches[0].passages
        assert all("<" not in point for point in execution.report.evidence)
    return True


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES.keys())
async def test_a_dispatch_in_any_notation_needs_no_correction(
    pool: ConnectionPool, openai_server: OpenAIServer, search: Behaviour
) -> None:
    assert is_whole(
        await searched(pool, openai_server, Manner(delegation=(search, STOPS["as printed"])))
    )
    assert len(openai_server.bodies) == 2 + 4 + 1


@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS.keys())
async def test_a_stop_ends_the_delegation_and_a_tag_in_a_thought_does_not(
    pool: ConnectionPool, openai_server: OpenAIServer, stop: Behaviour
) -> None:
    assert is_whole(
        await searched(pool, openai_server, Manner(delegation=(SEARCHES["plain"], stop)))
    )
    assert len(openai_server.bodies) == 2 + 4 + 1


@pytest.mark.parametrize("looks_up", LOOKS_UP.values(), ids=LOOKS_UP.keys())
@pytest.mark.parametrize("reported", REPORTS.values(), ids=REPORTS.keys())
async def test_any_search_and_report_notations_combine_without_a_correction(
    pool: ConnectionPool, openai_server: OpenAIServer, looks_up: str, reported: str
) -> None:
    assert is_whole(await searched(pool, openai_server, Manner(execution=(looks_up, reported))))
    assert len(openai_server.bodies) == 2 + 4 + 1


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
async def test_the_answer_is_extracted_without_the_text_around_it(
    pool: ConnectionPool, openai_server: OpenAIServer, answer: Behaviour
) -> None:
    assert is_whole(await searched(pool, openai_server, Manner(answer=answer)))


STUMBLES: dict[str, Behaviour] = {
    "it only thinks": of_content(f"<think>{THOUGHT}", "length"),
    "the block is cut": of_content('<search>["Which country is the dir', "length"),
    "the stop string is met in a thought": of_content(
        f"<think>I could write <search>{LIST}</search> now.</think>"
    ),
    "and the engine leaves it out": says(
        f"<think>I could write <search>{LIST}", stop_reason="</search>"
    ),
}


@pytest.mark.parametrize("stumble", STUMBLES.values(), ids=STUMBLES.keys())
async def test_a_malformed_delegator_is_corrected_once(
    pool: ConnectionPool, openai_server: OpenAIServer, stumble: Behaviour
) -> None:
    """Its next thought mentions the tags again."""
    wordy = of_content(f"<think>So <search>{LIST}</search> it is.</think><search>{LIST}</search>")
    manner = Manner(delegation=(stumble, wordy, STOPS["as printed"]))
    assert is_whole(await searched(pool, openai_server, manner))
    assert len(openai_server.bodies) == 3 + 4 + 1


@pytest.mark.parametrize(
    "stumble",
    [
        REPORTS["plain"],
        "The director of Heat is Michael Mann, an American.",
        "<think>I know this: it is Michael Mann. </think>",
        "<think>I could <search>x</search> first.</think>",
    ],
)
async def test_an_executor_without_a_search_is_asked_to_search(
    pool: ConnectionPool, openai_server: OpenAIServer, stumble: str
) -> None:
    """It answers from memory, or not at all."""
    manner = Manner(execution=(stumble, LOOKS_UP["thinking"], REPORTS["thinking"]))
    assert is_whole(await searched(pool, openai_server, manner))
    assert len(openai_server.bodies) == 2 + 6 + 1


async def test_each_conversation_opens_with_the_prompt_of_its_role(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """Constant text comes first, for the engine's prefix cache."""
    await searched(pool, openai_server, Manner())
    for body in openai_server.bodies:
        first, second, *_ = body["messages"]
        assert (first["role"], second["role"]) == ("system", "user")
        if first["content"] == PROMPTS["execution"]:
            assert second["content"] in (FIRST, SECOND)
            assert QUESTION not in json.dumps(body)
        else:
            assert QUESTION in second["content"]
    answering = openai_server.bodies[-1]["messages"]
    assert answering[0]["content"] == PROMPTS["answer"]
    assert "1995 American film" not in answering[1]["content"]


@pytest.mark.parametrize("name", NAMES)
def test_the_prompts_match_the_parsers_and_the_code(name: RoleName) -> None:
    """A prompt asks a model to write what the parsers read, and describes what the code sends."""
    prompt = PROMPTS[name]
    if name == "delegation":
        blocks = [
            line.removeprefix("You: ") for line in prompt.splitlines() if line.startswith("You: ")
        ]
        assert [type(parse_decision(block, limit=8)) for block in blocks] == [
            Dispatch,
            Stop,
            Dispatch,
            Dispatch,
            Stop,
        ]
    if name == "execution":
        assert isinstance(
            parse_turn(prompt[prompt.index("<search>query") :].splitlines()[0]), SearchTurn
        )
        assert "When you are told that no searches are left" in prompt
    if name == "answer":
        assert parse_answer("<answer>not found</answer>") == "not found"
        assert "<answer>not found</answer>" in prompt
