"""Outages are reported by their cause, for every kind of request, over real channels."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from hypothesis import given
from hypothesis import strategies as st
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import evidence_pb2
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub

from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from router.errors import (
    MalformedOutput,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.models import Prompt
from router.models.connection_pool import ConnectionPool
from router.models.openai_client import OpenAIHTTP
from router.protocol import Passage
from router.runs import RequestOptions
from router.trace import Trajectory
from router.trace.values import NOT_FOUND
from tests import openai_server
from tests.openai_behaviours import replies
from tests.openai_server import MODEL, Behaviour, fails, says
from tests.router.accounts import open_access
from tests.router.deployment import STOP, Deployment, Kept, block, finds, report
from tests.router.edge.wire import info_of, served
from tests.router.retriever import FixedRetriever
from tests.scripted_model import Answer, ScriptedModel

if TYPE_CHECKING:
    from rolegate.v1.answer_service_pb2_grpc import AnswerServiceAsyncStub

QUESTION = "Was the director of Heat born before 1950?"
SUB_QUERY = "Who directed Heat?"
ASKED = pb.AnswerRequest(question=QUESTION, request_id="once")
STREAMED = pb.StreamAnswerRequest(question=QUESTION)
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


def stub_of(channel: grpc.aio.Channel) -> "AnswerServiceAsyncStub":
    return AnswerServiceStub(channel)


def delegates(prompt: Prompt) -> str:
    """Ask one sub-query in one round, any number of times."""
    return block(SUB_QUERY) if len(prompt.messages) == 2 else STOP


def retry_s(error: grpc.aio.AioRpcError) -> float | None:
    """Return the retry delay of a status, in seconds."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type] # has what it reads of a call
    delay = error_details_pb2.RetryInfo()
    assert status is not None
    return next(
        (delay.retry_delay.seconds for detail in status.details if detail.Unpack(delay)), None
    )


@asynccontextmanager
async def executors_at(
    behaviour: Behaviour,
) -> AsyncIterator[tuple[Deployment, openai_server.OpenAIServer]]:
    """Open a deployment whose executor is at a real endpoint."""
    async with openai_server.serving() as endpoint, ConnectionPool() as pool:
        endpoint.plays(behaviour)
        yield (
            Deployment(ScriptedModel(delegates), OpenAIHTTP(pool, endpoint.base_url, MODEL)),
            endpoint,
        )


@pytest.mark.parametrize(
    ("behaviour", "code", "reason"),
    [
        (fails(401, "Incorrect API key"), PRECONDITION, "UPSTREAM_REFUSED"),
        (fails(429, "Too many requests"), UNAVAILABLE, "UPSTREAM_UNAVAILABLE"),
        (fails(500, "CUDA error"), UNAVAILABLE, "UPSTREAM_UNAVAILABLE"),
        (replies(b"<html>Welcome</html>", "text/html"), UNAVAILABLE, "UPSTREAM_PROTOCOL_ERROR"),
        (says("hello"), PRECONDITION, "MALFORMED_OUTPUT"),
        (says(""), PRECONDITION, "MALFORMED_OUTPUT"),
    ],
    ids=["401", "429", "500", "garbage", "chatty", "silent"],
)
async def test_a_failing_executor_fails_the_run(
    behaviour: Behaviour, code: grpc.StatusCode, reason: str
) -> None:
    """The error names the role, with a retry delay if that may help. The run is stored as
    failed, with its trace and calls, and a repeated request starts again.
    """
    store = Kept()
    async with (
        executors_at(behaviour) as (deployment, endpoint),
        served(deployment.gateway(store)) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub_of(channel).Answer(ASKED)
        endpoint.plays(
            says(f"<search>{SUB_QUERY}</search>"), says(report("Michael Mann", "He directed it."))
        )
        response = await stub_of(channel).Answer(ASKED)
    error = caught.value
    assert (error.code(), info_of(error).reason, info_of(error).metadata["role"]) == (
        code,
        reason,
        "execution",
    )
    assert retry_s(error) == (5 if code is UNAVAILABLE else None)
    assert response.outcome == pb.ANSWER_OUTCOME_ANSWERED
    failed, finished = store.runs
    assert (failed.status, finished.status, response.run_id) == ("failed", "finished", finished.id)
    assert isinstance(failed.result, Trajectory)
    assert (failed.result.answer, len(failed.result.executions)) == ("", 1)
    assert "execution" in [call.role for call in failed.calls]


@pytest.mark.parametrize("output", ['<call tool="search">{}</call>', "<search>Who?</search>", ""])
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answerer_that_writes_no_answer_fails_the_run(output: str, streamed: bool) -> None:
    """Its search or call is not shown as an answer."""
    deployment = Deployment(answerer=ScriptedModel([output] * 2))
    async with served(deployment.gateway()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            if streamed:
                async for response in stub_of(channel).StreamAnswer(STREAMED):
                    assert not response.HasField("answer_delta")
            else:
                await stub_of(channel).Answer(ASKED)
    assert info_of(caught.value).reason == "MALFORMED_OUTPUT"
    assert info_of(caught.value).metadata["role"] == "answer"


class Down(FixedRetriever):
    """A retriever that fails while it has a failure."""

    failure: UpstreamError | None = UpstreamUnavailable(
        "connection refused", endpoint="10.0.0.7:50052"
    )

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        if self.failure:
            raise self.failure
        return await super().search(queries, top_k)


async def test_a_failing_retriever_is_named_and_asked_again() -> None:
    store = Kept()
    retriever = Down({})
    deployment = Deployment(ScriptedModel(delegates), retriever=retriever)
    async with served(deployment.gateway(store)) as channel:
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"retrieval at 10\.0\.0\.7:50052: connection refused"
        ) as caught:
            await stub_of(channel).Answer(ASKED)
        retriever.failure = None
        response = await stub_of(channel).Answer(ASKED)
    assert (caught.value.code(), info_of(caught.value).reason) == (
        UNAVAILABLE,
        "UPSTREAM_UNAVAILABLE",
    )
    assert retry_s(caught.value) == 5
    assert (response.answer, [run.status for run in store.runs]) == (
        "Michael Mann",
        ["failed", "finished"],
    )


DOWN = UpstreamUnavailable("down", endpoint="e")


def partly(fate: Answer, answer: str = "Michael Mann") -> Deployment:
    """Return a deployment in which the second of two sub-queries gets `fate` from its model."""
    executor = ScriptedModel(
        lambda prompt: fate if prompt.messages[1].content == "b?" else finds(prompt)
    )
    delegator = ScriptedModel([block("a?", "b?"), STOP])
    return Deployment(delegator, executor, ScriptedModel([f"<answer>{answer}</answer>"]))


@pytest.mark.parametrize("fate", [DOWN, "hello"])
async def test_an_answer_names_the_sub_queries_that_failed(fate: Answer) -> None:
    """They stand in the results, and below the answer in the text for people."""
    server = HTTPServer(openai_app(partly(fate).gateway(), open_access()), 0.0)
    async with aiohttp.ClientSession(
        f"http://{await server.start('127.0.0.1:0', 'http')}"
    ) as session:
        body = {"model": "rolegate", "messages": [{"role": "user", "content": QUESTION}]}
        reply = await (await session.post("/v1/chat/completions", json=body)).json()
    await server.drain()
    async with served(partly(fate).gateway()) as channel:
        response = await stub_of(channel).Answer(ASKED)
    failed = "no_report" if fate == "hello" else "model_failed"
    assert reply["choices"][0]["message"]["content"].splitlines()[::2] == [
        "Michael Mann",
        "Unsupported: the retrieved passages do not contain all of this answer; check it.",
        f"Could not look up: “b?” ({failed.replace('_', ' ')}).",
    ]
    assert [result["outcome"] for result in reply["rolegate"]["results"]] == ["reported", failed]
    assert reply["rolegate"]["answer"] == response.answer == "Michael Mann"
    outcomes = [evidence_pb2.ExecutionOutcome.Name(result.outcome) for result in response.results]
    assert outcomes == ["EXECUTION_OUTCOME_REPORTED", f"EXECUTION_OUTCOME_{failed.upper()}"]


async def test_an_outage_is_never_reported_as_not_found() -> None:
    """An answerer may say "not found" only if every sub-query was looked up; malformed reports
    count as looked up.
    """
    async with served(partly(DOWN, "not found").gateway()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub_of(channel).Answer(ASKED)
    assert (caught.value.code(), info_of(caught.value).metadata["role"]) == (
        UNAVAILABLE,
        "execution",
    )
    async with served(partly("hello", "not found").gateway()) as channel:
        assert (await stub_of(channel).Answer(ASKED)).outcome == pb.ANSWER_OUTCOME_NOT_FOUND


FATES: dict[str, Answer] = {
    "reported": "",
    "refused": UpstreamRefused("wrong key", endpoint="e"),
    "unavailable": DOWN,
    "protocol_error": UpstreamProtocolError("not JSON", endpoint="e"),
    "malformed": "hello",
    "absent": "<answer>not found</answer><evidence></evidence>",
}
KINDS = {
    UpstreamRefused: "refused",
    UpstreamUnavailable: "unavailable",
    UpstreamProtocolError: "protocol_error",
    MalformedOutput: "malformed",
}


@given(st.lists(st.sampled_from(sorted(FATES)), min_size=1, max_size=4))
def test_a_failure_is_never_an_empty_answer(fates: list[str]) -> None:
    """There is an answer exactly if a sub-query has a report. Otherwise the run fails, with a
    refusal if there was one, and a repeated request starts again. "Not found" needs an executor
    that searched and found nothing, and no outage.
    """

    def executes(prompt: Prompt) -> Answer:
        fate = fates[int(prompt.messages[1].content[-2])]
        works = fate == "reported" or (fate == "absent" and len(prompt.messages) == 2)
        return finds(prompt) if works else FATES[fate]

    sub_queries = block(*(f"What is number {number}?" for number in range(len(fates))))
    answerer = ScriptedModel(lambda _prompt: "<answer>yes</answer>")
    store = Kept()
    deployment = Deployment(
        ScriptedModel([sub_queries, STOP] * 2), ScriptedModel(executes), answerer
    )
    gateway = deployment.gateway(store)

    async def answered() -> str:
        try:
            run = await gateway.answer(
                QUESTION, RequestOptions(request_id="once"), lambda _event: None
            )
        except UpstreamError as error:
            return KINDS[type(error)]
        assert isinstance(run.result, Trajectory)
        return {"yes": "reported", NOT_FOUND: "absent"}[run.result.answer]

    async def main() -> None:
        outcomes = {await answered(), await answered()}
        decisive_fate = next((fate for fate in ("reported", "refused") if fate in fates), None)
        temporary = {"unavailable", "protocol_error"} & set(fates)
        possible_outcomes = temporary or ({"absent"} if "absent" in fates else {"malformed"})
        assert outcomes == {decisive_fate} if decisive_fate else outcomes <= possible_outcomes
        finished = outcomes <= {"reported", "absent"}
        assert [run.status for run in store.runs] == (["finished"] if finished else ["failed"] * 2)

    asyncio.run(main())
