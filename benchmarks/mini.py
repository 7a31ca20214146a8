"""A held-out mini world, asked over gRPC through real vLLM and real retrieval.

Beside the exact match of whole runs stand two ceilings: with the gold decomposition (executor and
answerer do their part), and with the gold reports (the answerer alone). What is lost between two
columns is lost by one role.
"""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import grpc
import msgspec
from msgspec import Meta
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
from executor_sft.miniworld.export import export, over
from executor_sft.miniworld.questions import Question, SubQuery
from executor_sft.miniworld.world import World
from router.protocol import NO_EVIDENCE, Report, exact_match, prompts
from router.protocol.turns import parse_answer
from serving.composition import running_gateway
from serving.config.config import ReportCacheConfig
from serving.config.file import load_config, preset
from serving.terminal import complain

_DEADLINE_S = 120.0


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    seed: Annotated[int, Meta(description="of the world; its names are never trained on")] = 11
    questions: Annotated[int, Meta(ge=1, description="about it")] = 200
    models: (
        Annotated[Path, Meta(description="a config with other models than the preset mini's")]
        | None
    ) = msgspec.field(name="config", default=None)
    in_flight: Annotated[int, Meta(ge=1, description="questions at once")] = 8


class Row(msgspec.Struct, frozen=True):
    """Exact match of one group of questions, shares of 1."""

    group: str
    questions: int
    exact_match: float
    with_gold_decomposition: float
    with_gold_reports: float


class RoleTokens(msgspec.Struct, frozen=True):
    """Tokens of one role for each question, means; the whole runs only."""

    role: str
    calls: float
    prompt_tokens: float
    completion_tokens: float


class Figures(msgspec.Struct, frozen=True):
    """Exact match, and the roles' shares in it."""

    rows: list[Row]
    delegation_turns: int
    delegation_turns_right: float
    executor_runs: int
    searches_per_executor_run: float
    two_search_share: float
    single_search_reports_right: float
    """Executor reports with the gold answer, over gold sub-queries that one search answers."""
    tokens: list[RoleTokens]


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
        """Right turns and turns, given the reports that came back; what follows a wrong turn is
        not judged.
        """
        answers = iter([result.answer for result in self.run.results])
        gold_before = ""
        before = ""
        right = 0
        for number, block in enumerate(self.question.rounds):
            expected = [
                one.text.replace(gold_before, before) if before else one.text for one in block
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


async def measure(options: Options) -> Figures:
    """Ask all questions in all ways."""
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
                lambda one: _asked(channel, prompt, one), questions, options.in_flight
            )
    return figures_of(asked)


async def _asked(channel: grpc.aio.Channel, prompt: str, question: Question) -> Asked:
    """Ask whole, with gold sub-queries, and with gold reports. `prompt`: the answerer's system
    prompt.
    """
    rounds: dict[int, list[str]] = {}
    results: dict[int, evidence_pb2.SubQueryResult] = {}
    run = answer_pb.AnswerResponse()
    request = answer_pb.StreamAnswerRequest(question=question.text)
    with _wrong():
        async for event in AnswerServiceStub(channel).StreamAnswer(request, timeout=_DEADLINE_S):
            if event.HasField("sub_query_dispatched"):
                rounds.setdefault(event.sub_query_dispatched.round, []).append(
                    event.sub_query_dispatched.sub_query
                )
            if event.HasField("reported"):
                results[event.reported.index] = event.reported.result
            if event.HasField("done"):
                run = event.done
    if not run.run_id:
        run.results.extend(result for _, result in sorted(results.items()))
    execute = ExecutionServiceStub(channel).Execute

    async def executed(sub_query: SubQuery) -> execution_pb.ExecuteResponse:
        with _wrong():
            return await execute(
                execution_pb.ExecuteRequest(sub_query=sub_query.text), timeout=_DEADLINE_S
            )
        return execution_pb.ExecuteResponse(
            result=evidence_pb2.SubQueryResult(answer=NO_EVIDENCE.answer)
        )

    async def answered(reports: Sequence[Report]) -> str:
        pairs = [
            (sub_query.text, report)
            for sub_query, report in zip(question.sub_queries, reports, strict=True)
        ]
        messages = [
            completion_pb.ChatMessage(role="system", content=prompt),
            completion_pb.ChatMessage(
                role="user", content=prompts.answer_request(question.text, pairs)
            ),
        ]
        request = completion_pb.CompleteRequest(
            role=usage_pb2.ROLE_ANSWER, messages=messages, stop=["</answer>"]
        )
        return parse_answer(
            (await CompletionServiceStub(channel).Complete(request, timeout=_DEADLINE_S)).text
        )

    found = await asyncio.gather(*map(executed, question.sub_queries))
    reports = [
        Report(one.result.answer, tuple(point.text for point in one.result.evidence))
        for one in found
    ]
    gold = [sub_query.report for sub_query in question.sub_queries]
    blocks = tuple(tuple(block) for _, block in sorted(rounds.items()))
    return Asked(question, run, blocks, await answered(reports), await answered(gold), tuple(found))


@contextmanager
def _wrong() -> Iterator[None]:
    """Where a model cannot be understood, its answer is wrong."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if GatewayError.of(error, "").reason != "MALFORMED_OUTPUT":
            raise


def figures_of(asked: Sequence[Asked]) -> Figures:
    """Count everything."""
    groups: dict[str, Callable[[Asked], bool]] = {
        "all": lambda _: True,
        "2-hop": lambda one: one.question.type == "2-hop",
        "3-hop": lambda one: one.question.type == "3-hop",
        "comparison": lambda one: one.question.type == "comparison",
        "one search suffices": lambda one: not one.question.needs_second_search,
        "needs a second search": lambda one: one.question.needs_second_search,
    }
    turns = [one.delegation_turns() for one in asked]
    searches = [len(result.search_queries) for one in asked for result in one.run.results]
    single = [
        exact_match(result.result.answer, [sub_query.report.answer])
        for one in asked
        for sub_query, result in zip(one.question.sub_queries, one.gold_results, strict=True)
        if len(sub_query.searches) == 1
    ]
    return Figures(
        rows=[
            _row(name, [one for one in asked if belongs(one)]) for name, belongs in groups.items()
        ],
        delegation_turns=sum(of for _, of in turns),
        delegation_turns_right=_share(sum(right for right, _ in turns), sum(of for _, of in turns)),
        executor_runs=len(searches),
        searches_per_executor_run=_share(sum(searches), len(searches)),
        two_search_share=_share(sum(count >= 2 for count in searches), len(searches)),
        single_search_reports_right=_share(sum(single), len(single)),
        tokens=_tokens(asked),
    )


def _row(name: str, asked: Sequence[Asked]) -> Row:
    given = [
        (
            one.question.answer,
            (one.run.answer, one.gold_decomposition_answer, one.gold_reports_answer),
        )
        for one in asked
    ]
    rights = [[exact_match(answer, [gold]) for answer in answers] for gold, answers in given]
    return Row(
        name,
        len(asked),
        *(_share(sum(right[way] for right in rights), len(asked)) for way in range(3)),
    )


def _tokens(asked: Sequence[Asked]) -> list[RoleTokens]:
    totals: dict[str, list[int]] = {}
    for one in asked:
        for usage in one.run.usage:
            name = usage_pb2.Role.Name(usage.role).removeprefix("ROLE_").lower()
            row = totals.setdefault(name, [0, 0, 0])
            for place, count in enumerate(
                (usage.attempts, usage.prompt_tokens, usage.completion_tokens)
            ):
                row[place] += count
    return [
        RoleTokens(name, *(count / len(asked) for count in counts))
        for name, counts in totals.items()
    ]


def _share(part: float, whole: int) -> float:
    return part / whole if whole else 0.0
