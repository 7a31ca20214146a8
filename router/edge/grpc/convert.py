"""Answers, reports and events, from values to wire types."""

import asyncio
from typing import assert_never

import msgspec
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import evidence_pb2

from router.edge.grpc.convert_usage import duration_to_proto, usage_to_proto
from router.trace.citation import Citation, cite_answer
from router.trace.run import Run
from router.trace.values import (
    AnswerOutcome,
    AnswerWritten,
    Event,
    Execution,
    ExecutionOutcome,
    Reported,
    RoundStarted,
    RunStarted,
    SearchDone,
    SubQueryDispatched,
    Trajectory,
)

ANSWER_OUTCOMES: dict[AnswerOutcome, pb.AnswerOutcome] = {
    "answered": pb.ANSWER_OUTCOME_ANSWERED,
    "rounds_exhausted": pb.ANSWER_OUTCOME_ROUNDS_EXHAUSTED,
    "no_search": pb.ANSWER_OUTCOME_NO_SEARCH,
    "time_exhausted": pb.ANSWER_OUTCOME_TIME_EXHAUSTED,
    "out_of_scope": pb.ANSWER_OUTCOME_OUT_OF_SCOPE,
    "not_found": pb.ANSWER_OUTCOME_NOT_FOUND,
    "budget_exhausted": pb.ANSWER_OUTCOME_BUDGET_EXHAUSTED,
}
_EXECUTION_OUTCOMES: dict[ExecutionOutcome, evidence_pb2.ExecutionOutcome] = {
    "reported": evidence_pb2.EXECUTION_OUTCOME_REPORTED,
    "no_report": evidence_pb2.EXECUTION_OUTCOME_NO_REPORT,
    "timed_out": evidence_pb2.EXECUTION_OUTCOME_TIMED_OUT,
    "model_failed": evidence_pb2.EXECUTION_OUTCOME_MODEL_FAILED,
    "retrieval_failed": evidence_pb2.EXECUTION_OUTCOME_RETRIEVAL_FAILED,
    "budget_exhausted": evidence_pb2.EXECUTION_OUTCOME_BUDGET_EXHAUSTED,
}


def execution_to_proto(execution: Execution) -> evidence_pb2.SubQueryResult:
    """A sub-query with its report and where its evidence stands."""
    points = execution.report.evidence
    return evidence_pb2.SubQueryResult(
        sub_query=execution.sub_query,
        answer=execution.report.answer,
        evidence=[
            evidence_pb2.EvidencePoint(text=point, citations=map(_citation_to_proto, cited))
            for point, cited in zip(points, execution.citations(points), strict=True)
        ],
        outcome=_EXECUTION_OUTCOMES[execution.outcome],
        search_queries=[search.query for search in execution.searches],
        shared_from=execution.shared_from,
    )


async def answer_to_proto(run: Run) -> pb.AnswerResponse:
    """The answer to a question, which `run` is the finished run of. Others get their turns in between, as citing takes
    milliseconds for each execution where passages are long.
    """
    trajectory = run.result
    assert isinstance(trajectory, Trajectory)
    results = list[evidence_pb2.SubQueryResult]()
    for execution in trajectory.executions:
        results.append(execution_to_proto(execution))
        await asyncio.sleep(0)
    cited = [citation for result in results for point in result.evidence for citation in point.citations]
    for search in trajectory.searches:
        cited += map(_citation_to_proto, cite_answer(trajectory.answer, search.shown))
        await asyncio.sleep(0)
    return pb.AnswerResponse(
        run_id=run.id,
        answer=trajectory.answer,
        outcome=ANSWER_OUTCOMES[trajectory.outcome],
        results=results,
        usage=usage_to_proto(run.calls),
        duration=duration_to_proto(run.duration_s),
        citations={citation.SerializeToString(deterministic=True): citation for citation in cited}.values(),
    )


def _citation_to_proto(citation: Citation) -> evidence_pb2.Citation:
    return evidence_pb2.Citation(**msgspec.structs.asdict(citation))


def event_to_proto(number: int, event: Event) -> pb.StreamAnswerResponse:
    """One numbered event."""
    response = pb.StreamAnswerResponse(event_number=number)
    match event:
        case RunStarted():
            response.run_started.run_id = event.run_id
        case RoundStarted():
            response.round_started.round = event.round
        case SubQueryDispatched():
            response.sub_query_dispatched.index = event.index
            response.sub_query_dispatched.round = event.round
            response.sub_query_dispatched.sub_query = event.sub_query
        case SearchDone():
            response.search_done.index = event.index
            response.search_done.query = event.query
            response.search_done.titles.extend(event.titles)
        case Reported():
            response.reported.index = event.index
            if event.execution is not None:
                response.reported.result.CopyFrom(execution_to_proto(event.execution))
        case AnswerWritten():
            response.answer_written.answer = event.answer
        case _:
            assert_never(event)
    return response


async def last_events_to_proto(number: int, run: Run) -> tuple[pb.StreamAnswerResponse, pb.StreamAnswerResponse]:
    """The tokens, as event `number`, and then the answer, of a finished run."""
    done = await answer_to_proto(run)
    return (
        pb.StreamAnswerResponse(event_number=number, usage_counted=pb.UsageCounted(usage=done.usage)),
        pb.StreamAnswerResponse(event_number=number + 1, done=done),
    )
