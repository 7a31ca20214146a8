"""The search loop: rounds, parallel executors, and an answer from reports only."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from router.errors import ContextTooLong, OutOfTime, UpstreamRefused, UpstreamUnavailable
from router.models import Message, Prompt
from router.protocol import Passage, prompts
from router.search import Answerer, Delegator, Executor, FactorizedSearch
from router.search.agent import ExecutorLimits
from router.search.context import Reporting
from router.trace import Event
from router.trace.values import (
    NOT_FOUND,
    NOT_SEARCHED,
    Reported,
    RoundStarted,
    SearchDone,
    SubQueryDispatched,
)
from tests.router.clock import Clock, with_clock
from tests.router.deployment import (
    PASSAGE,
    STOP,
    Deployment,
    HeldModel,
    Meeting,
    block,
    finds,
    lasting,
    report,
)
from tests.router.retriever import FixedRetriever
from tests.router.unfiltered import Unfiltered
from tests.scripted_model import ScriptedModel

QUESTION = "Was the director of Heat born before 1950?"


async def test_a_search_delegates_executes_informs_stops_and_answers() -> None:
    delegator = ScriptedModel(
        [block("Who directed Heat?"), block("When was Michael Mann born?"), STOP]
    )
    answerer = ScriptedModel(["<answer>yes</answer>"])
    trajectory = await Deployment(delegator, answerer=answerer).search().run(QUESTION, lasting())
    assert (trajectory.answer, trajectory.outcome, trajectory.rounds) == ("yes", "answered", (1, 1))
    assert [execution.sub_query for execution in trajectory.executions] == [
        "Who directed Heat?",
        "When was Michael Mann born?",
    ]
    assert trajectory.delegation is not None
    assert [message.role for message in trajectory.delegation.messages] == [
        "system",
        *["user", "assistant"] * 3,
    ]


async def test_the_answerer_sees_the_question_and_the_pairs_only() -> None:
    """It sees no reasoning, no trajectories and no passages."""
    answerer = ScriptedModel(["<answer>yes</answer>"])
    trajectory = await Deployment(answerer=answerer).search().run("Was it <him>?", lasting())
    (prompt,) = answerer.prompts
    pairs = [(execution.sub_query, execution.report) for execution in trajectory.executions]
    shown = prompts.answer_request("Was it <him>?", pairs)
    assert prompt.messages == (Message("system", "answer"), Message("user", shown))
    assert "by Michael Mann" not in repr(prompt)


@pytest.mark.parametrize("rounds", [1, 4])
async def test_no_decision_after_the_last_round(rounds: int) -> None:
    """After the last dispatch the answerer runs without another delegator call."""
    delegator = ScriptedModel([block(f"question {number}?") for number in range(9)])
    trajectory = await Deployment(delegator).search(max_rounds=rounds).run(QUESTION, lasting())
    assert (len(delegator.prompts), trajectory.rounds) == (rounds, (1,) * rounds)
    assert trajectory.outcome == "rounds_exhausted"
    assert trajectory.answer == "Michael Mann"


async def test_sub_queries_over_the_limit_are_not_run_and_reported_back() -> None:
    delegator = ScriptedModel([block("a?", "b?", "c?"), STOP])
    trajectory = await Deployment(delegator).search(max_sub_queries=2).run(QUESTION, lasting())
    assert [execution.sub_query for execution in trajectory.executions] == ["a?", "b?"]
    message = delegator.prompts[1].messages[-1].content
    assert message.endswith(
        "ask again if needed: <request>c?</request></not_dispatched></search_results>"
    )


async def test_executors_run_in_parallel() -> None:
    """Three sub-queries wait for each other at the retriever."""
    deployment = Deployment(ScriptedModel([block("a?", "b?", "c?"), STOP]), retriever=Meeting(3))
    async with asyncio.timeout(10):
        trajectory = await deployment.search().run(QUESTION, lasting())
    assert [execution.outcome for execution in trajectory.executions] == ["reported"] * 3


async def test_reports_stand_in_the_order_of_the_block() -> None:
    """Results have the numbers of the sub-queries, whichever ends first."""
    last_is_done = asyncio.Event()

    class LastFirst(FixedRetriever):
        async def search(
            self, queries: Sequence[str], top_k: int, document: str | None = None
        ) -> list[list[Passage]]:
            if "a?" in queries:
                await last_is_done.wait()
            else:
                last_is_done.set()
            return await super().search(queries, top_k)

    events: list[Event] = []
    delegator = ScriptedModel([block("a?", "b?"), STOP])
    trajectory = (
        await Deployment(delegator, retriever=LastFirst({}))
        .search()
        .run(QUESTION, lasting(events=events))
    )
    assert [event.index for event in events if isinstance(event, Reported)] == [1, 0]
    assert [execution.sub_query for execution in trajectory.executions] == ["a?", "b?"]
    assert '<result index="0"><request>a?' in delegator.prompts[1].messages[-1].content


async def test_events_are_announced_in_order_as_they_happen() -> None:
    """Sub-queries are numbered through the run, and in the ledger too."""
    events: list[Event] = []
    context = lasting(events=events)
    delegator = ScriptedModel([block("Who directed Heat?"), block("When?"), STOP])
    trajectory = await Deployment(delegator).search().run(QUESTION, context)
    assert [call.sub_query_index for call in context.ledger.calls if call.role == "execution"] == [
        0,
        0,
        1,
        1,
    ]
    assert len(context.ledger.calls) == 3 + 4 + 1
    first, second = trajectory.executions
    assert events == [
        RoundStarted(1),
        SubQueryDispatched(0, 1, "Who directed Heat?"),
        SearchDone(0, "Who directed Heat?", ("Heat",)),
        Reported(0, first),
        RoundStarted(2),
        SubQueryDispatched(1, 2, "When?"),
        SearchDone(1, "When?", ()),
        Reported(1, second),
        RoundStarted(3),
    ]


@pytest.mark.parametrize("outputs", [[STOP], ["He was born in 1943.", "Yes."]])
async def test_a_delegator_that_never_asks_is_marked(outputs: list[str]) -> None:
    """A stop without a sub-query is `no_search`, even if the answerer may guess."""
    strict = await Deployment(ScriptedModel(outputs)).search().run(QUESTION, lasting())
    assert (strict.answer, strict.outcome, strict.answering) == (NOT_SEARCHED, "no_search", None)
    lax = (
        await Deployment(ScriptedModel(outputs))
        .search(require_evidence=False)
        .run(QUESTION, lasting())
    )
    assert (lax.answer, lax.outcome) == ("Michael Mann", "no_search")
    deployment = Deployment(ScriptedModel(outputs), answerer=ScriptedModel(["not found"]))
    lax = await deployment.search(require_evidence=False).run(QUESTION, lasting())
    assert (lax.answer, lax.outcome) == (NOT_SEARCHED, "no_search")


def finds_nothing(prompt: Prompt) -> str:
    """Return an executor that searches and never reports."""
    return "<search>x</search>" if len(prompt.messages) == 2 else "I found nothing."


async def test_without_evidence_the_answer_is_not_found() -> None:
    """The answerer writes one only if it may guess."""
    strict_answerer = ScriptedModel([])
    lax_answerer = ScriptedModel(["<answer>a guess</answer>"])
    executor = ScriptedModel(finds_nothing)
    strict = (
        await Deployment(executor=executor, answerer=strict_answerer)
        .search()
        .run(QUESTION, lasting())
    )
    assert (strict.answer, strict.outcome, strict_answerer.prompts) == (NOT_FOUND, "not_found", [])
    deployment = Deployment(executor=executor, answerer=lax_answerer)
    lax = await deployment.search(require_evidence=False).run(QUESTION, lasting())
    assert (lax.answer, lax.outcome) == ("a guess", "answered")


@pytest.mark.parametrize(
    "output",
    [
        "<answer>not found</answer>",
        "<answer>Not Found.</answer>",
        "<answer></answer>",
        "<answer>Not found in the reports.</answer>",
        "The reports do not hold the answer.",
        "<answer>I couldn’t find the answer in the documents.</answer>",
        "<answer>None of the reports mentions this.</answer>",
        "<answer>No information was found.</answer>",
        "<answer>No evidence was found in the documents.</answer>",
        "<answer>It was not found in the provided documents.</answer>",
        "<answer>The answer is not stated.</answer>",
        "<answer>Nicht in den Berichten gefunden.</answer>",
        "<answer>In den Dokumenten nicht enthalten.</answer>",
        "<answer>Keine Angaben in den Quellen.</answer>",
        "<answer>Aucune information dans vos documents.</answer>",
        "<answer>La respuesta no se encuentra en los informes.</answer>",
        "<answer>文档中找不到</answer>",
        "<answer>文書には見つかりませんでした</answer>",
        "<answer>Die Berichte enthalten keine Antwort.</answer>",
        "<answer>La réponse n’a pas été trouvée dans les documents.</answer>",
        "<answer>No se encontró en los documentos.</answer>",
        "<answer>报告中未提及。</answer>",
        "<answer>没有找到相关信息</answer>",
        "<answer>資料には記載がありません。</answer>",
    ],
)
async def test_the_answerer_may_reject_the_reports(output: str) -> None:
    """An empty answer does so too."""
    trajectory = (
        await Deployment(answerer=ScriptedModel([output])).search().run(QUESTION, lasting())
    )
    assert (trajectory.answer, trajectory.outcome) == (NOT_FOUND, "not_found")
    assert trajectory.answering is not None


@pytest.mark.parametrize(
    "answer",
    [
        "Not Found",
        "“Not Found”",
        "No",
        "没有",
        "Nothing Else Matters",
        "Keine Angst",
        "not found guilty",
        "Not included",
        "The documents do not contain asbestos.",
        "It was not found until 1922.",
        "It was not found.",
        "No evidence was found.",
        "No documents were found",
        "No results are available.",
        "No answer was given.",
        "Keine Antwort.",
        "Introuvable.",
        "Sin respuesta",
        "No se encontró.",
        "未确定",
        "没有找到。",
        "見つかりませんでした",
        "該当なし",
    ],
)
async def test_an_answer_that_only_sounds_like_not_found_is_kept(answer: str) -> None:
    """A name such as “Not Found” is an answer if the evidence contains it."""
    executor = ScriptedModel(
        lambda prompt: (
            "<search>x</search>"
            if len(prompt.messages) == 2
            else report("a song", "The song “Not Found” is of 1994.")
        )
    )
    deployment = Deployment(executor=executor, answerer=ScriptedModel([f"<answer>{answer}"]))
    trajectory = await deployment.search().run(QUESTION, lasting())
    assert (trajectory.answer, trajectory.outcome) == (answer, "answered")


async def test_an_answerer_that_writes_none_is_asked_once_more() -> None:
    """It may not search: a search is no answer."""
    answerer = ScriptedModel(["<search>Who?</search>", "<answer>Michael Mann</answer>"])
    context = lasting()
    trajectory = await Deployment(answerer=answerer).search().run(QUESTION, context)
    assert (trajectory.answer, trajectory.outcome) == ("Michael Mann", "answered")
    assert trajectory.answering is not None
    assert [message.content for message in trajectory.answering.messages[-2:]] == [
        "<search>Who?</search>",
        prompts.CORRECT_ANSWER,
    ]
    assert [call.purpose for call in context.ledger.calls if call.role == "answer"] == [
        "first",
        "correction",
    ]


async def test_a_failed_executor_is_a_result_that_found_nothing() -> None:
    """The delegator is shown neutral words and may ask in another way."""
    down = UpstreamUnavailable("connection to 10.0.0.7 lost", endpoint="http://10.0.0.7")

    def flaky(prompt: Prompt) -> str | UpstreamUnavailable:
        return down if prompt.messages[1].content == "a?" else finds(prompt)

    delegator = ScriptedModel([block("a?", "b?"), STOP])
    trajectory = await Deployment(delegator, ScriptedModel(flaky)).search().run(QUESTION, lasting())
    assert [execution.outcome for execution in trajectory.executions] == [
        "model_failed",
        "reported",
    ]
    assert (
        "<answer>no evidence found</answer><evidence></evidence>"
        in delegator.prompts[1].messages[-1].content
    )
    assert "10.0.0.7" not in repr(delegator.prompts)
    assert trajectory.outcome == "answered"


@pytest.mark.parametrize("role", ["delegation", "answer"])
async def test_a_failed_delegator_or_answerer_is_raised(role: str) -> None:
    """The error names the role of the failed model."""
    refused = UpstreamRefused("wrong key", endpoint="e")
    broken = ScriptedModel([refused])
    deployment = Deployment(broken) if role == "delegation" else Deployment(answerer=broken)
    with pytest.raises(UpstreamRefused, match=f"^{role} at e"):
        await deployment.search().run(QUESTION, lasting())


def test_out_of_time_while_delegating_answers_from_the_reports() -> None:
    """The outcome names the deadline."""

    async def main(clock: Clock) -> None:
        delegator = HeldModel(ScriptedModel([block("Who directed Heat?")]), free=1)
        running = asyncio.create_task(Deployment(delegator).search().run(QUESTION, lasting(10.0)))
        await clock.advance(8.1)
        trajectory = await running
        assert (trajectory.answer, trajectory.outcome) == ("Michael Mann", "time_exhausted")
        assert len(trajectory.executions) == 1

    with_clock(main)


@pytest.mark.parametrize("max_rounds", [1, 4])
def test_out_of_time_while_executing_answers_from_the_reports(max_rounds: int) -> None:
    """This holds in the last round too. No decision is asked for afterwards."""

    async def main(clock: Clock) -> None:
        class OneHangs(FixedRetriever):
            async def search(
                self, queries: Sequence[str], top_k: int, document: str | None = None
            ) -> list[list[Passage]]:
                if "b?" in queries:
                    await asyncio.Event().wait()
                return [[PASSAGE][:top_k] for _ in queries]

        delegator = ScriptedModel([block("a?", "b?"), STOP])
        search = Deployment(delegator, retriever=OneHangs({})).search(max_rounds=max_rounds)
        running = asyncio.create_task(search.run(QUESTION, lasting(10.0)))
        await clock.advance(8.1)
        trajectory = await running
        assert [execution.outcome for execution in trajectory.executions] == [
            "reported",
            "timed_out",
        ]
        assert (trajectory.answer, trajectory.outcome) == ("Michael Mann", "time_exhausted")
        assert len(delegator.prompts) == 1

    with_clock(main)


def test_out_of_time_without_a_report_is_an_error() -> None:
    async def main(clock: Clock) -> None:
        deployment = Deployment(HeldModel(ScriptedModel([])))
        running = asyncio.create_task(deployment.search().run(QUESTION, lasting(10.0)))
        await clock.advance(8.1)
        with pytest.raises(OutOfTime, match="before anything was found"):
            await running

    with_clock(main)


def test_out_of_time_while_answering_is_an_error() -> None:
    """The answerer has the rest of the time and no more."""

    async def main(clock: Clock) -> None:
        deployment = Deployment(answerer=HeldModel(ScriptedModel([])))
        running = asyncio.create_task(deployment.search().run(QUESTION, lasting(10.0)))
        await clock.advance(9.9)
        assert not running.done()
        await clock.advance(0.2)
        with pytest.raises(OutOfTime, match="before the answer was written"):
            await running

    with_clock(main)


async def test_concurrent_searches_do_not_affect_each_other() -> None:
    """Several questions share one search object."""

    def delegates(prompt: Prompt) -> str:
        question = prompt.messages[1].content
        return block(f"{question}") if len(prompt.messages) == 2 else STOP

    def answers(prompt: Prompt) -> str:
        question = prompt.messages[1].content.partition("</question>")[0]
        return f"<answer>{question.removeprefix('<question>')}</answer>"

    deployment = Deployment(
        ScriptedModel(delegates), answerer=ScriptedModel(answers), retriever=Meeting(5)
    )
    search = deployment.search()
    async with asyncio.timeout(10):
        done = await asyncio.gather(
            *(search.run(f"question {number}?", lasting()) for number in range(5))
        )
    assert [trajectory.answer for trajectory in done] == [
        f"question {number}?" for number in range(5)
    ]
    assert all(len(trajectory.executions) == 1 for trajectory in done)


TOO_LONG = ContextTooLong("maximum context length is 9 tokens", endpoint="e")


async def test_a_delegator_with_a_full_context_stops() -> None:
    """The answer comes from the reports so far."""
    context = lasting()
    delegator = ScriptedModel([block("Who directed Heat?"), TOO_LONG])
    trajectory = await Deployment(delegator).search().run(QUESTION, context)
    assert (trajectory.answer, trajectory.outcome, trajectory.rounds) == (
        "Michael Mann",
        "answered",
        (1,),
    )
    assert [call.outcome for call in context.ledger.calls if call.role == "delegation"] == [
        "completed",
        "refused",
    ]


async def test_a_question_that_exceeds_the_context_is_an_error() -> None:
    with pytest.raises(ContextTooLong, match=r"^delegation at e"):
        await Deployment(ScriptedModel([TOO_LONG])).search().run(QUESTION, lasting())


def finds_otherwise(*sub_queries: str) -> ScriptedModel:
    """Return an executor whose reports differ for these sub-queries."""

    def works(prompt: Prompt) -> str:
        output = finds(prompt)
        return (
            output.replace("the answer", "another answer")
            if prompt.messages[1].content in sub_queries
            else output
        )

    return ScriptedModel(works, "other")


def asks(*blocks: tuple[str, ...]) -> ScriptedModel:
    """Return a delegator that asks these blocks one by one and then stops."""

    def delegates(prompt: Prompt) -> str:
        number = sum(message.role == "assistant" for message in prompt.messages)
        return block(*blocks[number]) if number < len(blocks) else STOP

    return ScriptedModel(delegates, "backbone")


async def test_a_rerun_with_equal_reports_asks_the_executor_only() -> None:
    """Everything that follows from the reports is unchanged, except which model wrote them."""
    delegator = asks(("a?", "b?"), ("c?",))
    answerer = ScriptedModel(["<answer>yes</answer>"])
    trajectory = await Deployment(delegator, answerer=answerer).search().run(QUESTION, lasting())
    context = lasting()
    executor = ScriptedModel(finds, "other")
    again = (
        await Deployment(ScriptedModel([]), executor, ScriptedModel([]))
        .search()
        .again(QUESTION, trajectory, context)
    )
    assert again == trajectory
    assert [prompt.messages[1].content for prompt in executor.prompts].count("c?") == 2
    assert {call.role for call in context.ledger.calls} == {"execution"}
    assert [call.sub_query_index for call in context.ledger.calls if call.sub_query_index == 2] == [
        2,
        2,
    ]


async def test_a_rerun_equals_a_run_with_that_executor_from_the_start() -> None:
    """Its trajectory equals that of a separate run, for any differing report."""
    for odd in ("a?", "b?", "c?"):
        trajectory = await Deployment(asks(("a?", "b?"), ("c?",))).search().run(QUESTION, lasting())
        answerer = ScriptedModel(
            lambda prompt: f"<answer>{'another' in prompt.messages[1].content}</answer>"
        )
        other = Deployment(asks(("a?", "b?"), ("c?",)), finds_otherwise(odd), answerer)
        assert await other.search().again(
            QUESTION, trajectory, lasting()
        ) == await other.search().run(QUESTION, lasting())


async def test_a_rerun_keeps_to_the_rounds_and_the_limit() -> None:
    """Sub-queries over the limit are reported back again, and no round follows the last one."""
    delegator = asks(("a?", "b?", "c?"), ("d?",))
    trajectory = (
        await Deployment(delegator).search(max_sub_queries=2, max_rounds=2).run(QUESTION, lasting())
    )
    anew = asks(("a?", "b?", "c?"), ("d?",), ("e?",))
    deployment = Deployment(anew, finds_otherwise("a?"))
    again = await deployment.search(max_sub_queries=2, max_rounds=2).again(
        QUESTION, trajectory, lasting()
    )
    assert (again.rounds, again.outcome, len(anew.prompts)) == ((2, 1), "rounds_exhausted", 1)
    assert again.delegation is not None
    assert (
        "<request>c?</request></not_dispatched>"
        in again.delegation.messages[again.messages_before_reports[0]].content
    )


async def test_replacing_the_reports_of_a_round_drops_what_came_after() -> None:
    """The rest of the run can be asked for."""
    trajectory = await Deployment(asks(("a?",), ("b?",))).search().run(QUESTION, lasting())
    executor = finds_otherwise("a?")
    other = await Deployment(asks(("a?",)), executor).search().run(QUESTION, lasting())
    delegator = asks(("a?",), ("f?",))
    search = Deployment(delegator, executor, ScriptedModel(["<answer>no</answer>"])).search()
    changed = search.with_reports(trajectory, 0, other.block(0))
    assert (changed.rounds, changed.executions, changed.answer) == ((1,), other.block(0), "")
    assert changed.delegation is not None
    assert "another answer to a?" in changed.delegation.messages[-1].content
    assert len(changed.delegation.outputs) == 1
    ended = await search.proceed(QUESTION, changed, lasting())
    assert ([execution.sub_query for execution in ended.executions], ended.answer) == (
        ["a?", "f?"],
        "no",
    )


async def test_after_the_last_round_only_the_answer_is_asked_for() -> None:
    trajectory = await Deployment(asks(("a?",))).search(max_rounds=1).run(QUESTION, lasting())
    search = Deployment(ScriptedModel([]), answerer=ScriptedModel(["<answer>no</answer>"])).search(
        max_rounds=1
    )
    ended = await search.proceed(
        QUESTION, search.with_reports(trajectory, 0, trajectory.executions), lasting()
    )
    assert (ended.answer, ended.outcome) == ("no", "rounds_exhausted")


async def test_a_replayed_round_that_ran_out_of_time_is_the_last() -> None:
    """As in a live run, no further decision is asked for."""
    trajectory = await Deployment(asks(("a?",))).search().run(QUESTION, lasting())
    delegator = ScriptedModel([STOP])
    search = Deployment(delegator, answerer=ScriptedModel(["<answer>no</answer>"])).search()
    executions = [
        msgspec.structs.replace(execution, outcome="timed_out")
        for execution in trajectory.executions
    ]
    changed = search.with_reports(trajectory, 0, executions)
    ended = await search.proceed(QUESTION, changed, lasting())
    assert (ended.answer, ended.outcome, delegator.prompts) == ("no", "time_exhausted", [])


async def test_the_run_says_which_reports_are_grounds() -> None:
    """By default, reports with evidence are. A run may require something else."""
    assert (await Deployment().search().run(QUESTION, lasting())).answer == "Michael Mann"
    demanding = msgspec.structs.replace(
        lasting(), reporting=Reporting(is_grounds=lambda _execution: False)
    )
    assert (await Deployment().search().run(QUESTION, demanding)).answer == NOT_FOUND


async def test_a_search_without_a_width_runs_all_executors_together() -> None:
    deployment = Deployment(ScriptedModel([block("a?", "b?", "c?"), STOP]), retriever=Meeting(3))
    roles = deployment.roles()
    executor = Executor(roles["execution"], Unfiltered(deployment.retriever), ExecutorLimits())
    search = FactorizedSearch(
        Delegator(roles["delegation"]), executor, Answerer(roles["answer"]), width=None
    )
    async with asyncio.timeout(10):
        assert (await search.run(QUESTION, lasting())).rounds == (3,)
