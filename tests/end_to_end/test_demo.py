"""The whole demo with real engines, retrieval and gateway."""

import asyncio
import re
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import completion_service_pb2 as completion_pb
from rolegate.v1 import execution_service_pb2 as execution_pb
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1 import table_service_pb2 as table_pb
from rolegate.v1 import usage_pb2
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.execution_service_pb2_grpc import ExecutionServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from rolegate.v1.table_service_pb2_grpc import TableServiceStub

from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.questions import Examiner, MiniQuestion
from executor_sft.miniworld.wide import WideWorld
from executor_sft.miniworld.world import World
from router.protocol import exact_match
from tests.end_to_end.conftest import Demo

pytestmark = pytest.mark.asyncio(loop_scope="package")
DEMO_SEED = 7


def _questions(count: int, *, single_search: bool) -> list[MiniQuestion]:
    world = World(DEMO_SEED, "test")
    examiner = Examiner(world, Library(world))
    questions: list[MiniQuestion] = []
    while len(questions) < count:
        question = examiner.draw()
        if not (single_search and question.needs_second_search):
            questions.append(question)
    return questions


async def test_questions_of_an_unseen_world_are_answered(demo: Demo) -> None:
    """Most of 30 questions whose sub-queries need one search are answered exactly, with
    citations.
    """
    stub = AnswerServiceStub(demo.channel)
    questions = _questions(30, single_search=True)
    answers = await asyncio.gather(
        *(
            stub.Answer(answer_pb.AnswerRequest(question=question.text), timeout=120)
            for question in questions
        )
    )
    right = [
        exact_match(answer.answer, [question.answer])
        for answer, question in zip(answers, questions, strict=True)
    ]
    assert sum(right) >= 21
    cited = [
        point.citations
        for answer in answers
        for result in answer.results
        for point in result.evidence
    ]
    assert sum(map(bool, cited)) / len(cited) > 0.9


async def test_events_are_numbered_and_end_with_the_answer(demo: Demo) -> None:
    """A stream has rounds, sub-queries, searches, reports, answer and usage; `done` is the last
    event.
    """
    (question,) = _questions(1, single_search=True)
    request = answer_pb.StreamAnswerRequest(question=question.text)
    events = [
        event async for event in AnswerServiceStub(demo.channel).StreamAnswer(request, timeout=120)
    ]
    kinds = Counter(event.WhichOneof("event") for event in events)
    assert [event.event_number for event in events] == list(range(1, len(events) + 1))
    assert events[-1].WhichOneof("event") == "done"
    assert kinds["sub_query_dispatched"] == kinds["reported"] == len(events[-1].done.results)
    assert set(kinds) == {
        "run_started",
        *(
            "round_started",
            "sub_query_dispatched",
            "search_done",
            "reported",
            "answer_delta",
            "answer_written",
            "usage_counted",
            "done",
        ),
    }


async def test_a_table_is_filled(demo: Demo) -> None:
    """It is the README's table: every city of the country, with cells that a passage states."""
    wide = WideWorld.undisturbed(DEMO_SEED, "test")
    (task,) = (
        task
        for task in wide.tasks
        if task.question == "List the cities of Veshoux with country and year."
    )
    kinds = (table_pb.COLUMN_TYPE_TEXT, table_pb.COLUMN_TYPE_TEXT, table_pb.COLUMN_TYPE_INTEGER)
    columns = [
        table_pb.Column(name=name, type=kind, key=name == "city")
        for name, kind in zip(task.columns, kinds, strict=True)
    ]
    request = table_pb.FillTableRequest(question=task.question, columns=columns)
    table = (await TableServiceStub(demo.channel).FillTable(request, timeout=120)).table
    rows = {tuple(cell.value for cell in row.cells) for row in table.rows}
    gold = {
        (row.mention, *(wide.gold(row, relation) for relation in task.relations))
        for row in task.rows
    }
    assert len(rows & gold) >= len(gold) - 1
    assert len(rows - gold) <= 1
    assert any(cell.citations for row in table.rows for cell in row.cells)


async def test_questions_from_outside_its_world_are_refused(demo: Demo) -> None:
    """The error says how to configure real models, and nothing is spent."""
    request = answer_pb.AnswerRequest(question="Who directed the film Metropolis?")
    answer = await AnswerServiceStub(demo.channel).Answer(request, timeout=60)
    assert answer.outcome == answer_pb.ANSWER_OUTCOME_OUT_OF_SCOPE
    assert answer.answer.startswith("not in the demo world")
    assert "--config" in answer.answer
    assert not answer.usage


async def test_ledger_equals_the_engines_counters(demo: Demo) -> None:
    """The tokens that each engine counts equal the new rows of its roles exactly."""
    stub = AnswerServiceStub(demo.channel)
    questions = [
        answer_pb.AnswerRequest(question=question.text)
        for question in _questions(20, single_search=False)
    ]
    await stub.Answer(questions[0], timeout=60)
    first = await _rows(demo)
    before = {name: await _counted(url) for name, url in demo.engines.items()}
    await asyncio.gather(*(stub.Answer(question, timeout=120) for question in questions))
    booked = (await _rows(demo))[len(first) :]
    assert set(before) == {str(row["deployment"]) for row in booked}
    assert {row["outcome"] for row in booked} == {"completed"}
    for name, url in demo.engines.items():
        rows = [row for row in booked if row["deployment"] == name]
        after = await _counted(url)
        assert after - before[name] == Counter(
            prompt_tokens=sum(row["prompt_tokens"] for row in rows),
            generation_tokens=sum(row["completion_tokens"] for row in rows),
        )


async def test_a_single_sub_query_is_executed(demo: Demo) -> None:
    """The response has a report and its searches."""
    sub_query = _questions(1, single_search=True)[0].sub_queries[0]
    request = execution_pb.ExecuteRequest(sub_query=sub_query.text)
    response = await ExecutionServiceStub(demo.channel).Execute(request, timeout=60)
    assert list(response.result.search_queries) == [sub_query.text]
    assert response.result.evidence
    assert [usage.role for usage in response.usage] == [usage_pb2.ROLE_EXECUTION]


async def test_whole_and_streamed_completions_are_equal(demo: Demo) -> None:
    """Greedy output ends at the stop string in both."""
    prompt = Path(demo.config.roles.delegation.prompt).read_text("utf-8").strip()
    texts = {"system": prompt, "user": _questions(1, single_search=True)[0].text}
    messages = [completion_pb.ChatMessage(role=role, content=text) for role, text in texts.items()]
    role = usage_pb2.ROLE_DELEGATION
    stop = ["</search>"]
    call = completion_pb.CompleteRequest(role=role, messages=messages, stop=stop)
    streamed = completion_pb.StreamCompleteRequest(role=role, messages=messages, stop=stop)
    stub = CompletionServiceStub(demo.channel)
    completion = await stub.Complete(call, timeout=60)
    pieces = [piece async for piece in stub.StreamComplete(streamed, timeout=60)]
    assert completion.text == "".join(piece.text for piece in pieces)
    assert completion.text.endswith("</search>") == (
        completion.finish_reason == "stop" and "<search>" in completion.text
    )
    assert len(pieces) > 2
    assert completion.usage.completion_tokens == pieces[-1].usage.completion_tokens > 0


async def test_a_cancelled_question_is_stored_and_its_engine_goes_idle(demo: Demo) -> None:
    """A client that disconnects cancels the model calls; the run is stored as cancelled."""
    question = _questions(1, single_search=True)[0].text
    stub = AnswerServiceStub(demo.channel)
    call = stub.StreamAnswer(answer_pb.StreamAnswerRequest(question=question), timeout=60)
    await call.read()
    call.cancel()
    await stub.Answer(answer_pb.AnswerRequest(question=question), timeout=60)
    await _followed(demo)
    with sqlite3.connect(demo.database) as database:
        statuses = Counter(status for (status,) in database.execute("SELECT status FROM runs"))
    assert statuses["cancelled"] == 1
    for url in demo.engines.values():
        await _idle(url)


async def test_an_oversized_question_is_refused(demo: Demo) -> None:
    """The error has the limit, and nothing is spent."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await AnswerServiceStub(demo.channel).Answer(
            answer_pb.AnswerRequest(question="who " * 2000), timeout=60
        )
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "at most 4000" in (caught.value.details() or "")


async def _followed(demo: Demo) -> None:
    """Wait until the database has all acknowledged runs."""
    await RunServiceStub(demo.channel).ListRuns(run_pb.ListRunsRequest(page_size=1), timeout=30)


async def _rows(demo: Demo) -> list[dict[str, Any]]:
    """Return the rows of the ledger in the order of their storage."""
    await _followed(demo)
    with sqlite3.connect(demo.database) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute("SELECT * FROM calls ORDER BY rowid")]


async def _idle(base_url: str) -> None:
    """Wait until the engine reports no work, which is shortly after its answer."""
    async with asyncio.timeout(30):
        while await _metrics(base_url, "num_requests_running"):
            pass


async def _counted(base_url: str) -> Counter[str]:
    """Return the engine's tokens since its start, once all are counted."""
    await _idle(base_url)
    names = ("prompt_tokens", "generation_tokens")
    return Counter({name: int(await _metrics(base_url, f"{name}_total")) for name in names})


async def _metrics(base_url: str, name: str) -> float:
    """Return the sum of one of the engine's Prometheus metrics."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{base_url.removesuffix('/v1')}/metrics") as response,
    ):
        text = await response.text()
    values = re.findall(rf"^vllm:{name}{{.*}} (\S+)$", text, re.MULTILINE)
    assert values, f"the engine has no metric {name}"
    return sum(map(float, values))
