"""One mini-world question, asked three ways over gRPC: whole, with gold sub-queries, with gold reports."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from rolegate.client import GatewayError
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import completion_service_pb2 as completion_pb
from rolegate.v1 import evidence_pb2, usage_pb2
from rolegate.v1 import execution_service_pb2 as execution_pb
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.execution_service_pb2_grpc import ExecutionServiceStub

from executor_sft.miniworld.questions import Question, SubQuery
from router.protocol import prompts
from router.protocol.evidence import NO_EVIDENCE, Report
from router.protocol.turns import parse_answer

_DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and what came back."""

    question: Question
    run: answer_pb.AnswerResponse
    rounds: tuple[tuple[str, ...], ...]
    """The sub-queries of each dispatching round."""
    gold_decomposition_answer: str
    gold_reports_answer: str
    gold_results: tuple[execution_pb.ExecuteResponse, ...]
    """The executor's runs on the gold sub-queries."""

    def delegation_turns(self) -> tuple[int, int]:
        """Right turns and turns, given the reports that came back; what follows a wrong turn is not judged."""
        answers = iter([result.answer for result in self.run.results])
        gold_before, before = "", ""
        right = 0
        for number, block in enumerate(self.question.rounds):
            expected = [
                sub_query.text.replace(gold_before, before) if before else sub_query.text for sub_query in block
            ]
            if number >= len(self.rounds) or list(self.rounds[number]) != expected:
                return right, right + 1
            right += 1
            gold_before = block[-1].report.answer
            before = [next(answers) for _ in block][-1]
            if before == NO_EVIDENCE.answer:
                return right, right
        stopped = len(self.rounds) == len(self.question.rounds)
        return right + stopped, right + 1


class MiniClient:
    """Asks a gateway."""

    def __init__(self, channel: grpc.aio.Channel, answer_prompt: str) -> None:
        """`answer_prompt`: the answerer's system prompt, for answering from gold reports."""
        self._answers = AnswerServiceStub(channel)
        self._executions = ExecutionServiceStub(channel)
        self._completions = CompletionServiceStub(channel)
        self._answer_prompt = answer_prompt

    async def answer(self, question: str) -> answer_pb.AnswerResponse:
        """The whole run's answer."""
        with _wrong():
            return await self._answers.Answer(answer_pb.AnswerRequest(question=question), timeout=_DEADLINE_S)
        return answer_pb.AnswerResponse(outcome=answer_pb.ANSWER_OUTCOME_NOT_FOUND)

    async def ask(self, question: Question) -> Asked:
        """Ask a question in all three ways."""
        rounds: dict[int, list[str]] = {}
        results: dict[int, evidence_pb2.SubQueryResult] = {}
        run = answer_pb.AnswerResponse()
        request = answer_pb.StreamAnswerRequest(question=question.text)
        with _wrong():
            async for event in self._answers.StreamAnswer(request, timeout=_DEADLINE_S):
                if event.HasField("sub_query_dispatched"):
                    rounds.setdefault(event.sub_query_dispatched.round, []).append(event.sub_query_dispatched.sub_query)
                if event.HasField("reported"):
                    results[event.reported.index] = event.reported.result
                if event.HasField("done"):
                    run = event.done
        if not run.run_id:
            run.results.extend(result for _, result in sorted(results.items()))
        executed = await asyncio.gather(*(self._execute(sub_query) for sub_query in question.sub_queries))
        found = [_report(result) for result in executed]
        return Asked(
            question,
            run,
            tuple(tuple(block) for _, block in sorted(rounds.items())),
            await self._from_reports(question, found),
            await self._from_reports(question, [sub_query.report for sub_query in question.sub_queries]),
            tuple(executed),
        )

    async def _execute(self, sub_query: SubQuery) -> execution_pb.ExecuteResponse:
        request = execution_pb.ExecuteRequest(sub_query=sub_query.text)
        with _wrong():
            return await self._executions.Execute(request, timeout=_DEADLINE_S)
        return execution_pb.ExecuteResponse(result=evidence_pb2.SubQueryResult(answer=NO_EVIDENCE.answer))

    async def _from_reports(self, question: Question, reports: list[Report]) -> str:
        """What the answerer makes of these reports on the gold sub-queries."""
        pairs = [(sub_query.text, report) for sub_query, report in zip(question.sub_queries, reports, strict=True)]
        request = completion_pb.CompleteRequest(
            role=usage_pb2.ROLE_ANSWER,
            messages=[
                completion_pb.ChatMessage(role="system", content=self._answer_prompt),
                completion_pb.ChatMessage(role="user", content=prompts.answer_request(question.text, pairs)),
            ],
            stop=["</answer>"],
        )
        return parse_answer((await self._completions.Complete(request, timeout=_DEADLINE_S)).text)


@contextmanager
def _wrong() -> Iterator[None]:
    """Where a model cannot be understood, its answer is wrong."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if GatewayError.of(error, "").reason != "MALFORMED_OUTPUT":
            raise


def _report(response: execution_pb.ExecuteResponse) -> Report:
    return Report(response.result.answer, tuple(point.text for point in response.result.evidence))
