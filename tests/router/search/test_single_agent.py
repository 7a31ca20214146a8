"""One model that searches and answers alone, and one that only answers."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from router.errors import BudgetExhausted, ContextTooLong, UpstreamUnavailable
from router.ledger import Budget, Ledger
from router.ledger.budget import Allowance
from router.models import Message, Prompt, ScriptedModel
from router.models.model import Answer
from router.protocol import Passage, prompts
from router.search import Retriever, RunContext
from router.search.agent import ExecutorLimits
from router.search.single_agent import SingleAgent, single_agent_limits
from router.testing.retriever import FixedRetriever
from router.trace import Event, Trajectory
from router.trace.values import NOT_FOUND, SearchDone
from tests.router.clock import Clock, with_clock
from tests.router.deployment import PASSAGE, lasting, role

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
    retriever: Retriever | None = RETRIEVER,
    limits: ExecutorLimits = LIMITS,
    *,
    require_evidence: bool = True,
) -> tuple[SingleAgent, ScriptedModel]:
    """An agent and its model."""
    model = ScriptedModel(answers, "backbone")
    return SingleAgent(
        role("delegation", model), retriever, limits, require_evidence=require_evidence
    ), model


async def run(*answers: Answer, **options: object) -> Trajectory:
    """One run over what the model says."""
    return await agent(answers, **options)[0].run(QUESTION, lasting())  # type: ignore[arg-type]


async def test_it_searches_until_it_knows() -> None:
    """One context holds the question, its searches, all passages and the answer, and the
    trajectory keeps them.
    """
    events: list[Event] = []
    context = lasting(events=events)
    found = await agent([SEARCH, AGAIN, ANSWER])[0].run(QUESTION, context)
    assert (found.answer, found.outcome, found.topology, found.executions) == (
        "yes",
        "answered",
        "single_agent",
        (),
    )
    assert found.delegation is not None
    assert found.delegation.messages == (
        Message("system", "delegate"),
        Message("user", QUESTION),
        Message("assistant", SEARCH),
        Message("user", prompts.documents([PASSAGE], last=False)),
        Message("assistant", AGAIN),
        Message("user", prompts.documents([BIRTH], last=False)),
        Message("assistant", ANSWER),
    )
    assert [(search.query, search.passages) for search in found.searches] == [
        (DIRECTOR, (PASSAGE,)),
        (BORN, (BIRTH,)),
    ]
    assert events == [SearchDone(-1, DIRECTOR, ("Heat",)), SearchDone(-1, BORN, ("Michael Mann",))]
    assert [(call.role, call.sub_query_index) for call in context.ledger.calls] == [
        ("delegation", None)
    ] * 3


async def test_it_has_the_budgets_of_the_factorized_run() -> None:
    """As many searches as all executors together, as many turns as delegator and executors
    together.
    """
    limits = single_agent_limits(ExecutorLimits(max_turns=3, max_searches=2, top_k=5), 4, 3)
    assert (limits.max_searches, limits.max_turns, limits.top_k) == (4 * 3 * 2, 4 + 4 * 3 * 3, 5)


async def test_the_last_search_is_told_so() -> None:
    """After it the answer is asked for outright, and one more search is not run."""
    limits = ExecutorLimits(max_turns=9, max_searches=1)
    found = await run(SEARCH, AGAIN, ANSWER, limits=limits)
    assert (found.answer, found.outcome, len(found.searches)) == ("yes", "rounds_exhausted", 1)
    assert found.delegation is not None
    told = [message.content for message in found.delegation.messages if message.role == "user"][1:]
    assert told == [prompts.agent_documents([PASSAGE], last=True), prompts.LAST_ANSWER]


@pytest.mark.parametrize("said", [("It is Mann.",), ("<search></search>",), ("<answer></answer>",)])
async def test_a_malformed_turn_is_corrected_once(said: tuple[str, ...]) -> None:
    """A second one in a row ends the search: then the answer is asked for outright."""
    context = lasting()
    single, model = agent([SEARCH, *said, ANSWER])
    assert (await single.run(QUESTION, context)).answer == "yes"
    assert model.prompts[-1].messages[-1].content == prompts.CORRECT_AGENT
    assert model.prompts[-1].stop == ()
    assert [call.purpose for call in context.ledger.calls] == ["first", "first", "correction"]
    again, model = agent([SEARCH, *said, *said, ANSWER])
    assert (await again.run(QUESTION, lasting())).outcome == "rounds_exhausted"
    assert model.prompts[-1].messages[-1].content == prompts.LAST_ANSWER


async def test_who_does_not_search_is_marked() -> None:
    """An answer from memory is `no_search`, whether or not it is let through."""
    strict = await run(ANSWER)
    lax = await run(ANSWER, require_evidence=False)
    assert (strict.answer, strict.outcome) == (NOT_FOUND, "no_search")
    assert (lax.answer, lax.outcome) == ("yes", "no_search")


async def test_nothing_found() -> None:
    """Without any passage there is no answer; one that says so is one of those that were not
    found.
    """
    assert (await run("<search>x</search>", ANSWER)).outcome == "not_found"
    said = await run(SEARCH, "<answer>Not found.</answer>")
    assert (said.answer, said.outcome) == (NOT_FOUND, "not_found")


async def test_no_retrieval() -> None:
    """It answers from what it knows; a search is not run, and one that insists has no answer."""
    found = await run(ANSWER, retriever=None)
    assert (found.answer, found.outcome, found.topology) == ("yes", "answered", "no_retrieval")
    insists = await run(SEARCH, SEARCH, SEARCH, retriever=None)
    assert (insists.answer, insists.outcome, insists.searches) == (NOT_FOUND, "not_found", ())


async def test_a_context_that_is_full() -> None:
    """Passages give way; once none of the last ones is left, no further search is run."""

    def says(prompt: Prompt) -> Answer:
        if "by Michael Mann" in repr(prompt):
            return ContextTooLong("too long", endpoint="x")
        if prompts.LAST_ANSWER in prompt.messages[-1].content:
            return ANSWER
        return SEARCH

    single, _ = agent(says)
    context = lasting()
    found = await single.run(QUESTION, context)
    assert (found.answer, [search.dropped_passages for search in found.searches]) == ("yes", [1])
    assert [call.purpose for call in context.ledger.calls] == [
        "first",
        "first",
        "shortened",
        "correction",
    ]


async def test_a_question_that_is_too_long() -> None:
    """Is told as such."""
    with pytest.raises(ContextTooLong):
        await run(ContextTooLong("too long", endpoint="x"))


async def test_retrieval_that_is_down() -> None:
    """Ends the run with its own error."""

    class Down:
        async def search(
            self, queries: Sequence[str], top_k: int, document: str | None = None
        ) -> list[list[Passage]]:
            raise UpstreamUnavailable("connection refused", endpoint="x")

    with pytest.raises(UpstreamUnavailable):
        await run(SEARCH, retriever=Down())


def test_out_of_time() -> None:
    """When searching time ends, it answers from what was found by then, in its turn of the same
    conversation.
    """

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
        found = await running
        assert (found.answer, found.outcome, len(found.searches)) == ("yes", "time_exhausted", 1)
        said = model.prompts[-1].messages
        assert [message.role for message in said] == ["system", *["user", "assistant"] * 2, "user"]
        assert said[-1].content == prompts.LAST_ANSWER

    with_clock(main)


def limited(tokens: int) -> RunContext:
    """A run with a budget."""
    ledger = Ledger(allowance=Allowance(Budget(max_total_tokens=tokens)))
    return RunContext.lasting(60.0, lambda event: None, ledger)


async def test_any_budget() -> None:
    """It is never exceeded, and ends in an answer from what was found, or says that it does not
    suffice.
    """
    outcomes = set()
    for tokens in range(100, 1500, 50):
        context = limited(tokens)
        single, _ = agent(
            lambda prompt: ANSWER if prompts.LAST_ANSWER in prompt.messages[-1].content else SEARCH
        )
        try:
            found = await single.run(QUESTION, context)
        except BudgetExhausted:
            assert not any(call.outcome != "completed" for call in context.ledger.calls)
        else:
            assert found.answer == "yes"
            assert found.outcome == "budget_exhausted" or len(found.searches) == LIMITS.max_searches
            outcomes.add(found.outcome)
        assert sum(call.usage.total_tokens for call in context.ledger.calls if call.usage) <= tokens
    assert outcomes == {"budget_exhausted", "rounds_exhausted"}
