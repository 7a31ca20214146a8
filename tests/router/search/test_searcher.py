"""A searcher in the executor's place, in its own protocol."""

from hypothesis import given
from hypothesis import strategies as st

from router.calls import Role
from router.models import Message, ScriptedModel
from router.models.connection_pool import ConnectionPool
from router.models.model import Answer
from router.models.openai_client import OpenAIHTTP
from router.protocol import NO_EVIDENCE, Passage, Report, prompts
from router.search import Executor, Retriever
from router.search.agent import ExecutorLimits
from router.search.executor import SEARCH_R1
from router.testing.openai_server import MODEL, OpenAIServer, says
from router.testing.retriever import FixedRetriever
from router.trace import Event, Execution
from router.trace.values import SearchDone
from tests.router.deployment import STOP, Deployment, block, lasting, role

SUB_QUERY = "Who directed Heat?"
HEAT = Passage("p1", "Heat", "It is long. Heat is a film by Michael <b>Mann</b>. It ends.", 0.9)
MANN = Passage("p2", "Mann", "Mann made Heat.", 0.8)
RETRIEVER = FixedRetriever({SUB_QUERY: [HEAT, MANN]})
LIMITS = ExecutorLimits()
SEARCH = f"<think>I lack it.</think>\n<search> {SUB_QUERY} </search>"
ANSWER = "<think>So it is he.</think>\n<answer> Mann </answer>"
SHOWN = (
    '\n\n<information>Doc 1(Title: "Heat") It is long. Heat is a film by Michael '
    "&lt;b&gt;Mann&lt;/b&gt;. It ends.\n"
    'Doc 2(Title: "Mann") Mann made Heat.</information>\n\n'
)
ASKED = Message("user", "execute Question: Who directed Heat?\n")


def searcher(role: Role, retriever: Retriever, limits: ExecutorLimits) -> Executor:
    """An executor whose model was trained to search alone."""
    return Executor(role, retriever, limits, SEARCH_R1)


async def run(*answers: Answer, limits: ExecutorLimits = LIMITS) -> tuple[Execution, ScriptedModel]:
    """One run over what the model says, and the model."""
    model = ScriptedModel(answers)
    return await searcher(role("execution", model), RETRIEVER, limits).run(
        SUB_QUERY, 3, lasting()
    ), model


async def test_it_goes_on_with_its_own_turn() -> None:
    """Its instructions open the user's only turn; what it wrote, thinking included, is
    continued after the results.
    """
    execution, model = await run(SEARCH, ANSWER)
    assert [prompt.messages for prompt in model.prompts] == [
        (ASKED,),
        (ASKED, Message("assistant", SEARCH + SHOWN)),
    ]
    assert {prompt.stop for prompt in model.prompts} == {("</search>", "</answer>")}
    assert execution.conversation.messages == (
        ASKED,
        Message("assistant", SEARCH),
        Message("user", SHOWN),
        Message("assistant", ANSWER),
    )


async def test_its_report_has_the_sentences_that_hold_its_answer() -> None:
    """One of each passage."""
    execution, _ = await run(SEARCH, ANSWER)
    assert execution.outcome == "reported"
    sentences = ("Heat is a film by Michael <b>Mann</b>.", "Mann made Heat.")
    assert execution.report == Report("Mann", sentences)
    quoted, _ = await run(SEARCH, "<answer>Heat</answer>")
    assert quoted.report.evidence == sentences
    unfounded, _ = await run(SEARCH, "<answer>Pacino</answer>")
    assert unfounded.report == Report("Pacino", ())


async def test_it_may_answer_at_once() -> None:
    """As it was trained to; nothing supports that answer."""
    execution, _ = await run(ANSWER)
    assert (execution.outcome, execution.report) == ("reported", Report("Mann", ()))


async def test_its_calls_are_the_executors() -> None:
    """In the ledger and in the events, under the sub-query's number."""
    events: list[Event] = []
    context = lasting(events=events)
    await searcher(
        role("execution", ScriptedModel([SEARCH, ANSWER])), RETRIEVER, ExecutorLimits()
    ).run(SUB_QUERY, 3, context)
    assert [(call.role, call.sub_query_index) for call in context.ledger.calls] == [
        ("execution", 3)
    ] * 2
    assert events == [SearchDone(3, SUB_QUERY, ("Heat", "Mann"))]


async def test_a_malformed_turn_is_corrected_once() -> None:
    """Within its turn; a second one ends in a typed failure."""
    execution, model = await run("I wonder.", SEARCH, ANSWER)
    assert execution.outcome == "reported"
    assert model.prompts[1].messages[-1] == Message(
        "assistant", "I wonder." + prompts.CORRECT_SEARCHER
    )
    failed, _ = await run("I wonder.", "I wonder.")
    assert (failed.outcome, failed.report) == ("no_report", NO_EVIDENCE)


async def test_in_a_search() -> None:
    """It stands where an executor stands, and the trajectory says so."""
    deployment = Deployment(ScriptedModel([block(SUB_QUERY), STOP]))
    searching = searcher(
        role("execution", ScriptedModel([SEARCH, ANSWER])), RETRIEVER, ExecutorLimits()
    )
    found = await deployment.search(executor=searching, topology="searcher").run(
        "Who made it?", lasting()
    )
    assert (found.topology, found.answer, found.executions[0].report.answer) == (
        "searcher",
        "Michael Mann",
        "Mann",
    )


async def test_on_the_wire(openai_server: OpenAIServer, pool: ConnectionPool) -> None:
    """vLLM is told to go on with the last message, and no new turn is opened."""
    openai_server.plays(says(SEARCH), says(ANSWER))
    model = OpenAIHTTP(pool, openai_server.base_url, MODEL)
    await searcher(role("execution", model), RETRIEVER, ExecutorLimits()).run(
        SUB_QUERY, 0, lasting()
    )
    first, second = openai_server.bodies
    assert not {"continue_final_message", "add_generation_prompt"} & first.keys()
    assert (second["continue_final_message"], second["add_generation_prompt"]) == (True, False)
    assert second["messages"][-1] == {"role": "assistant", "content": SEARCH + SHOWN}


@given(title=st.text(), text=st.text())
def test_results_cannot_change_the_protocol(title: str, text: str) -> None:
    """Whatever a passage holds, the block has one beginning and one end, and no other tag."""
    shown = prompts.information([Passage("p", title, text)], _last=False).strip()
    assert shown.startswith('<information>Doc 1(Title: "')
    assert shown.count("<") == shown.count(">") == 2
