"""The executor as a tool, over a real channel."""

from typing import TYPE_CHECKING

import grpc
import pytest
from rolegate.v1 import evidence_pb2, usage_pb2
from rolegate.v1 import execution_service_pb2 as pb
from rolegate.v1.execution_service_pb2_grpc import ExecutionServiceStub

from router.errors import UpstreamRefused, UpstreamUnavailable
from router.trace import Execution
from tests.router.deployment import Deployment, Kept, finds, report
from tests.router.edge.wire import info_of, refusal, served
from tests.scripted_model import Answer, ScriptedModel

if TYPE_CHECKING:
    from rolegate.v1.execution_service_pb2_grpc import ExecutionServiceAsyncStub

SUB_QUERY = "Who directed Heat?"


def stub_of(channel: grpc.aio.Channel) -> "ExecutionServiceAsyncStub":
    return ExecutionServiceStub(channel)


async def test_a_report_has_its_evidence_citations_and_usage() -> None:
    store = Kept()
    executor = ScriptedModel(
        [
            f"<search>{SUB_QUERY}</search>",
            report("Michael Mann", "Heat is a film by Michael Mann.", "Penguins fly."),
        ],
        "small",
    )
    async with served(Deployment(executor=executor).gateway(store)) as channel:
        response = await stub_of(channel).Execute(pb.ExecuteRequest(sub_query=f" {SUB_QUERY} "))
    result = response.result
    assert (result.sub_query, result.answer) == (SUB_QUERY, "Michael Mann")
    assert result.outcome == evidence_pb2.EXECUTION_OUTCOME_REPORTED
    assert [point.text for point in result.evidence] == [
        "Heat is a film by Michael Mann.",
        "Penguins fly.",
    ]
    cited = [
        [(citation.passage_id, citation.title) for citation in point.citations]
        for point in result.evidence
    ]
    assert cited == [[("p1", "Heat")], []]
    assert [(usage.role, usage.attempts) for usage in response.usage] == [
        (usage_pb2.ROLE_EXECUTION, 2)
    ]
    assert response.run_id == store.runs[0].id
    assert store.runs[0].kind == "execute"


@pytest.mark.parametrize(
    ("failure", "code", "reason"),
    [
        (
            UpstreamUnavailable("down", endpoint="e"),
            grpc.StatusCode.UNAVAILABLE,
            "UPSTREAM_UNAVAILABLE",
        ),
        (
            UpstreamRefused("wrong key", endpoint="e"),
            grpc.StatusCode.FAILED_PRECONDITION,
            "UPSTREAM_REFUSED",
        ),
        ("hello", grpc.StatusCode.FAILED_PRECONDITION, "MALFORMED_OUTPUT"),
    ],
)
async def test_a_failing_model_is_an_error(
    failure: Answer, code: grpc.StatusCode, reason: str
) -> None:
    """It is no report without a result. A repeated request starts again."""
    store = Kept()
    is_down = True
    executor = ScriptedModel(lambda prompt: failure if is_down else finds(prompt))
    async with served(Deployment(executor=executor).gateway(store)) as channel:
        request = pb.ExecuteRequest(sub_query=SUB_QUERY, request_id="once")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub_of(channel).Execute(request)
        is_down = False
        response = await stub_of(channel).Execute(request)
    assert (caught.value.code(), info_of(caught.value).reason) == (code, reason)
    assert info_of(caught.value).metadata["role"] == "execution"
    assert response.result.outcome == evidence_pb2.EXECUTION_OUTCOME_REPORTED
    failed, run = store.runs
    assert (failed.status, run.status, run.id) == ("failed", "finished", response.run_id)
    assert isinstance(failed.result, Execution)
    assert failed.calls


@pytest.mark.parametrize("sub_query", ["", " ", "x" * 4001])
async def test_an_invalid_sub_query_is_refused(sub_query: str) -> None:
    async with served(Deployment().gateway()) as channel:
        assert await refusal(
            stub_of(channel).Execute(pb.ExecuteRequest(sub_query=sub_query)), "sub_query"
        ) == (
            "INVALID_ARGUMENT",
            "BAD_REQUEST",
        )
