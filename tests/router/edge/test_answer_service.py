"""The answer service over a real channel."""

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import msgspec
import pytest
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import budget_pb2, evidence_pb2, usage_pb2
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub

from router.edge.grpc.convert import answer_to_proto
from router.errors import UpstreamRefused
from router.protocol import Passage, Report, Vocabulary
from router.trace import Conversation, Execution, Trajectory
from router.trace.values import SearchRecord
from tests.router.clock import ended
from tests.router.deployment import STOP, Deployment, HeldModel, Kept, block
from tests.router.edge.wire import info_of, next_of, refusal, served
from tests.router.store.stored import run
from tests.scripted_model import Answer, ScriptedModel

if TYPE_CHECKING:
    from rolegate.v1.answer_service_pb2_grpc import AnswerServiceAsyncStub

QUESTION = "Who directed Heat?"
DELEGATION = budget_pb2.RoleBudget(role=usage_pb2.ROLE_DELEGATION, max_total_tokens=5)


def stub_of(channel: grpc.aio.Channel) -> "AnswerServiceAsyncStub":
    return AnswerServiceStub(channel)


async def test_an_answer_has_its_outcome_results_usage_and_run_id() -> None:
    store = Kept()
    async with served(Deployment().gateway(store)) as channel:
        response = await stub_of(channel).Answer(pb.AnswerRequest(question=QUESTION))
    assert (response.answer, response.outcome) == ("Michael Mann", pb.ANSWER_OUTCOME_ANSWERED)
    (result,) = response.results
    assert (result.sub_query, list(result.search_queries)) == (QUESTION, [QUESTION])
    assert result.outcome == evidence_pb2.EXECUTION_OUTCOME_REPORTED
    assert result.answer == f"the answer to {QUESTION}"
    assert [(usage.role, usage.model, usage.attempts) for usage in response.usage] == [
        (usage_pb2.ROLE_DELEGATION, "backbone", 2),
        (usage_pb2.ROLE_EXECUTION, "small", 2),
        (usage_pb2.ROLE_ANSWER, "fixed", 1),
    ]
    assert not response.usage[0].HasField("cached_tokens")
    assert response.run_id == store.runs[0].id
    assert response.duration.ToTimedelta().total_seconds() == pytest.approx(
        store.runs[0].duration_s, abs=1e-6
    )


async def test_a_stream_ends_with_the_response_of_answer() -> None:
    """Events are numbered from 1 without gaps."""
    store = Kept()
    deployment = Deployment(ScriptedModel([block("a?", "b?"), STOP]))
    async with served(deployment.gateway(store)) as channel:
        call = stub_of(channel).StreamAnswer(pb.StreamAnswerRequest(question=QUESTION))
        events = [event async for event in call]
    assert [event.event_number for event in events] == list(range(1, len(events) + 1))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[:2] == ["run_started", "round_started"]
    assert kinds[-3:] == ["answer_written", "usage_counted", "done"]
    shown = [kind for kind in kinds[2:-3] if kind != "answer_delta"]
    assert sorted(shown[:-1]) == [
        *["reported"] * 2,
        *["search_done"] * 2,
        *["sub_query_dispatched"] * 2,
    ]
    assert events[-1].done.run_id == events[0].run_started.run_id == store.runs[0].id
    assert events[-1].done.answer == events[-3].answer_written.answer == "Michael Mann"
    assert list(events[-1].done.usage) == list(events[-2].usage_counted.usage)
    assert [result.sub_query for result in events[-1].done.results] == ["a?", "b?"]


async def test_a_large_answer_fits_into_a_message_of_the_default_size() -> None:
    """Results beyond the limit come without evidence and are marked as cut."""
    text = "界" * 1900
    searches = tuple(
        SearchRecord(f"{text}?", (Passage(f"{at}", text, f"Fact {at} is {text}.", document=text),))
        for at in range(2)
    )
    points = tuple(f"Fact {at} is {text}." for at in range(3))
    worker = Execution(text, Report(text, points), "reported", searches, Conversation(()))
    work = Trajectory("", "answered", (worker,) * 4)
    executions = tuple(
        msgspec.structs.replace(worker, sub_query=f"{number}?", work=work, manager="pages")
        for number in range(60)
    )
    stored_run = msgspec.structs.replace(
        run("run-1"), result=Trajectory("Ana", "answered", executions)
    )
    answer = await answer_to_proto(stored_run)
    assert answer.ByteSize() < 4 << 20
    assert [result.sub_query for result in answer.results] == [f"{number}?" for number in range(60)]
    cut = [result.cut for result in answer.results]
    assert cut == sorted(cut)
    assert {*cut} == {False, True}
    assert all(result.cut != bool(result.evidence) and result.answer for result in answer.results)


async def test_a_question_out_of_scope_has_no_usage() -> None:
    """Its outcome says so."""
    async with served(Deployment().gateway(vocabulary=Vocabulary(["who"], ["Ilse"]))) as channel:
        response = await stub_of(channel).Answer(pb.AnswerRequest(question=QUESTION))
        stream = stub_of(channel).StreamAnswer(pb.StreamAnswerRequest(question=QUESTION))
        events = [event async for event in stream]
    assert (response.outcome, list(response.usage)) == (pb.ANSWER_OUTCOME_OUT_OF_SCOPE, [])
    assert [event.WhichOneof("event") for event in events] == [
        "run_started",
        "answer_written",
        "usage_counted",
        "done",
    ]


@pytest.mark.parametrize("question", ["", "  ", "x" * 4001])
async def test_an_invalid_question_is_refused(question: str) -> None:
    """Holds for both methods."""
    async with served(Deployment().gateway()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as answer_error:
            await stub_of(channel).Answer(pb.AnswerRequest(question=question))
        with pytest.raises(grpc.aio.AioRpcError) as stream_error:
            await stub_of(channel).StreamAnswer(pb.StreamAnswerRequest(question=question)).read()
    for caught in (answer_error.value, stream_error.value):
        assert caught.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert (info_of(caught).reason, (caught.details() or "").split()[0]) == (
            "BAD_REQUEST",
            "question",
        )


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_cancels_stops_its_run(streamed: bool) -> None:
    """The work upstream stops, and the run is stored as cancelled with its calls."""
    store = Kept()
    model = HeldModel(ScriptedModel([]))
    async with served(Deployment(model).gateway(store)) as channel:
        stub = stub_of(channel)
        if streamed:
            call: Any = stub.StreamAnswer(pb.StreamAnswerRequest(question=QUESTION))
        else:
            call = stub.Answer(pb.AnswerRequest(question=QUESTION))

        reading = asyncio.gather(*([next_of(call)] if streamed else []))
        await ended(model.called.wait())
        await reading
        call.cancel()
        await ended(model.cancelled.wait())
        run = await store.next()
    assert run.status == "cancelled"
    assert [call.outcome for call in run.calls] == ["cancelled"]


async def test_a_client_s_deadline_ends_its_run() -> None:
    """The client gets DEADLINE_EXCEEDED, and the run is on the books."""
    store = Kept()
    model = HeldModel(ScriptedModel([]))
    async with served(Deployment(model).gateway(store)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub_of(channel).Answer(pb.AnswerRequest(question=QUESTION), timeout=0.3)
        run = await store.next()
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert run.status in ("failed", "cancelled")
    assert [call.outcome for call in run.calls] == ["cancelled"]


async def test_the_gateway_s_limit_ends_a_run_without_a_deadline() -> None:
    deployment = Deployment(HeldModel(ScriptedModel([])))
    async with served(deployment.gateway(timeout_s=0.1)) as channel:
        assert await refusal(stub_of(channel).Answer(pb.AnswerRequest(question=QUESTION))) == (
            "DEADLINE_EXCEEDED",
            "OUT_OF_TIME",
        )


async def test_a_failure_comes_after_the_events_before_it() -> None:
    """The error is typed. No event is lost, however soon it follows."""
    refused = UpstreamRefused("wrong key", endpoint="e")
    scripts: list[list[Answer]] = [[refused], [block("a?"), refused]]
    for answers in scripts:
        async with served(Deployment(ScriptedModel(answers)).gateway()) as channel:
            call = stub_of(channel).StreamAnswer(pb.StreamAnswerRequest(question=QUESTION))
            rounds = 0
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for event in call:
                    rounds += event.HasField("round_started")
        assert rounds == len(answers)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


BUDGETS = [
    ({"max_total_tokens": 0}, r"budget\.max_total_tokens is 0"),
    ({"max_total_tokens": -1}, r"budget\.max_total_tokens is -1"),
    ({"max_cost_nano_usd": 0}, r"budget\.max_cost_nano_usd is 0"),
    (
        {"role_budgets": [DELEGATION, budget_pb2.RoleBudget(max_total_tokens=1)]},
        r"budget\.role_budgets\[1\]\.role must be",
    ),
    (
        {"role_budgets": [DELEGATION, DELEGATION]},
        r"budget\.role_budgets\[1\]\.role: another entry has a limit",
    ),
    (
        {"role_budgets": [budget_pb2.RoleBudget(role=usage_pb2.ROLE_ANSWER)]},
        r"budget\.role_budgets\[0\]\.max_total_tokens is 0",
    ),
]


@pytest.mark.parametrize(("limits", "why"), BUDGETS)
async def test_an_invalid_budget_is_refused_with_its_field(
    limits: dict[str, Any], why: str
) -> None:
    """Nothing is spent."""
    store = Kept()
    async with served(Deployment().gateway(store)) as channel:
        assert await refusal(
            stub_of(channel).Answer(
                pb.AnswerRequest(question=QUESTION, budget=budget_pb2.Budget(**limits))
            ),
            why,
        ) == ("INVALID_ARGUMENT", "BAD_REQUEST")
    assert not store.starts


@pytest.mark.parametrize("request_id", ["x" * 129, "a\0b", "two\nlines"])
async def test_an_invalid_request_id_is_refused(request_id: str) -> None:
    """It is too long or not printable."""
    async with served(Deployment().gateway()) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="request_id") as caught:
            await stub_of(channel).Answer(
                pb.AnswerRequest(question=QUESTION, request_id=request_id)
            )
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_repeated_request_gets_the_same_answer_and_events() -> None:
    """Another question may not use its id."""
    store = Kept()
    longest = "x" * 128
    async with served(Deployment().gateway(store)) as channel:
        first = await stub_of(channel).Answer(
            pb.AnswerRequest(question=QUESTION, request_id=longest)
        )
        repeated = await stub_of(channel).Answer(
            pb.AnswerRequest(question=QUESTION, request_id=longest)
        )
        stream = stub_of(channel).StreamAnswer(
            pb.StreamAnswerRequest(question=QUESTION, request_id=longest)
        )
        events = [event async for event in stream]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub_of(channel).Answer(pb.AnswerRequest(question="Why?", request_id=longest))
    assert first == repeated == events[-1].done
    assert [event.event_number for event in events] == list(range(1, len(events) + 1))
    assert events[0].run_started.run_id == first.run_id
    assert "reported" in [event.WhichOneof("event") for event in events]
    assert len(store.runs) == 1
    assert info_of(caught.value).reason == "REQUEST_ID_TAKEN"
