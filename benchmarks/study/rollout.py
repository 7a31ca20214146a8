"""One rollout of a question by a cell: ask, judge, and attribute a wrong answer to a role."""

import time
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from itertools import chain

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.study.cells import SweepCell
from benchmarks.study.results import AnswerLoss, Loss, QuestionResult
from benchmarks.study.spending import Prices, first_calls, spent
from executor_sft.call_cache import CallCache
from executor_sft.rollout import check_execution, check_failures
from executor_sft.runtime import Runtime
from router.ledger import Ledger
from router.protocol import Report, exact_match
from router.protocol.scoring import holds, token_f1
from router.search import Answerer, Executor, RunContext
from router.search.answerer import Judge
from router.trace import Conversation, Execution, Trajectory
from router.trace.values import by_executors

_TRACED = ("factorized", "homogeneous")
"""Topologies in which losses can be attributed."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks a cell any number of questions concurrently."""

    cell: SweepCell
    bench: Runtime
    """Runtime with the cell's config and its own call cache."""
    judge: Judge | None
    prices: Prices
    temperature: float | None
    attributes: bool
    judgements: CallCache
    """Call cache of the judge, shared by all cells."""
    booked: Container[str]
    """Keys of calls that rows have in `checking`."""

    async def ask(self, question: BenchmarkQuestion, rollout: int, seed: int) -> QuestionResult:
        """Ask once and judge the answer. Raises `UpstreamError`, `OutOfTime` and `StoreFailed`,
        because a failing endpoint is no fault of the model.
        """
        seeded = self.bench.sampled(seed, self.temperature)
        cell = self.cell
        executor = self._executor(seeded)
        context = seeded.context()
        begun = time.monotonic()
        result = await seeded.topology(cell.topology, executor).loop.run(question.question, context)
        latency_s = time.monotonic() - begun
        check_failures(result, 0, context)

        judging = seeded.context()
        tracing = seeded.context()
        attribution = None
        accepted = await self._accepted(question, result.answer, judging.ledger)
        matched = exact_match(result.answer, question.answers)
        right = matched if accepted is None else accepted
        traced = self.attributes and question.decomposition and cell.topology in _TRACED
        if traced and not right and executor:
            attribution = await self._attributed(question, seeded, executor, tracing)

        calls = context.ledger.calls
        memories = {"judge": self.judgements} | ({cell.name: seeded.cache} if seeded.cache else {})
        checks = first_calls(
            (*judging.ledger.calls, *tracing.ledger.calls), memories, self.booked, calls
        )
        return QuestionResult(
            cell=cell.name,
            topology=cell.topology,
            backbone=cell.backbone,
            executor=cell.executor,
            max_turns=cell.config.search.max_turns,
            dataset=question.dataset,
            question_id=question.id,
            question=question.question,
            golds=question.answers,
            rollout=rollout,
            answer=result.answer,
            outcome=result.outcome,
            exact_match=matched,
            f1=token_f1(result.answer, question.answers),
            judged=self.judge is not None,
            accepted=accepted,
            searches=_searches(result),
            spent=spent(calls, self.prices),
            checking=spent(checks.values(), self.prices),
            checked=tuple(checks),
            latency_s=None if seeded.cache and seeded.cache.hits(calls) else round(latency_s, 4),
            attribution=attribution,
            seed=seed,
            index=self.bench.retriever.index_id,
        )

    def _executor(self, seeded: Runtime) -> Executor | None:
        """Return the executor; None in cells without one, whose engine may be absent."""
        if (config := self.cell.roles.get("execution")) is None:
            return None
        return seeded.executor(seeded.role("execution", config, version=self.cell.version))

    async def _accepted(
        self, question: BenchmarkQuestion, answer: str, ledger: Ledger
    ) -> bool | None:
        if self.judge is None:
            return None
        return await self.judge.accepts(question.question, question.answers, answer, ledger)

    async def _attributed(
        self,
        question: BenchmarkQuestion,
        seeded: Runtime,
        executor: Executor,
        context: RunContext,
    ) -> AnswerLoss:
        async def right(answer: str) -> bool:
            accepted = await self._accepted(question, answer, context.ledger)
            return exact_match(answer, question.answers) if accepted is None else accepted

        answerer = Answerer(seeded.role("answer", self.cell.config.roles.answer))
        return await attribute(question, executor, answerer, right, context)


def _searches(result: Trajectory) -> tuple[int, ...]:
    """Return the searches of each executor run; a single agent counts as one run."""
    runs = [execution.searches for execution in by_executors(result.executions)]
    if result.topology == "single_agent":
        runs.append(result.searches)
    return tuple(map(len, runs))


async def attribute(
    question: BenchmarkQuestion,
    executor: Executor,
    answerer: Answerer,
    right: Callable[[str], Awaitable[bool]],
    context: RunContext,
) -> AnswerLoss:
    """Find the role that lost a wrongly answered question with a gold decomposition, by replacing
    the work of one role after another by gold. Sub-queries are filled with the executor's own
    earlier answers, as a perfect delegator would do. Raises `UpstreamError` and `OutOfTime`.
    """
    executed: list[Execution] = []
    for index, step in enumerate(question.decomposition):
        sub_query = step.filled([execution.report.answer for execution in executed])
        execution = await executor.run(sub_query, index, context)
        check_execution(execution, index, context)
        executed.append(execution)

    gold: list[Execution] = []
    for sub_query, step in zip(question.sub_questions, question.decomposition, strict=True):
        # The evidence is the sub-question with its answer
        report = Report(step.answer, (f"{sub_query} {step.answer}",))
        gold.append(Execution(sub_query, report, "reported", (), Conversation(())))

    from_found, _ = await answerer.answer(question.question, executed, context.ledger)
    from_gold, _ = await answerer.answer(question.question, gold, context.ledger)
    lost_by: Loss = "delegation"
    if not await right(from_found):
        lost_by = lost_in_execution(question, executed) if await right(from_gold) else "answering"
    return AnswerLoss(lost_by, from_found, from_gold)


def lost_in_execution(question: BenchmarkQuestion, executed: Sequence[Execution]) -> Loss:
    """Return the loss for the first report that misses its gold answer: `reading` if a passage
    shown has that answer, else `retrieval`. If no report misses its answer, they were unclear:
    `reading`.
    """
    for step, execution in zip(question.decomposition, executed, strict=True):
        if not holds([execution.report.answer], step.answer):
            shown = list(chain.from_iterable(search.shown for search in execution.searches))
            known = step.supporting_doc_id in [
                passage.document.partition("#")[2] or passage.id for passage in shown
            ]
            texts = [f"{passage.title} {passage.text}" for passage in shown]
            return "reading" if known or holds(texts, step.answer) else "retrieval"
    return "reading"
