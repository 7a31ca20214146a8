"""Which citations support which sentence of an answer, through each door."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from rolegate.client import AsyncClient
from rolegate.v1.answer_service_pb2 import AnswerResponse

from router.edge.grpc.convert import answer_to_proto
from router.edge.rendering import answer_from_proto, cited_answer
from router.protocol import Passage
from router.protocol.style import AnswerStyle, Length
from router.runs.support import answer_sentences, is_supported
from router.search import Topology
from router.trace import Run, Trajectory
from router.trace.citation import Citation
from router.trace.redaction import redacted
from tests.router.deployment import STOP, Deployment, Kept, block, report
from tests.router.edge.pages.shown import read, shown
from tests.router.edge.pages.world import browsing
from tests.router.edge.test_openai_server import events
from tests.router.edge.test_openai_server import served as served_over_http
from tests.router.edge.wire import whole_server
from tests.router.retriever import FixedRetriever
from tests.router.store.stored import run
from tests.scripted_model import ScriptedModel

HEAT = "Heat is a film by Michael Mann."
BORN = "Mann was born in Chicago in 1943."
QUESTION = "Who made Heat, and where was he born?"
PARAGRAPH = (
    "Heat is by Michael Mann. He was born in Chicago. Mann, who made Heat, was born in 1943! "
    "He died in Paris. The cause is not known."
)
MARKED = (
    "Heat is by Michael Mann. [1] He was born in Chicago. [2] Mann, who made Heat, was born in "
    "1943! [1][2] He died in Paris. [unsupported] The cause is not known."
)


def deployed(answer: str, passages: tuple[str, ...] = (HEAT, BORN)) -> Deployment:
    """A deployment whose executor cites each of the passages, and whose answer is scripted."""
    found = [Passage(f"p{number}", "", text) for number, text in enumerate(passages)]
    return Deployment(
        ScriptedModel([block(QUESTION), STOP]),
        ScriptedModel([f"<search>{QUESTION}</search>", report("yes", *passages)]),
        ScriptedModel([f"<answer>{answer}</answer>"]),
        FixedRetriever({QUESTION: found}),
    )


@asynccontextmanager
async def answering(
    answer: str, length: Length, *passages: str
) -> AsyncIterator[tuple[AsyncClient, AnswerResponse]]:
    """Open a client of a gateway, and its answer to `QUESTION`."""
    deployment = deployed(answer, passages or (HEAT, BORN))
    topology = Topology(deployment.search(require_evidence=False), deployment.roles())
    server = whole_server(deployment, Kept(), topologies={"factorized": topology})
    try:
        async with AsyncClient(f"127.0.0.1:{await server.start('127.0.0.1:0')}") as client:
            yield client, await client.ask(QUESTION, length=length, request_id="one")
    finally:
        await server.drain(0)


def read_sentences(answer: AnswerResponse) -> list[tuple[str, bool, list[int]]]:
    """Return text, support and citations of each sentence."""
    return [
        (answer.answer[at.start_char : at.end_char], at.supported, list(at.citation_indexes))
        for at in answer.sentences
    ]


async def test_each_sentence_of_a_paragraph_names_its_citations() -> None:
    """One sentence has two; one has a name that none has; one says that nothing is known. A stored
    run has the same sentences.
    """
    async with answering(PARAGRAPH, "paragraph") as (client, answer):
        repeated = await client.ask(QUESTION, length="paragraph", request_id="one")
    assert [at.quote for at in answer.citations] == [HEAT, BORN]
    assert read_sentences(answer) == [
        ("Heat is by Michael Mann.", True, [0]),
        ("He was born in Chicago.", True, [1]),
        ("Mann, who made Heat, was born in 1943!", True, [0, 1]),
        ("He died in Paris.", False, []),
        ("The cause is not known.", True, []),
    ]
    assert answer.unsupported
    assert repeated == answer


async def test_chinese_sentences_name_their_citations() -> None:
    film = "《卧虎藏龙》是李安执导的电影。"
    born = "李安1954年出生于台湾屏东县。"
    text = (
        "《卧虎藏龙》由李安执导。他出生于台湾屏东。李安执导了卧虎藏龙，生于1954年。他搬到了北京。"
    )
    async with answering(text, "paragraph", film, born) as (_, answer):
        assert read_sentences(answer) == [
            ("《卧虎藏龙》由李安执导。", True, [0]),
            ("他出生于台湾屏东。", True, [1]),
            ("李安执导了卧虎藏龙，生于1954年。", True, [0, 1]),
            ("他搬到了北京。", False, []),
        ]


@pytest.mark.parametrize(
    ("text", "indexes"), [("Michael Mann", [0]), ("Michael Mann. In 1943.", [0, 1]), ("Yes", [])]
)
async def test_an_answer_of_another_length_is_one_sentence(text: str, indexes: list[int]) -> None:
    """A verdict is supported by the evidence as a whole, and so by no citation alone."""
    async with answering(text, "short") as (_, answer):
        assert read_sentences(answer) == [(text, True, indexes)]


def test_a_long_paragraph_has_a_last_sentence_with_its_rest() -> None:
    """So neither the message nor the work grows without bound."""
    answer = " ".join(f"He was Mann, says film {number}." for number in range(5000))
    trajectory = Trajectory(answer, "answered", style=AnswerStyle(length="paragraph"))
    grounds = {
        Citation(f"p{number}", "", "", None, "Mann"): [f"Mann {number}"] for number in range(999)
    }
    sentences = answer_sentences(QUESTION, trajectory, grounds)
    assert len(sentences) == 100
    assert sentences[3].citation_indexes == (3,)
    assert answer[sentences[-1].start_char :].startswith("He was Mann, says film 99. He was")
    assert sentences[-1].end_char == len(answer)
    assert not sentences[-1].supported


def test_a_sentence_that_says_not_known_hides_no_other() -> None:
    """The names of the others are checked."""
    paragraph = AnswerStyle(length="paragraph")
    claimed = "He died in Paris. The cause is not known."
    assert not is_supported(QUESTION, Trajectory(claimed, "answered", style=paragraph))
    assert is_supported(QUESTION, Trajectory(claimed[18:], "answered", style=paragraph))


def paragraph_run() -> Run:
    """Return a stored run whose answer is a paragraph."""
    stored = run("run-1")
    assert isinstance(stored.result, Trajectory)
    result = Trajectory(
        "Heat is by Michael Mann. It was shot in Paris.",
        "answered",
        stored.result.executions,
        style=AnswerStyle(length="paragraph"),
        unsupported=True,
    )
    return run("run-1", result=result)


async def test_the_wire_keeps_what_is_rendered() -> None:
    """A run without its texts has no sentences."""
    stored = paragraph_run()
    rendered = await cited_answer(stored)
    read_back = answer_from_proto(await answer_to_proto(stored))
    assert read_back.sentences == rendered.sentences
    assert read_back.text == rendered.text
    hidden = await cited_answer(redacted(stored))
    assert hidden.sentences == ()


async def test_the_pages_mark_each_sentence() -> None:
    marked = "Heat is by Michael Mann. [1] It was shot in Paris. [unsupported]"
    async with shown(runs=[paragraph_run()]) as pages, browsing(pages) as session:
        assert marked in await read(session, "/runs/run-1")
        assert marked in await read(session, "/ask/run-1")


async def test_openai_s_api_marks_each_sentence() -> None:
    """An answer that was streamed has no marks, as it was sent before they were known; its last
    chunk has the sentences.
    """
    body = {"model": "rolegate", "messages": [{"role": "user", "content": QUESTION}]}
    gateway = deployed(PARAGRAPH).gateway(Kept(), style=AnswerStyle(length="paragraph"))
    async with (
        served_over_http(gateway) as session,
        session.post("/v1/chat/completions", json=body) as response,
    ):
        whole = await response.json()
    gateway = deployed(PARAGRAPH).gateway(Kept(), style=AnswerStyle(length="paragraph"))
    async with (
        served_over_http(gateway) as session,
        session.post("/v1/chat/completions", json=body | {"stream": True}) as response,
    ):
        chunks = (await events(response))[:-1]
    assert whole["choices"][0]["message"]["content"].startswith(f"{MARKED}\n\nUnsupported")
    streamed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert streamed.startswith(f"{PARAGRAPH}\n\nUnsupported")
    assert chunks[-1]["rolegate"]["sentences"] == whole["rolegate"]["sentences"]
    assert whole["rolegate"]["sentences"][0] == {
        "start_char": 0,
        "end_char": 24,
        "supported": True,
        "citation_indexes": [0],
    }
