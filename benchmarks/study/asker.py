"""One cell of a sweep at work."""

import time
from collections.abc import Container
from dataclasses import dataclass

import msgspec

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.study.attributing import Attributor
from benchmarks.study.cell import Prepared
from benchmarks.study.first_calls import first_calls
from benchmarks.study.pricing import Prices, spent
from benchmarks.study.provenance import Provenance
from benchmarks.study.result_row import Attribution, ResultRow
from executor_sft.call_cache import CallCache
from executor_sft.rollouts import check_failures
from executor_sft.runtime import Runtime
from router.ledger.ledger import Ledger
from router.protocol.scoring import exact_match, fold, token_f1
from router.search.answerer import Answerer, Judge
from router.search.context import RunContext
from router.search.executor import Executor
from router.trace.values import Trajectory

_TRACED = ("factorized", "homogeneous")
"""Topologies in which a loss can be told from another."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks any number of questions at once."""

    prepared: Prepared
    bench: Runtime
    """With the cell's config, and a memory of its own: what another cell said is not this one's."""
    judge: Judge | None
    prices: Prices
    made_by: Provenance
    temperature: float | None
    attributes: bool
    judgements: CallCache
    """The judge's, which all cells share."""
    booked: Container[str]
    """Keys of calls that rows have booked under `checking`."""

    async def ask(self, question: BenchmarkQuestion, rollout: int, seed: int) -> ResultRow:
        """Ask once, and judge the answer. Raises `UpstreamError`, `OutOfTime` and `StoreFailed`: what an endpoint did
        not do says nothing of a model.
        """
        seeded = self.bench.sampled(seed, self.temperature)
        cell = self.prepared.cell
        executor = self._executor(seeded)
        context, begun = seeded.context(), time.monotonic()
        found = await seeded.topology(cell.topology, executor).loop.run(question.question, context)
        latency_s = time.monotonic() - begun
        check_failures(found, 0, context)
        judging = seeded.context()
        accepted = await self._accepted(question, found.answer, judging.ledger)
        right = exact_match(found.answer, question.answers) if accepted is None else accepted
        calls, tracing, attribution = context.ledger.calls, seeded.context(), None
        if self.attributes and not right and question.decomposition and executor and cell.topology in _TRACED:
            attribution = await self._attributed(question, seeded, executor, tracing)
        memories = {"judge": self.judgements} | ({cell.name: seeded.cache} if seeded.cache else {})
        checks = first_calls((*judging.ledger.calls, *tracing.ledger.calls), memories, self.booked, calls)
        folded, folded_golds = fold(found.answer), [fold(gold) for gold in question.answers]
        return ResultRow(
            cell=cell.name,
            topology=cell.topology,
            backbone=cell.backbone,
            executor=cell.executor,
            max_turns=cell.max_turns,
            dataset=question.dataset,
            question_id=question.id,
            rollout=rollout,
            answer=found.answer,
            outcome=found.outcome,
            exact_match=exact_match(found.answer, question.answers),
            f1=token_f1(found.answer, question.answers),
            folded_exact_match=exact_match(folded, folded_golds),
            folded_f1=token_f1(folded, folded_golds),
            judged=self.judge is not None,
            accepted=accepted,
            rounds=len(found.rounds),
            searches=tuple(len(one.searches) for one in (found.executions or _alone(found))),
            failed=sum(execution.failed for execution in found.executions),
            spent=spent(calls, self.prices),
            checking=spent(checks.values(), self.prices),
            checked=tuple(checks),
            latency_s=None if seeded.cache and seeded.cache.hits(calls) else round(latency_s, 4),
            attribution=attribution,
            question=question.question,
            golds=question.answers,
            provenance=msgspec.structs.replace(self.made_by, seed=seed),
        )

    def _executor(self, seeded: Runtime) -> Executor | None:
        """Who executes; None where nobody does, whose engine then need not be there."""
        if (config := self.prepared.roles.get("execution")) is None:
            return None
        return seeded.executor(seeded.role("execution", config, version=self.prepared.version))

    async def _accepted(self, question: BenchmarkQuestion, answer: str, ledger: Ledger) -> bool | None:
        if self.judge is None:
            return None
        return await self.judge.accepts(question.question, question.answers, answer, ledger)

    async def _attributed(
        self, question: BenchmarkQuestion, seeded: Runtime, executor: Executor, context: RunContext
    ) -> Attribution:
        async def right(asked: BenchmarkQuestion, answer: str) -> bool:
            accepted = await self._accepted(asked, answer, context.ledger)
            return exact_match(answer, asked.answers) if accepted is None else accepted

        answerer = Answerer(seeded.role("answer", self.prepared.config.roles.answer))
        return await Attributor(executor, answerer, right).attribute(question, context)


def _alone(found: Trajectory) -> tuple[Trajectory, ...]:
    """A single agent is its own executor."""
    return (found,) if found.topology == "single_agent" else ()
