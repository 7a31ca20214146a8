"""Measure the exact match (share of answers that equal the right answer) on questions about an
unseen mini world (a generated, fictional world), and the loss that each role causes. Questions are
asked over gRPC, with real vLLM and real retrieval.

Each question is answered in three ways: by a whole run; with the right (gold) sub-queries given, so
that only executor and answerer can fail; and with the right (gold) reports given, so that only the
answerer can fail. The loss of a role is the exact match that is gained if the role's right output
is given.
"""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import msgspec
from rolegate.client import GatewayError
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import completion_service_pb2 as completion_pb
from rolegate.v1 import evidence_pb2, usage_pb2
from rolegate.v1 import execution_service_pb2 as execution_pb
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.execution_service_pb2_grpc import ExecutionServiceStub

from benchmarks import harness
from benchmarks.load import in_flight
from executor_sft.command import Count
from executor_sft.miniworld.export import export, over
from executor_sft.miniworld.questions import MiniQuestion, SubQuery
from executor_sft.miniworld.world import World
from router.frozen import Frozen
from router.protocol import NO_EVIDENCE, Report, exact_match, prompts
from router.protocol.turns import parse_answer
from serving.composition import running_gateway
from serving.config.config import ReportCacheConfig
from serving.config.file import load_config, preset
from serving.terminal import complain

_DEADLINE_S = 120.0


class Options(harness.Options):
    """Options of the benchmark."""

    seed: int = 11
    """seed of the world; the demo's models have not seen the names of any such world"""
    questions: Count = 200
    """number of questions about the world"""
    models: Path | None = msgspec.field(name="config", default=None)
    """config file with the models to measure (default: the preset mini, which has the demo's
    models)
    """
    in_flight: Count = 8
    """number of questions to ask at the same time"""


class GroupScores(Frozen):
    """Exact match on one group of questions, from 0 to 1."""

    group: str
    questions: int
    exact_match: float
    """Exact match of whole runs."""
    with_gold_decomposition: float
    """Exact match if executors get the gold (right) sub-queries instead of the delegator's."""
    with_gold_reports: float
    """Exact match if the answerer gets the gold (right) reports instead of the executors'."""


class RoleTokens(Frozen):
    """A role's calls and tokens per question, as means over whole runs."""

    role: str
    calls: float
    prompt_tokens: float
    completion_tokens: float


class Figures(Frozen):
    """Exact match on each group of questions, and figures of each role."""

    rows: list[GroupScores]
    delegation_turns: int
    """Number of the delegator's judged turns. A turn after a wrong turn is not judged."""
    delegation_turns_right: float
    """Share of the judged turns that are right; see `QuestionRun.delegation_turns`."""
    executor_runs: int
    """Number of sub-queries that executors worked on in runs with all three roles. Gold
    sub-queries, on which an executor works alone, do not count.
    """
    searches_per_executor_run: float
    two_search_share: float
    """Share of sub-queries with at least two searches."""
    single_search_reports_right: float
    """Share of right reports, over the gold sub-queries that need only one search. A report is
    right if its answer equals the gold answer.
    """
    tokens: list[RoleTokens]


class QuestionRun(Frozen):
    """A question, answered in three ways."""

    question: MiniQuestion
    run: answer_pb.AnswerResponse
    """The whole run, in which delegator, executors and answerer all did their work."""
    rounds: tuple[tuple[str, ...], ...]
    """Sub-queries of each round of `run`."""
    gold_decomposition_answer: str
    """Answer of a run in which the executor gets the right sub-queries instead of the delegator's.
    """
    gold_reports_answer: str
    """Answer of a run in which the answerer gets the right reports instead of the executor's."""
    gold_results: tuple[execution_pb.ExecuteResponse, ...]
    """The executor's results on the gold sub-queries."""

    def delegation_turns(self) -> tuple[int, int]:
        """Return (number of right turns, number of judged turns) of the delegator.

        A turn is right if its sub-queries follow from the reports that the delegator has seen, even
        if these reports are wrong. Turns after a wrong turn are not judged.
        """
        answers = iter([result.answer for result in self.run.results])
        gold_before = ""
        before = ""
        right = 0
        for number, block in enumerate(self.question.rounds):
            expected = [sub_query.text for sub_query in block]
            if before:
                expected = [text.replace(gold_before, before) for text in expected]
            if number >= len(self.rounds) or list(self.rounds[number]) != expected:
                return right, right + 1
            right += 1
            gold_before = block[-1].report.answer
            before = [next(answers) for _ in block][-1]
            if before == NO_EVIDENCE.answer:
                return right, right
        stopped = len(self.rounds) == len(self.question.rounds)
        return right + stopped, right + 1


async def measure(options: Options) -> Figures:
    """Answer all questions in all three ways, and return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        questions = export(World(options.seed, "test"), Path(folder), options.questions)
        config = over(load_config(options.models or preset("mini")), Path(folder))
        config = msgspec.structs.replace(config, report_cache=ReportCacheConfig(enabled=False))
        prompt = Path(config.roles.answer.prompt).read_text("utf-8").strip()
        async with (
            running_gateway(config, "127.0.0.1:0", complain) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            asked = await in_flight(
                lambda question: _asked(channel, prompt, question), questions, options.in_flight
            )
    return figures_of(asked)


async def _asked(channel: grpc.aio.Channel, prompt: str, question: MiniQuestion) -> QuestionRun:
    """Answer a question by a whole run, with the gold sub-queries, and with the gold reports.
    `prompt`: the answerer's system prompt.
    """
    execute = ExecutionServiceStub(channel).Execute
    complete = CompletionServiceStub(channel).Complete

    async def executed(sub_query: SubQuery) -> execution_pb.ExecuteResponse:
        with _malformed_is_wrong():
            request = execution_pb.ExecuteRequest(sub_query=sub_query.text)
            return await execute(request, timeout=_DEADLINE_S)
        return execution_pb.ExecuteResponse(
            result=evidence_pb2.SubQueryResult(answer=NO_EVIDENCE.answer)
        )

    async def answered(reports: Sequence[Report]) -> str:
        texts = [sub_query.text for sub_query in question.sub_queries]
        user = prompts.answer_request(question.text, list(zip(texts, reports, strict=True)))
        messages = [
            completion_pb.ChatMessage(role="system", content=prompt),
            completion_pb.ChatMessage(role="user", content=user),
        ]
        request = completion_pb.CompleteRequest(
            role=usage_pb2.ROLE_ANSWER, messages=messages, stop=["</answer>"]
        )
        return parse_answer((await complete(request, timeout=_DEADLINE_S)).text)

    run, rounds = await _asked_run(channel, question)
    executions = await asyncio.gather(*map(executed, question.sub_queries))
    reports = [
        Report(response.result.answer, tuple(point.text for point in response.result.evidence))
        for response in executions
    ]
    gold = [sub_query.report for sub_query in question.sub_queries]
    return QuestionRun(
        question,
        run,
        rounds,
        await answered(reports),
        await answered(gold),
        tuple(executions),
    )


async def _asked_run(
    channel: grpc.aio.Channel, question: MiniQuestion
) -> tuple[answer_pb.AnswerResponse, tuple[tuple[str, ...], ...]]:
    """Answer a question by a whole run. Return the response, and the sub-queries of each round. If
    the run fails because of malformed output, the response has the results up to that point.
    """
    rounds = dict[int, list[str]]()
    results = dict[int, evidence_pb2.SubQueryResult]()
    run = answer_pb.AnswerResponse()
    request = answer_pb.StreamAnswerRequest(question=question.text, no_cache=True)
    with _malformed_is_wrong():
        async for event in AnswerServiceStub(channel).StreamAnswer(request, timeout=_DEADLINE_S):
            if event.HasField("sub_query_dispatched"):
                dispatched = event.sub_query_dispatched
                rounds.setdefault(dispatched.round, []).append(dispatched.sub_query)
            if event.HasField("reported"):
                results[event.reported.index] = event.reported.result
            if event.HasField("done"):
                run = event.done
    if not run.run_id:
        run.results.extend(result for _, result in sorted(results.items()))
    return run, tuple(tuple(block) for _, block in sorted(rounds.items()))


@contextmanager
def _malformed_is_wrong() -> Iterator[None]:
    """Suppress errors about malformed output of a model, which then counts as a wrong answer."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if GatewayError.of(error, "").reason != "MALFORMED_OUTPUT":
            raise


def figures_of(asked: Sequence[QuestionRun]) -> Figures:
    """Return the exact match of each group of questions, and the figures of each role. `asked`: all
    questions with their answers.
    """
    groups: dict[str, Callable[[QuestionRun], bool]] = {
        "all": lambda _: True,
        "2-hop": lambda result: result.question.type == "2-hop",
        "3-hop": lambda result: result.question.type == "3-hop",
        "comparison": lambda result: result.question.type == "comparison",
        "one search suffices": lambda result: not result.question.needs_second_search,
        "needs a second search": lambda result: result.question.needs_second_search,
    }
    turns = [result.delegation_turns() for result in asked]
    judged = sum(count for _, count in turns)
    searches = [len(report.search_queries) for result in asked for report in result.run.results]
    single = [right for result in asked for right in _single_search_reports(result)]
    return Figures(
        rows=[_row(name, list(filter(belongs, asked))) for name, belongs in groups.items()],
        delegation_turns=judged,
        delegation_turns_right=_share(sum(right for right, _ in turns), judged),
        executor_runs=len(searches),
        searches_per_executor_run=_share(sum(searches), len(searches)),
        two_search_share=_share(sum(count >= 2 for count in searches), len(searches)),
        single_search_reports_right=_share(sum(single), len(single)),
        tokens=_tokens(asked),
    )


def _single_search_reports(result: QuestionRun) -> Iterator[bool]:
    """Yield True for a right report and False for a wrong report, for each gold sub-query that
    needs only one search.
    """
    pairs = zip(result.question.sub_queries, result.gold_results, strict=True)
    for sub_query, response in pairs:
        if len(sub_query.searches) == 1:
            yield exact_match(response.result.answer, [sub_query.report.answer])


def _row(name: str, asked: Sequence[QuestionRun]) -> GroupScores:
    def share(answer: Callable[[QuestionRun], str]) -> float:
        rights = [exact_match(answer(result), [result.question.answer]) for result in asked]
        return _share(sum(rights), len(rights))

    return GroupScores(
        name,
        len(asked),
        share(lambda result: result.run.answer),
        share(lambda result: result.gold_decomposition_answer),
        share(lambda result: result.gold_reports_answer),
    )


def _tokens(asked: Sequence[QuestionRun]) -> list[RoleTokens]:
    by_role = dict[str, list[usage_pb2.RoleUsage]]()
    for result in asked:
        for usage in result.run.usage:
            name = usage_pb2.Role.Name(usage.role).removeprefix("ROLE_").lower()
            by_role.setdefault(name, []).append(usage)
    return [
        RoleTokens(
            name,
            sum(usage.attempts for usage in usages) / len(asked),
            sum(usage.prompt_tokens for usage in usages) / len(asked),
            sum(usage.completion_tokens for usage in usages) / len(asked),
        )
        for name, usages in by_role.items()
    ]


def _share(part: float, total: int) -> float:
    return part / total if total else 0.0
