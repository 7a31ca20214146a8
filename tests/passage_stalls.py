"""The most expensive passages for a gateway:

`python tests/stall.py tests.passage_stalls.py`. A table of 40 rows and 5 columns is filled, and a
question answered; every search finds the same three passages, or three unknown ones.
"""

import asyncio
import itertools
import re
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1 import table_service_pb2 as pb
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from rolegate.v1.table_service_pb2_grpc import TableServiceStub

from router.edge.grpc.server import Server
from router.edge.grpc.services import RunServicer
from router.edge.grpc.table_service import TableServicer
from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from router.models import Prompt
from router.protocol import Passage
from router.runs import Runs
from router.runs.live import LiveRuns
from tests.router.accounts import open_access
from tests.router.table.small_world import ENOUGH, gateway, written
from tests.scripted_model import ScriptedModel
from tests.stall import Input, Served

SCENE = "tests.passage_stalls:scene"
MOST = 8000
"""Characters of a passage that are shown."""
TEXTS = {
    "plain": "City 1 is a city.",
    "ligatures": "\ufdfa" * MOST,
    "squared words": "\u3316" * MOST,
    "sorted marks": "a" + "\u0301\u0316" * MOST,
    "marks between joiners": "a" + "\u0301\u034f\u0316\u034f" * MOST,
    "decomposed jamo": "\u1112\u1161\u11ab" * MOST,
    "one long word": "a" * MOST,
    "sentences of a letter": "A. b? C! " * MOST,
    "one sentence": "City 1 is c1 v1. " * MOST,
    "ties": "City 1 formerly City 2 formerly " * MOST,
    "numbers": "1,234.5 " * MOST,
    "Chinese": "東京是日本的首都，人口1871萬。" * MOST,
    "Thai": "กรุงเทพมหานครเป็นเมืองหลวง" * MOST,
    "apostrophes": "'s." * MOST,
}


class Poison:
    """A retriever of three passages, made of the text that a query names."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        await asyncio.sleep(0)
        return [[self._passage(query, number) for number in range(3)] for query in queries]

    def _passage(self, query: str, number: int) -> Passage:
        name = next((name for name in TEXTS if name in query), "Chinese")
        mark = f"{next(self._numbers)} " if "other" in query else f"{number} "
        return Passage(f"{name}{mark}", name, (mark + TEXTS[name])[:MOST], document=mark)


def _reads(prompt: Prompt) -> str:
    sub_query = prompt.messages[1].content
    if len(prompt.messages) == 2:
        return f"<search>{sub_query}</search>"
    names = re.findall(r"^- (c\d+)", sub_query, re.MULTILINE)
    return written("\n".join(f"{name}: v1" for name in names) or "v1")


def _leads(prompt: Prompt) -> str:
    if len(prompt.messages) > 2:
        return ENOUGH
    question_text = re.sub(r"[^\w ]", "", prompt.messages[-1].content)[-200:]
    return (
        "<search>["
        + ", ".join(f'"What is {number} of {question_text}?"' for number in range(4))
        + "]</search>"
    )


@asynccontextmanager
async def scene() -> AsyncIterator[Served]:
    """A gateway over such passages."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        models = ScriptedModel(_reads, "small"), ScriptedModel(_leads, "backbone")
        answering = ScriptedModel(lambda _: "<answer>v1</answer>", "answerer")
        filling, archive = await stack.enter_async_context(
            gateway(folder, Poison(), *models, answering)
        )
        runs = Runs(archive, LiveRuns())
        server = Server(
            filling, None, RunServicer(runs), TableServicer(filling, runs, open_access())
        )
        port = await server.start("127.0.0.1:0")
        stack.push_async_callback(server.drain, 0)
        door = HTTPServer(openai_app(filling, open_access()), 0.0)
        address = await door.start("127.0.0.1:0", "http")
        stack.push_async_callback(door.drain)
        yield Served(f"127.0.0.1:{port}", address)


def filled(name: str) -> Input:
    """Fill a table."""
    columns = [pb.Column(name="city", key=True), *(pb.Column(name=f"c{at}") for at in range(1, 5))]
    given = [pb.GivenRow(values=[f"City {at} {name}", "", "", "", ""]) for at in range(40)]
    request = pb.FillTableRequest(question=name, columns=columns, rows=given, closed=True)

    async def send(served: Served) -> str:
        async with grpc.aio.insecure_channel(
            served.grpc, [("grpc.max_receive_message_length", 1 << 30)]
        ) as channel:
            response = await TableServiceStub(channel).FillTable(request, timeout=110)
            run = await RunServiceStub(channel).GetRun(run_pb.GetRunRequest(run_id=response.run_id))
        return f"{len(response.table.rows)} rows, {len(run.calls)} calls"

    return send


def answered(name: str) -> Input:
    """Answer a question."""

    async def send(served: Served) -> str:
        async with grpc.aio.insecure_channel(
            served.grpc, [("grpc.max_receive_message_length", 1 << 30)]
        ) as channel:
            response = await AnswerServiceStub(channel).Answer(
                answer_pb.AnswerRequest(question=f"{name} thing")
            )
        return f"{response.answer}, {len(response.results)} results"

    return send


INPUTS: dict[str, Input] = {
    **{f"table, {name}": filled(name) for name in TEXTS},
    **{f"table, other {name}": filled(f"other {name}") for name in TEXTS},
    **{f"answer, {name}": answered(f"other {name}") for name in TEXTS},
}
