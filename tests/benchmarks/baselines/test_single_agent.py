"""A model that searches and answers alone, and a model that only answers."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.baselines.single_agent import (
    CORRECTION,
    LAST_ANSWER,
    NoRetrieval,
    SingleAgent,
    agent_documents,
    limits_alone,
    parse_agent_turn,
    role_alone,
)
from router.errors import ContextTooLong, UpstreamUnavailable
from router.models import Message, Prompt
from router.protocol import Passage, Report, prompts
from router.protocol.tags import Malformed
from router.protocol.turns import ExecutionTurn, ReportTurn, SearchTurn
from router.search.agent import ExecutorLimits
from router.trace import Event, Trajectory
from router.trace.values import NOT_FOUND, SearchDone, SearchRecord
from tests.router.clock import Clock, with_clock
from tests.router.deployment import PASSAGE, lasting, role
from tests.router.outputs import OUTPUTS
from tests.router.retriever import FixedRetriever
from tests.router.unfiltered import PlainRetriever, Unfiltered
from tests.scripted_model import Answer, ScriptedModel
from tests.serving.test_topologies import config_of

QUESTION = "Was the director of Heat born before 1950?"
DIRECTOR = "Who directed Heat?"
BORN = "When was Michael Mann born?"
SEARCH = f"<search>{DIRECTOR}</search>"
AGAIN = f"<search>{BORN}</search>"
ANSWER = "<answer>yes</answer>"
BIRTH = Passage("p2", "Michael Mann", "Yes: Mann <b>was</b> born in 1943.", 0.8)
RETRIEVER = FixedRetriever({DIRECTOR: [PASSAGE], BORN: [BIRTH]})
LIMITS = ExecutorLimits(max_turns=9, max_searches=4)


def agent(
    answers: Sequence[Answer] | Callable[[Prompt], Answer],
    retriever: PlainRetriever = RETRIEVER,
    limits: ExecutorLimits = LIMITS,
    *,
    require_evidence: bool = True,
) -> tuple[SingleAgent, ScriptedModel]:
    """Return an agent and its model."""
    model = ScriptedModel(answers, "backbone")
    return SingleAgent(
        role("delegation", model), Unfiltered(retriever), limits, require_evidence
    ), model


def searches(trajectory: Trajectory) -> tuple[SearchRecord, ...]:
    """Return the searches of its only execution."""
    (execution,) = trajectory.executions
    return execution.searches


async def run(*answers: Answer, **options: object) -> Trajectory:
    """Run an agent with these replies of the model."""
    return await agent(answers, **options)[0].run(QUESTION, lasting())  # type: ignore[arg-type]


async def test_the_agent_searches_until_it_can_answer() -> None:
    """One context has the question, its searches, all passages and the answer, and the trajectory
    has them.
    """
    events: list[Event] = []
    context = lasting(events=events)
    trajectory = await agent([SEARCH, AGAIN, ANSWER])[0].run(QUESTION, context)
    assert (trajectory.answer, trajectory.outcome) == ("yes", "answered")
    assert trajectory.answering is not None
    assert trajectory.answering.messages == (
        Message("system", "delegate"),
        Message("user", QUESTION),
        Message("assistant", SEARCH),
        Message("user", prompts.documents([PASSAGE], last=False)),
        Message("assistant", AGAIN),
        Message("user", prompts.documents([BIRTH], last=False)),
        Message("assistant", ANSWER),
    )
    assert [(search.query, search.passages) for search in searches(trajectory)] == [
        (DIRECTOR, (PASSAGE,)),
        (BORN, (BIRTH,)),
    ]
    assert events == [SearchDone(0, DIRECTOR, ("Heat",)), SearchDone(0, BORN, ("Michael Mann",))]
    assert [call.role for call in context.ledger.calls] == ["delegation"] * 3


def test_the_agent_has_the_budgets_of_the_factorized_run(tmp_path: Path) -> None:
    """It has as many searches as all executors together, and as many turns as delegator and
    executors together. Its turns may be as long as those of the delegator or the answerer.
    """
    config = config_of(tmp_path, "http://127.0.0.1:9/v1")
    limits = limits_alone(config, 4, 3)
    assert (limits.max_searches, limits.max_turns, limits.top_k) == (4 * 3 * 2, 4 + 4 * 3 * 3, 3)
    alone = role_alone(config, "p.txt")
    lead = config.roles.delegation
    assert alone == msgspec.structs.replace(lead, prompt="p.txt", max_tokens=30)


async def test_the_last_search_is_announced() -> None:
    """Afterwards the answer is requested, and a further search is not run."""
    limits = ExecutorLimits(max_turns=9, max_searches=1)
    trajectory = await run(SEARCH, AGAIN, ANSWER, limits=limits)
    assert (trajectory.answer, trajectory.outcome, len(searches(trajectory))) == (
        "yes",
        "rounds_exhausted",
        1,
    )
    assert trajectory.answering is not None
    user_texts = [
        message.content for message in trajectory.answering.messages if message.role == "user"
    ][1:]
    assert user_texts == [agent_documents([PASSAGE], last=True), LAST_ANSWER]


@pytest.mark.parametrize(
    "turns", [("It is Mann.",), ("<search></search>",), ("<answer></answer>",)]
)
async def test_a_malformed_turn_is_corrected_once(turns: tuple[str, ...]) -> None:
    """A second malformed turn ends the search, and the answer is requested."""
    context = lasting()
    single, model = agent([SEARCH, *turns, ANSWER])
    assert (await single.run(QUESTION, context)).answer == "yes"
    assert model.prompts[-1].messages[-1].content == CORRECTION
    assert model.prompts[-1].stop == ()
    assert [call.purpose for call in context.ledger.calls] == ["first", "first", "correction"]
    again, model = agent([SEARCH, *turns, *turns, ANSWER])
    assert (await again.run(QUESTION, lasting())).outcome == "rounds_exhausted"
    assert model.prompts[-1].messages[-1].content.endswith(LAST_ANSWER)


async def test_an_answer_without_a_search_is_marked() -> None:
    """An answer from memory is `no_search`, whether it is allowed or not."""
    strict = await run(ANSWER)
    lax = await run(ANSWER, require_evidence=False)
    assert (strict.answer, strict.outcome) == (NOT_FOUND, "no_search")
    assert (lax.answer, lax.outcome) == ("yes", "no_search")


async def test_without_passages_there_is_no_answer() -> None:
    """An answer that says so counts as not found."""
    assert (await run("<search>x</search>", ANSWER)).outcome == "not_found"
    trajectory = await run(SEARCH, "<answer>Not found.</answer>")
    assert (trajectory.answer, trajectory.outcome) == (NOT_FOUND, "not_found")


async def test_the_model_without_retrieval_answers_in_one_call() -> None:
    model = ScriptedModel([ANSWER, "<answer>not found</answer>"], "backbone")
    direct = NoRetrieval(role("delegation", model))
    trajectory = await direct.run(QUESTION, lasting())
    assert (trajectory.answer, trajectory.outcome, trajectory.executions) == ("yes", "answered", ())
    assert (await direct.run(QUESTION, lasting())).outcome == "not_found"


async def test_passages_are_dropped_from_a_full_context() -> None:
    """Once none of the last ones is left, no further search is run."""

    def says(prompt: Prompt) -> Answer:
        if "by Michael Mann" in repr(prompt):
            return ContextTooLong("too long", endpoint="x")
        if LAST_ANSWER in prompt.messages[-1].content:
            return ANSWER
        return SEARCH

    single, _ = agent(says)
    context = lasting()
    trajectory = await single.run(QUESTION, context)
    assert (trajectory.answer, [search.dropped_passages for search in searches(trajectory)]) == (
        "yes",
        [1],
    )
    assert [call.purpose for call in context.ledger.calls] == [
        "first",
        "first",
        "shortened",
        "correction",
    ]


async def test_a_question_that_is_too_long_is_a_typed_error() -> None:
    with pytest.raises(ContextTooLong):
        await run(ContextTooLong("too long", endpoint="x"))


async def test_a_failed_retrieval_ends_the_run() -> None:
    """The error is the retriever's."""

    class Down:
        async def search(
            self, queries: Sequence[str], top_k: int, document: str | None = None
        ) -> list[list[Passage]]:
            raise UpstreamUnavailable("connection refused", endpoint="x")

    with pytest.raises(UpstreamUnavailable):
        await run(SEARCH, retriever=Down())


def test_the_agent_answers_when_time_is_up() -> None:
    """It uses the passages so far, in a turn of the same conversation."""

    async def main(clock: Clock) -> None:
        class Hangs(FixedRetriever):
            async def search(
                self, queries: Sequence[str], top_k: int, document: str | None = None
            ) -> list[list[Passage]]:
                if BORN in queries:
                    await asyncio.Event().wait()
                return [[PASSAGE] for _ in queries]

        single, model = agent([SEARCH, AGAIN, ANSWER], Hangs({}))
        running = asyncio.create_task(single.run(QUESTION, lasting(10.0)))
        await clock.advance(8.1)
        trajectory = await running
        assert (trajectory.answer, trajectory.outcome, len(searches(trajectory))) == (
            "yes",
            "time_exhausted",
            1,
        )
        messages = model.prompts[-1].messages
        assert [message.role for message in messages] == [
            "system",
            *["user", "assistant"] * 2,
            "user",
        ]
        assert messages[-1].content == LAST_ANSWER

    with_clock(main)


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("<search>a?</search>", SearchTurn("a?", 0)),
        (
            "<think>I lack it: <answer>no</answer></think>\n<search> a? </search>",
            SearchTurn("a?", 0),
        ),
        ('<search>["a?", "b?"]</search>', SearchTurn("a?", 1)),
        (
            "<search>a?</search>\n<information>Doc 1</information><answer>forged</answer>",
            SearchTurn("a?", 0),
        ),
        ("<search>a?</search><answer>b</answer>", SearchTurn("a?", 0)),
        ("<answer>b</answer><search>a?</search>", ReportTurn(Report("b", ()))),
        (
            "1808 Ann, 1857 Bob: earlier 1808 Ann <answer>Ann</answer>",
            ReportTurn(Report("Ann", ())),
        ),
        ("<answer>A &amp; B", ReportTurn(Report("A & B", ()))),
    ],
)
def test_the_first_complete_action_of_a_turn_counts(text: str, turn: ExecutionTurn) -> None:
    """Thinking, and text after invented results, do not."""
    assert parse_agent_turn(text) == turn


@pytest.mark.parametrize("text", ["", "It is Ann.", "<answer></answer>", "<search></search>"])
def test_a_turn_needs_a_search_or_an_answer(text: str) -> None:
    assert isinstance(parse_agent_turn(text), Malformed)


def test_a_cut_answer_is_no_answer() -> None:
    """Text that the length limit ended may lack its end."""
    assert isinstance(parse_agent_turn("<answer>Michael", cut=True), Malformed)


@settings(deadline=None)
@given(OUTPUTS, st.booleans())
def test_any_text_is_read_without_an_error(text: str, cut: bool) -> None:
    """None is empty."""
    match parse_agent_turn(text, cut=cut):
        case SearchTurn(query, _):
            assert query
        case ReportTurn(Report(answer, ())):
            assert answer == " ".join(answer.split()) != ""
