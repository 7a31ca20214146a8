"""The executor: a search first, a few turns, and a report as its only output."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec
import pytest

from router.errors import (
    ContextTooLong,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.models import Completion, Message
from router.protocol import NO_EVIDENCE, Passage, Report, prompts
from router.search import Executor, RunContext
from router.search.agent import Agent, ExecutorLimits
from router.search.context import Reporting
from router.search.executor import EXECUTOR
from router.trace import Event, Execution
from router.trace.values import SearchDone, SearchRecord
from tests.router.clock import Clock, with_clock
from tests.router.deployment import PASSAGE, HeldModel, lasting, report, role
from tests.router.retriever import FixedRetriever
from tests.router.unfiltered import PlainRetriever, Unfiltered
from tests.scripted_model import Answer, ScriptedModel

SUB_QUERY = "Who directed Heat?"
SEARCH = "<search>director of Heat</search>"
AGAIN = "<search>Heat 1995 film</search>"
REPORT = report("Michael Mann", "Heat is a film by Michael Mann.")
READ = Report("Michael Mann", ("Heat is a film by Michael Mann.",))
LIMITS = ExecutorLimits()
RETRIEVER = FixedRetriever({"director of Heat": [PASSAGE], "Heat 1995 film": [PASSAGE]})


def turned(execution: Execution) -> list[str]:
    """Return the messages to the executor after each of its turns."""
    return [
        message.content for message in execution.conversation.messages[2:] if message.role == "user"
    ]


async def run(
    *answers: Answer,
    limits: ExecutorLimits = LIMITS,
    retriever: PlainRetriever = RETRIEVER,
) -> Execution:
    """Run the executor once with these outputs of the model."""
    executor = Executor(role("execution", ScriptedModel(answers)), Unfiltered(retriever), limits)
    return await executor.run(SUB_QUERY, 0, lasting())


async def test_it_searches_and_reports() -> None:
    """This is the usual run of the paper."""
    events: list[Event] = []
    executor = Executor(
        role("execution", ScriptedModel([SEARCH, REPORT])), Unfiltered(RETRIEVER), LIMITS
    )
    execution = await executor.run(SUB_QUERY, 2, lasting(events=events))
    assert (execution.outcome, execution.report, execution.sub_query) == (
        "reported",
        READ,
        SUB_QUERY,
    )
    assert events == [SearchDone(2, "director of Heat", ("Heat",))]
    assert execution.searches == (SearchRecord("director of Heat", (PASSAGE,)),)
    assert [output.text for output in execution.conversation.outputs] == [SEARCH, REPORT]


async def test_it_is_shown_its_sub_query_and_nothing_else() -> None:
    """The context holds the role's prompt, the sub-query and the passages of the search."""
    model = ScriptedModel([SEARCH, REPORT])
    await Executor(role("execution", model), Unfiltered(RETRIEVER), ExecutorLimits()).run(
        "A < B & <stop/>?", 0, lasting()
    )
    opening = (Message("system", "execute"), Message("user", "A &lt; B &amp; &lt;stop/&gt;?"))
    shown = Message("user", prompts.documents([PASSAGE], last=False))
    assert [prompt.messages for prompt in model.prompts] == [
        opening,
        (*opening, Message("assistant", SEARCH), shown),
    ]
    assert {prompt.stop for prompt in model.prompts} == {("</search>", "</evidence>")}


async def test_a_report_before_any_search_is_sent_back() -> None:
    execution = await run(REPORT, SEARCH, REPORT)
    assert (execution.outcome, execution.report) == ("reported", READ)
    assert turned(execution)[0] == prompts.CORRECT_SEARCH


async def test_a_search_in_the_last_turn_is_not_run() -> None:
    """That turn is for the report. The outcome is a typed failure with a neutral report."""
    execution = await run(SEARCH, AGAIN, "<search>one more</search>")
    assert (execution.outcome, execution.report, len(execution.searches)) == (
        "no_report",
        NO_EVIDENCE,
        2,
    )
    assert len(execution.conversation.outputs) == 3


@pytest.mark.parametrize(
    ("max_turns", "max_searches", "searches", "turns"),
    [(2, 2, 1, 2), (3, 1, 1, 3), (3, 2, 2, 3), (4, 2, 2, 4), (4, 3, 3, 4), (5, 9, 4, 5)],
)
async def test_both_budgets_bind(
    max_turns: int, max_searches: int, searches: int, turns: int
) -> None:
    """An executor that only searches is stopped by the budget that ends first, and has a turn to
    report in.
    """
    limits = ExecutorLimits(max_turns, max_searches)
    execution = await run(*[SEARCH] * 9, limits=limits)
    assert (len(execution.searches), len(execution.conversation.outputs)) == (searches, turns)
    (last_documents,) = [
        message
        for message in turned(execution)
        if message.startswith("<doc") and prompts.LAST_SEARCH in message
    ]
    assert (
        last_documents
        == [message for message in turned(execution) if message.startswith("<doc")][-1]
    )


@pytest.mark.parametrize(
    "bad", ["I think it is Mann.", "", "<search></search>", "<think>hm", "<evidence>x</evidence>"]
)
async def test_a_correction_asks_for_what_is_still_possible(bad: str) -> None:
    """Before the first search that is a search, afterwards a search or a report."""
    first = await run(bad, SEARCH, REPORT, limits=ExecutorLimits(4, 2))
    assert (first.outcome, turned(first)[0]) == ("reported", prompts.CORRECT_SEARCH)
    later = await run(SEARCH, bad, REPORT, limits=ExecutorLimits(4, 2))
    assert (later.outcome, turned(later)[1]) == ("reported", prompts.CORRECT_REPORT)
    last = await run(SEARCH, bad, REPORT)
    assert (last.outcome, turned(last)[1]) == ("reported", prompts.LAST_SEARCH)


async def test_malformed_output_is_corrected_while_turns_are_left() -> None:
    """Then the report is neutral."""
    hm = "I think it is Mann."
    execution = await run(*[hm] * 4, limits=ExecutorLimits(4, 2))
    assert (execution.outcome, execution.report, execution.searches) == (
        "no_report",
        NO_EVIDENCE,
        (),
    )
    assert len(execution.conversation.outputs) == 4
    assert (
        await run(hm, hm, SEARCH, hm, REPORT, limits=ExecutorLimits(9, 2))
    ).outcome == "reported"


async def test_corrections_are_booked_as_such() -> None:
    """The ledger distinguishes a correction from a first turn."""
    context = lasting()
    model = ScriptedModel(["hm", SEARCH, REPORT])
    await Executor(role("execution", model), Unfiltered(RETRIEVER), ExecutorLimits()).run(
        SUB_QUERY, 7, context
    )
    assert [(call.purpose, call.sub_query_index) for call in context.ledger.calls] == [
        ("first", 7),
        ("correction", 7),
        ("first", 7),
    ]


async def test_of_several_searches_the_first_runs_and_the_others_are_counted() -> None:
    retriever = FixedRetriever({})
    (search,) = (
        await run(Completion(f"{SEARCH}{AGAIN}", "stop"), REPORT, retriever=retriever)
    ).searches
    assert (search.query, search.ignored_queries) == ("director of Heat", 1)
    assert retriever.queries == ["director of Heat"]


async def test_a_report_cut_by_the_length_limit_is_corrected() -> None:
    cut = Completion("<answer>Michael Mann</answer><evidence>Heat is a fi", "length")
    execution = await run(SEARCH, cut, REPORT)
    assert (execution.outcome, len(execution.conversation.outputs)) == ("reported", 3)


async def test_thinking_stays_in_the_trace_and_out_of_the_next_prompt() -> None:
    model = ScriptedModel([f"<think>I wonder</think>{SEARCH}", REPORT])
    execution = await Executor(
        role("execution", model), Unfiltered(RETRIEVER), ExecutorLimits()
    ).run(SUB_QUERY, 0, lasting())
    assert model.prompts[1].messages[2] == Message("assistant", SEARCH)
    assert "I wonder" in execution.conversation.outputs[0].text


async def test_after_a_stop_string_in_a_thought_none_are_sent() -> None:
    """Engines end the output there, within the thought."""
    output = f"<think>I could <search>x</search>, or not.</think>{SEARCH}"
    execution = await run(output, output, REPORT)
    assert (execution.outcome, [search.query for search in execution.searches]) == (
        "reported",
        ["director of Heat"],
    )


async def test_the_best_passages_up_to_top_k_are_shown() -> None:
    """A search without a passage is shown as such."""
    passages = [Passage(str(number), f"T{number}", "text") for number in range(5)]
    execution = await run(
        SEARCH,
        AGAIN,
        REPORT,
        limits=ExecutorLimits(top_k=2),
        retriever=FixedRetriever({"director of Heat": passages}),
    )
    assert [search.passages for search in execution.searches] == [tuple(passages[:2]), ()]
    assert turned(execution)[1].startswith("<documents></documents>")


async def test_long_passages_and_reports_are_cut() -> None:
    """Passages are cut before they are shown or traced, and reports before any other role sees
    them.
    """
    passages = [Passage("1", "T" * 200, "x" * 200), PASSAGE]
    limits = ExecutorLimits(passage_chars=100, report_chars=10)
    execution = await run(
        SEARCH,
        report("12345678901", "1234567890", "12345678901"),
        limits=limits,
        retriever=FixedRetriever({"director of Heat": passages}),
    )
    assert execution.searches[0].passages == (Passage("1", "T" * 100, "x" * 100), PASSAGE)
    assert "T" * 101 not in turned(execution)[0]
    assert execution.report == Report("1234567890", ("1234567890", "1234567890"))


TOO_LONG = ContextTooLong("maximum context length is 9 tokens", endpoint="e")
MANY = [Passage(str(number), f"T{number}", "text") for number in range(3)]


async def shortened(
    *answers: Answer, context_tokens: int | None = None
) -> tuple[Execution, RunContext, ScriptedModel]:
    """Run with searches that find three passages each."""
    model = ScriptedModel(answers)
    context = lasting()
    asked = replace(role("execution", model), context_tokens=context_tokens)
    retriever = FixedRetriever({"director of Heat": MANY, "Heat 1995 film": MANY})
    return (
        await Executor(asked, Unfiltered(retriever), LIMITS).run(SUB_QUERY, 0, context),
        context,
        model,
    )


async def test_passages_of_the_latest_search_are_dropped_first() -> None:
    """The lowest rank goes first, then passages of the earlier search."""
    execution, context, model = await shortened(SEARCH, AGAIN, *[TOO_LONG] * 4, REPORT)
    assert execution.outcome == "reported"
    assert [search.passages for search in execution.searches] == [tuple(MANY)] * 2
    assert [search.dropped_passages for search in execution.searches] == [1, 3]
    assert execution.conversation.messages[:-1] == model.prompts[-1].messages
    assert turned(execution) == [
        prompts.documents(MANY[:2], last=False),
        prompts.documents([], last=True),
    ]
    booked = [(call.purpose, call.outcome) for call in context.ledger.calls]
    assert booked[2:] == [
        ("first", "refused"),
        *[("shortened", "refused")] * 3,
        ("shortened", "completed"),
    ]


async def test_a_prompt_that_is_too_long_without_passages_fails() -> None:
    """It fails like any other refusal, and every attempt is booked."""
    execution, context, _ = await shortened(SEARCH, *[TOO_LONG] * 4)
    assert (execution.outcome, execution.report) == ("model_failed", NO_EVIDENCE)
    assert execution.searches[0].dropped_passages == 3
    assert len(context.ledger.calls) == 5
    execution, context, _ = await shortened(TOO_LONG)
    assert (execution.outcome, len(context.ledger.calls)) == ("model_failed", 1)


async def test_passages_are_dropped_before_a_configured_context_overflows() -> None:
    """No request is refused."""
    execution, context, _ = await shortened(Completion(SEARCH, "stop"), REPORT, context_tokens=150)
    assert (execution.outcome, len(context.ledger.calls)) == ("reported", 2)
    assert execution.searches[0].dropped_passages == 1
    execution, _, _ = await shortened(Completion(SEARCH, "stop"), REPORT, context_tokens=1000)
    assert execution.searches[0].dropped_passages == 0


async def test_a_dropped_passage_is_not_cited() -> None:
    passage = Passage("a", "Heat", "Heat is a film by Michael Mann.")
    retriever = FixedRetriever({"director of Heat": [passage, Passage("b", "Heat", passage.text)]})
    whole = await run(SEARCH, REPORT, retriever=retriever)
    fewer = await run(SEARCH, TOO_LONG, REPORT, retriever=retriever)
    cited = [
        [citation.passage_id for citation in execution.citations([passage.text])[0]]
        for execution in (whole, fewer)
    ]
    assert cited == [["a", "b"], ["a"]]


class Broken:
    """A retriever that fails."""

    def __init__(self, error: UpstreamError) -> None:
        self._error = error

    async def search(
        self, _queries: Sequence[str], _top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        raise self._error


FAILURES: Iterable[type[UpstreamError]] = (
    UpstreamUnavailable,
    UpstreamRefused,
    UpstreamProtocolError,
)


@pytest.mark.parametrize("kind", FAILURES)
async def test_upstream_failures_have_their_outcome_in_the_trace(kind: type[UpstreamError]) -> None:
    """The report does not mention them."""
    error = kind("secret-host refused", endpoint="http://secret-host")
    model = await run(SEARCH, error)
    retrieval = await run(
        SEARCH, retriever=Broken(kind("secret-host refused", endpoint="http://secret-host"))
    )
    assert (model.outcome, retrieval.outcome) == ("model_failed", "retrieval_failed")
    for execution in (model, retrieval):
        assert execution.report == NO_EVIDENCE
        assert "secret" not in repr(execution.report)
    assert len(model.searches) == 1


async def test_other_errors_are_raised() -> None:
    """A bug is not disguised as missing evidence."""
    with pytest.raises(RuntimeError):
        await run(SEARCH)


def test_an_executor_ends_when_searching_ends() -> None:
    """Its spending is booked."""

    async def main(clock: Clock) -> None:
        model = HeldModel(ScriptedModel([]))
        context = lasting(10.0)
        executor = Executor(role("execution", model), Unfiltered(RETRIEVER), ExecutorLimits())
        running = asyncio.create_task(executor.run(SUB_QUERY, 0, context))
        await clock.advance(7.9)
        assert not running.done()
        await clock.advance(0.2)
        execution = await running
        assert (execution.outcome, execution.report) == ("timed_out", NO_EVIDENCE)
        assert [call.outcome for call in context.ledger.calls] == ["cancelled"]

    with_clock(main)


async def test_the_form_of_reports_selects_the_agent() -> None:
    """A run with another form of reports is served by the executor's agent for it."""
    listing = Agent(
        role("execution", ScriptedModel([SEARCH, report("a list", "b")])),
        Unfiltered(RETRIEVER),
        LIMITS,
        EXECUTOR,
    )
    usual = role("execution", ScriptedModel([SEARCH, REPORT]))
    executor = Executor(usual, Unfiltered(RETRIEVER), LIMITS, forms={"list": listing})
    other = msgspec.structs.replace(lasting(), reporting=Reporting("list"))
    assert (await executor.run(SUB_QUERY, 0, other)).report.answer == "a list"
    assert (await executor.run(SUB_QUERY, 0, lasting())).report == READ
