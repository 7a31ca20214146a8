"""Whether the evidence of a run supports its answer, in RPCs, over HTTP and in lists."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from rolegate.client import AsyncClient
from rolegate.v1.answer_service_pb2 import AnswerResponse

from router.protocol import Passage
from router.search import Topology
from tests.router.deployment import STOP, Deployment, Kept, block, report
from tests.router.edge.wire import whole_server
from tests.router.retriever import FixedRetriever
from tests.scripted_model import ScriptedModel

CITIES = "City | Country | Founded\n\nKrurou | Veshoux | 1871\n\nTrongour | Veshoux | 1900"
TURNED = "City | Country | Founded\n\nTrongour | Veshoux | 1900\n\nKrurou | Veshoux | 1871"
PROSE = "Krurou was founded in 1871. Trongour was founded in 1900. It burnt down on 12 May 1911."
MANN = (
    "Michael Mann is an American director. He directed Heat in 1995. He was born on February "
    "5, 1943."
)
TOWER = "巴黎是法国的首都。埃菲尔铁塔建于1889年，由居斯塔夫·埃菲尔设计。"
LYON = "The city of Lyon has 1,200,000 inhabitants and an area of 47.87 km2."
TITLES = {MANN: "Michael Mann", TOWER: "巴黎", LYON: "Lyon"}
WHEN = "When was Krurou founded?"
WHO = "Who directed Heat?"


@asynccontextmanager
async def answering(
    question: str, answer: str, text: str, reported: str, evidence: Sequence[str]
) -> AsyncIterator[tuple[AsyncClient, AnswerResponse]]:
    """Open a client of a gateway, and its answer to `question` from one report."""
    passage = Passage("p1", TITLES.get(text, "History"), text)
    deployment = Deployment(
        ScriptedModel([block(question), STOP]),
        ScriptedModel([f"<search>{question}</search>", *[report(reported, *evidence)] * 3]),
        ScriptedModel([f"<answer>{answer}</answer>"]),
        FixedRetriever({question: [passage]}),
    )
    topology = Topology(deployment.search(require_evidence=False), deployment.roles())
    server = whole_server(deployment, Kept(), topologies={"factorized": topology})
    try:
        async with AsyncClient(f"127.0.0.1:{await server.start('127.0.0.1:0')}") as client:
            yield client, await client.ask(question)
    finally:
        await server.drain(0)


@pytest.mark.parametrize("text", [CITIES, TURNED, PROSE])
@pytest.mark.parametrize(
    "point",
    [
        "Krurou | Veshoux | 1900",
        "Krurou was founded in 1900.",
        "The city of Krurou was founded in 1900.",
        "Krurou is in Veshoux. It was founded in 1900.",
    ],
)
async def test_evidence_that_mixes_two_rows_supports_nothing(text: str, point: str) -> None:
    """It is cited to neither row, in any order. The same holds for two sentences."""
    async with answering(WHEN, "1900", text, "1900", [point]) as (_, answer):
        assert (answer.unsupported, len(answer.citations)) == (True, 0)


@pytest.mark.parametrize("text", [CITIES, TURNED])
@pytest.mark.parametrize(
    "point",
    [
        "Krurou | Veshoux | 1871",
        "Krurou was founded in 1871.",
        "Krurou in Veshoux was founded in 1871",
        "Krurou is a City of the Country Veshoux; Founded: 1871",
    ],
)
async def test_evidence_of_one_row_is_cited_to_it(text: str, point: str) -> None:
    """Holds for other wordings too."""
    async with answering(WHEN, "1871", text, "1871", [point]) as (_, answer):
        assert not answer.unsupported
        assert [at.quote for at in answer.citations] == ["Krurou | Veshoux | 1871"]


@pytest.mark.parametrize(
    ("question", "answer", "text", "reported", "evidence"),
    [
        (WHEN, "1900", PROSE, "1871", ["Krurou was founded in 1871."]),
        (WHEN, "1900", PROSE, "1900", ["Krurou was founded in 1871."]),
        (WHEN, "18711", PROSE, "1871", ["Krurou was founded in 1871."]),
        (WHEN, "Yes, in 1850", PROSE, "1871", ["Krurou was founded in 1871."]),
        (WHO, "Tony Scott", MANN, "Michael Mann", ["He directed Heat in 1995."]),
        (
            WHO,
            "As the reports say, it was directed by Tony Scott.",
            MANN,
            "Mann",
            ["He directed Heat in 1995."],
        ),
        (
            "When was Mann born?",
            "6 February 1943",
            MANN,
            "February 5, 1943",
            ["He was born on February 5, 1943."],
        ),
        ("What is Mann?", "a painter", MANN, "director", ["Michael Mann is an American director."]),
        (
            "How many live there?",
            "12 million",
            LYON,
            "1,200,000",
            ["The city of Lyon has 1,200,000 inhabitants"],
        ),
        ("法国的首都是哪里？", "伦敦", TOWER, "巴黎", ["巴黎是法国的首都。"]),
        ("埃菲尔铁塔建于哪一年？", "1890年", TOWER, "1889年", ["埃菲尔铁塔建于1889年"]),
        ("Was Krurou founded first?", "Yes", PROSE, "yes", []),
        (WHEN, "-1871", PROSE, "1871", ["Krurou was founded in 1871."]),
        (WHEN, "1871%", PROSE, "1871", ["Krurou was founded in 1871."]),
        (WHEN, "$1871", PROSE, "1871", ["Krurou was founded in 1871."]),
        (WHEN, "1/1871", PROSE, "1871", ["Krurou was founded in 1871."]),
    ],
)
async def test_an_answer_without_evidence_is_unsupported(
    question: str, answer: str, text: str, reported: str, evidence: list[str]
) -> None:
    """The answer, its run and the list of such runs say so."""
    async with answering(question, answer, text, reported, evidence) as (client, response):
        assert response.unsupported
        assert (await client.run(response.run_id)).run.unsupported
        assert [run.run_id async for run in client.runs(unsupported=True)] == [response.run_id]


@pytest.mark.parametrize(
    ("question", "answer", "text", "reported", "evidence"),
    [
        (WHEN, "1871", PROSE, "1871", ["Krurou was founded in 1871."]),
        (WHO, "Michael Mann", MANN, "Michael Mann", ["He directed Heat in 1995."]),
        (
            WHO,
            "Michael Mann",
            MANN,
            "Mann",
            ["Michael Mann is an American director. He directed Heat in 1995."],
        ),
        (
            WHO,
            "According to the report, Heat was directed by Michael Mann.",
            MANN,
            "Mann",
            ["He directed Heat in 1995."],
        ),
        (
            "When was Mann born?",
            "5 February 1943",
            MANN,
            "1943",
            ["He was born on February 5, 1943."],
        ),
        ("When was Mann born?", "1943-02-05", MANN, "1943", ["He was born on February 5, 1943."]),
        ("When was Mann born?", "1943", MANN, "1943", ["He was born on February 5, 1943."]),
        (
            "How many live there?",
            "1.2 million",
            LYON,
            "1,200,000",
            ["The city of Lyon has 1,200,000 inhabitants"],
        ),
        (
            "How many live there?",
            "1200000",
            LYON,
            "1,200,000",
            ["The city of Lyon has 1,200,000 inhabitants"],
        ),
        (
            "Was Krurou founded before Trongour?",
            "Yes.",
            PROSE,
            "1871",
            ["Krurou was founded in 1871."],
        ),
        (
            "Which is older, Krurou or Trongour?",
            "Krurou",
            PROSE,
            "1871",
            ["Krurou was founded in 1871."],
        ),
        ("Who and when?", "Michael Mann, 1995", MANN, "Mann", ["He directed Heat in 1995."]),
        (
            "埃菲尔铁塔建于哪一年？",
            "1889年",
            TOWER,
            "1889年",
            ["埃菲尔铁塔建于1889年，由居斯塔夫·埃菲尔设计。"],
        ),
        (
            "谁设计了埃菲尔铁塔？",
            "埃菲尔铁塔是由居斯塔夫·埃菲尔设计的。",
            TOWER,
            "埃菲尔",
            ["由居斯塔夫·埃菲尔设计"],
        ),
        ("How cold is it?", "−5 °C", "It has -5 °C.", "-5", ["It has -5 °C."]),
        ("How much is it?", "5%", "It is 5 percent.", "5", ["It is 5 percent."]),
        ("How much is it?", "$5", "It costs 5 dollars.", "5", ["It costs 5 dollars."]),
        ("When is it?", "24/7 and 1995-1999", "24/7, 1995-1999.", "?", ["24/7, 1995-1999."]),
        (WHO, "The evidence is insufficient.", MANN, "no", []),
        (WHO, "Not found", MANN, "no", []),
        (WHO, "文档中没有提到。", MANN, "no", []),
    ],
)
async def test_an_answer_with_evidence_is_supported(
    question: str, answer: str, text: str, reported: str, evidence: list[str]
) -> None:
    """Holds for parts of several sentences, other forms of numbers and dates, comparisons, and
    refusals.
    """
    async with answering(question, answer, text, reported, evidence) as (client, response):
        assert not response.unsupported
        assert [run async for run in client.runs(unsupported=True)] == []
