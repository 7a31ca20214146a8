"""One rollout of a question by a cell: asked, judged, and a wrong answer traced to the role
that lost it.
"""

import time
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.study.cells import Cell
from benchmarks.study.results import Attribution, Loss, Row
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
"""Topologies in which a loss can be told from another."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks a cell any number of questions at once."""

    cell: Cell
    bench: Runtime
    """With the cell's config, and a memory of its own: a cell's calls are not another's."""
    judge: Judge | None
    prices: Prices
    temperature: float | None
    attributes: bool
    judgements: CallCache
    """The judge's, which all cells share."""
    booked: Container[str]
    """Keys of calls that rows have booked under `checking`."""

    async def ask(self, question: BenchmarkQuestion, rollout: int, seed: int) -> Row:
        """Ask once, and judge the answer. Raises `UpstreamError`, `OutOfTime` and `StoreFailed`: an
        endpoint that fails says nothing of a model.
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
        calls = context.ledger.calls
        right = matched if accepted is None else accepted
        if (
            self.attributes
            and not right
            and question.decomposition
            and executor
            and cell.topology in _TRACED
        ):
            attribution = await self._attributed(question, seeded, executor, tracing)
        memories = {"judge": self.judgements} | ({cell.name: seeded.cache} if seeded.cache else {})
        checks = first_calls(
            (*judging.ledger.calls, *tracing.ledger.calls), memories, self.booked, calls
        )
        return Row(
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
        """The executor; None where there is none, whose engine then need not be there."""
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
        self, question: BenchmarkQuestion, seeded: Runtime, executor: Executor, context: RunContext
    ) -> Attribution:
        async def right(answer: str) -> bool:
            accepted = await self._accepted(question, answer, context.ledger)
            return exact_match(answer, question.answers) if accepted is None else accepted

        answerer = Answerer(seeded.role("answer", self.cell.config.roles.answer))
        return await attribute(question, executor, answerer, right, context)


def _searches(result: Trajectory) -> tuple[int, ...]:
    """The searches of each executor run; a single agent is its own executor."""
    alone = (result,) if result.topology == "single_agent" else ()
    return tuple(len(one.searches) for one in (*by_executors(result.executions), *alone))


async def attribute(
    question: BenchmarkQuestion,
    executor: Executor,
    answerer: Answerer,
    right: Callable[[str], Awaitable[bool]],
    context: RunContext,
) -> Attribution:
    """Tell which role lost `question`, which was answered wrong and has a gold decomposition, by
    doing the work of one role after another right. Its steps are asked with what the executor
    itself found before, as a faultless delegator would. Raises `UpstreamError` and `OutOfTime`.
    """
    executed: list[Execution] = []
    for index, step in enumerate(question.decomposition):
        asked = step.filled([execution.report.answer for execution in executed])
        execution = await executor.run(asked, index, context)
        check_execution(execution, index, context)
        executed.append(execution)
    gold = [  # reports that could not be better; their evidence is the sub-question with its answer
        Execution(
            asked,
            Report(step.answer, (f"{asked} {step.answer}",)),
            "reported",
            (),
            Conversation(()),
        )
        for asked, step in zip(question.sub_questions, question.decomposition, strict=True)
    ]
    from_found, _ = await answerer.answer(question.question, executed, context.ledger)
    from_gold, _ = await answerer.answer(question.question, gold, context.ledger)
    lost_by: Loss = "delegation"
    if not await right(from_found):
        lost_by = lost_in_execution(question, executed) if await right(from_gold) else "answering"
    return Attribution(lost_by, from_found, from_gold)


def lost_in_execution(question: BenchmarkQuestion, executed: Sequence[Execution]) -> Loss:
    """Tell by the first report that misses what its gold sub-query asks for: `reading` where a
    passage that was shown holds it, or else `retrieval`. Where none does, their findings were not
    said clearly enough: `reading` too.
    """
    for step, execution in zip(question.decomposition, executed, strict=True):
        if not holds([execution.report.answer], step.answer):
            shown = [passage for search in execution.searches for passage in search.shown]
            known = step.supporting_doc_id in [
                passage.document.partition("#")[2] or passage.id for passage in shown
            ]
            texts = [f"{passage.title} {passage.text}" for passage in shown]
            return "reading" if known or holds(texts, step.answer) else "retrieval"
    return "reading"
