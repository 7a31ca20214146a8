"""Gold conversations: the gateway reads them correctly, and shows each role the same text and
nothing more.
"""

import itertools
import re
from collections.abc import Iterator

import pytest

from benchmarks.baselines.single_agent import SingleAgent
from executor_sft.miniworld.dialogues import Dialogue, DialogueTurn, DialogueWriter, RolePrompts
from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.questions import MiniQuestion, SubQuery
from executor_sft.miniworld.world import World
from router.calls import Role
from router.ledger import Ledger
from router.models import Message, Sampling
from router.protocol import NO_EVIDENCE, Passage, Report, parse_decision, parse_turn, prompts
from router.protocol.decision import Dispatch, Stop
from router.protocol.tags import unescape
from router.protocol.turns import ReportTurn, SearchTurn, parse_answer
from router.search import Executor, RunContext, answerer, delegator, executor
from router.search.agent import ExecutorLimits
from tests.router.retriever import FixedRetriever
from tests.router.unfiltered import Unfiltered
from tests.scripted_model import ScriptedModel

_DOCUMENT = re.compile(r'<document index="\d+"><title>(.*?)</title><text>(.*?)</text></document>')


@pytest.fixture
def writer(world: World, system: RolePrompts) -> DialogueWriter:
    return DialogueWriter(world, system)


@pytest.fixture
def executions(
    writer: DialogueWriter, world: World, questions: list[MiniQuestion]
) -> Iterator[tuple[SubQuery, Dialogue]]:
    """Sub-queries of the questions, each with its conversation."""
    anyone = world.people[0]
    sub_queries = (sub_query for question in questions for sub_query in question.sub_queries)
    return ((sub_query, writer.execution(sub_query, anyone)) for sub_query in sub_queries)


def texts(dialogue: Dialogue, *kinds: str) -> list[str]:
    return [turn.text for turn in dialogue if turn.kind in kinds]


def seen(pairs: list[tuple[str, Report]]) -> set[str]:
    """Return the gold reports that a role may see: with all evidence, or with the last point."""
    shortened = [(report, Report(report.answer, report.evidence[-1:])) for _, report in pairs]
    requests = [request for request, _ in pairs]
    return {
        prompts.search_results(list(zip(requests, reports, strict=True)))
        for reports in itertools.product(*shortened)
    }


def passages_of(text: str) -> list[tuple[str, str]]:
    """Return title and text of each document in a turn."""
    return [(unescape(title), unescape(body)) for title, body in _DOCUMENT.findall(text)]


def test_gold_decisions_dispatch_the_gold_sub_queries(
    writer: DialogueWriter, questions: list[MiniQuestion]
) -> None:
    """They come block by block, then a stop. Each ends at the delegator's stop string."""
    for question in questions:
        *dispatched, stop = texts(writer.delegation(question), "delegate", "stop")
        decisions = [parse_decision(text, limit=8) for text in dispatched]
        blocks = [tuple(sub_query.text for sub_query in block) for block in question.rounds]
        assert decisions == [Dispatch(block, ()) for block in blocks]
        assert parse_decision(stop, limit=8) == Stop()
        assert all(ends_at(text, delegator.STOP) for text in dispatched)


def test_gold_turns_of_an_executor_search_and_report(
    executions: Iterator[tuple[SubQuery, Dialogue]],
) -> None:
    """The gold searches come in order, then the gold report.

    Each ends at the executor's stop strings.
    """
    for sub_query, dialogue in executions:
        *searches, report = texts(dialogue, "search", "report")
        assert [parse_turn(text) for text in searches] == [
            SearchTurn(query, 0) for query in sub_query.searches
        ]
        assert parse_turn(report) == ReportTurn(sub_query.report)
        assert all(ends_at(text, executor.STOP) for text in (*searches, report))


def test_the_gold_answer_is_the_question_s_answer(
    writer: DialogueWriter, questions: list[MiniQuestion]
) -> None:
    """The answer to a comparison follows a trace: each year with its name, the word, and the chosen
    name. Other answers have no trace.
    """
    for question in questions:
        (text,) = texts(writer.answering(question), "answer")
        trace, _, answer = text.rpartition("<answer>")
        assert (parse_answer(text), answer) == (question.answer, f"{question.answer}</answer>")
        assert ends_at(text, answerer.STOP)
        if question.earlier is None:
            assert trace == ""
            continue
        years = [sub_query.report.answer for sub_query in question.sub_queries]
        dated = [f"{year} {name}" for year, name in zip(years, question.compared, strict=True)]
        chosen = (min if question.earlier else max)(dated, key=lambda one: int(one.split()[0]))
        assert (
            trace == f"{', '.join(dated)}: {'earlier' if question.earlier else 'later'} {chosen} "
        )
        assert chosen.endswith(f" {question.answer}")


@pytest.mark.parametrize("number", [0, -1], ids=["the first round", "the last round"])
def test_an_empty_round_ends_the_search_without_a_guess(
    writer: DialogueWriter, questions: list[MiniQuestion], number: int
) -> None:
    """The delegator stops, and the answerer, which sees the reports so far, does not guess."""
    for question in questions[:200]:
        missing = range(len(question.rounds))[number]
        rounds = question.rounds[: missing + 1]
        *_, results, stop = writer.delegation(question, missing)
        delegated = texts(writer.delegation(question, missing), "delegate")
        answering = writer.answering(question, missing)
        nothing = prompts.search_results(
            [(sub_query.text, NO_EVIDENCE) for sub_query in rounds[-1]]
        )
        assert len(delegated) == len(rounds)
        assert results.text == nothing
        assert parse_decision(stop.text, limit=8) == Stop()
        assert answering[-2].text.count("<result ") == sum(map(len, rounds))
        assert parse_answer(answering[-1].text) == "not found"


def test_delegator_and_answerer_see_the_question_and_the_reports(
    writer: DialogueWriter, questions: list[MiniQuestion], system: RolePrompts
) -> None:
    """They see no passage, no search of an executor, and no evidence beyond the gold report's.

    The answerer sees them in one turn in order of dispatch, without the delegator's turns.
    """
    for question in questions[:300]:
        system_text, user_texts, *results = texts(writer.delegation(question), "system", "user")
        assert (system_text, user_texts) == (system.delegation, question.text)
        for block, result in zip(question.rounds, results, strict=True):
            assert result in seen([(sub_query.text, sub_query.report) for sub_query in block])
        system_text, user_texts = texts(writer.answering(question), "system", "user")
        pairs = [(sub_query.text, sub_query.report) for sub_query in question.sub_queries]
        assert system_text == system.answer
        assert user_texts in {
            f"<question>{question.text}</question>{results}" for results in seen(pairs)
        }


def test_an_executor_sees_its_sub_query_and_passages(
    executions: Iterator[tuple[SubQuery, Dialogue]], library: Library, system: RolePrompts
) -> None:
    """It sees three different passages of the world after each search, including the gold passage,
    and nothing of the question or of other sub-queries.
    """
    known = {(passage.title, passage.text) for passage in library.passages}
    for sub_query, dialogue in itertools.islice(executions, 500):
        system_text, user_text, *results = texts(dialogue, "system", "user")
        assert (system_text, user_text) == (system.execution, sub_query.text)
        for identity, result in zip(sub_query.gold_passages, results, strict=True):
            gold = library.by_id[identity]
            shown = passages_of(result)
            assert len(set(shown)) == len(shown) == 3
            assert (gold.title, gold.text) in shown
            assert set(shown) <= known
            rest = _DOCUMENT.sub("", result)
            assert rest in (
                "<documents></documents>",
                f"<documents></documents>\n{prompts.LAST_SEARCH}",
            )


@pytest.mark.parametrize("passages", [1, 2, 3])
def test_a_search_shows_the_configured_number_of_passages(
    writer: DialogueWriter, passages: int
) -> None:
    """The naive executor never has a second search; with `two_searches`, about half of the
    conversations have.
    """
    two_search_dialogues = list(
        itertools.islice(writer.executor(two_searches=True, passages=passages), 100)
    )
    for dialogue in two_search_dialogues:
        assert {len(passages_of(text)) for text in texts(dialogue, "user")[1:]} == {passages}
    naive = itertools.islice(writer.executor(), 100)
    assert {len(texts(dialogue, "search")) for dialogue in naive} == {1}
    assert {len(texts(dialogue, "search")) for dialogue in two_search_dialogues} == {1, 2}


def test_only_the_last_search_is_sometimes_announced(
    executions: Iterator[tuple[SubQuery, Dialogue]],
) -> None:
    """About three conversations of ten announce it."""
    sample = [texts(dialogue, "user")[1:] for _, dialogue in itertools.islice(executions, 1000)]
    announced = sum(results[-1].endswith(prompts.LAST_SEARCH) for results in sample)

    assert 0.2 < announced / len(sample) < 0.4
    assert not any(prompts.LAST_SEARCH in text for results in sample for text in results[:-1])


async def test_the_gateway_s_executor_sends_the_gold_conversation(
    executions: Iterator[tuple[SubQuery, Dialogue]], system: RolePrompts
) -> None:
    """A scripted model that writes the gold turns gets the gold user turns, character by
    character.
    """
    for sub_query, dialogue in itertools.islice(executions, 100):
        *searches, report = texts(dialogue, "search", "report")
        results = texts(dialogue, "user")[1:]
        shown = [[Passage("", *passage) for passage in passages_of(result)] for result in results]
        told_last = results[-1].endswith(prompts.LAST_SEARCH)
        limits = ExecutorLimits(
            len(searches) + (1 if told_last else 2), len(searches) + (0 if told_last else 1)
        )
        model = ScriptedModel([*searches, report])
        retriever = FixedRetriever(dict(zip(sub_query.searches, shown, strict=True)))
        context = RunContext.lasting(60.0, lambda _event: None, Ledger())

        run = Executor(
            Role("execution", model, system.execution, Sampling()), Unfiltered(retriever), limits
        )
        execution = await run.run(sub_query.text, 0, context)

        assert [
            DialogueTurn("user", message.content).text
            for message in execution.conversation.messages
        ] == [turn.text for turn in dialogue]
        assert execution.report == sub_query.report


async def test_a_single_agent_gets_the_conversation_that_it_was_trained_on(
    world: World, system: RolePrompts
) -> None:
    """With its own turns and the same passages, the gateway's conversation is equal, word for
    word.
    """
    writer = DialogueWriter(world, system)
    for _ in range(10):
        dialogue = writer.alone(passages=2)
        shown = [turn.text for turn in dialogue[2:] if turn.kind == "user"]
        queries = [
            unescape(text.removeprefix("<search>").removesuffix("</search>"))
            for text in texts(dialogue, "search")
        ]
        conversation = [
            [
                Passage(f"p{number}", *title_and_text)
                for number, title_and_text in enumerate(passages_of(text))
            ]
            for text in shown
        ]
        model = ScriptedModel(texts(dialogue, "search", "answer"))
        role = Role("delegation", model, system.agent, Sampling(max_tokens=128))
        limits = ExecutorLimits(max_turns=20, max_searches=10)
        single = SingleAgent(
            role, Unfiltered(FixedRetriever(dict(zip(queries, conversation, strict=True)))), limits
        )
        context = RunContext.lasting(60.0, lambda event: None, Ledger())
        result = await single.run(unescape(dialogue[1].text), context)
        assert result.answering is not None
        assert result.answering.messages == tuple(
            Message(turn.role, turn.text)  # type: ignore[arg-type]
            for turn in dialogue
        )
        assert (result.answer, result.outcome) == (parse_answer(dialogue[-1].text), "answered")


def ends_at(text: str, stop: tuple[str, ...]) -> bool:
    """Return whether one of the strings ends `text` and none is before its end."""
    return any(text.endswith(string) for string in stop) and all(
        text.find(s) in (-1, len(text) - len(s)) for s in stop
    )
