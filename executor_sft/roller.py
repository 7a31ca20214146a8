"""One question rolled out: the teacher's run, and what others would have made of its sub-queries (TBSS 3.4)."""

from collections.abc import Callable
from dataclasses import dataclass

from executor_sft.cut_off import check, check_execution
from executor_sft.rollouts import Question, Rollout, Sample, SubQueryRollout, Verdict
from router.protocol.scoring import exact_match
from router.search.answerer import Judge
from router.search.context import RunContext
from router.search.executor import Executor
from router.search.loop import Search
from router.trace.values import Trajectory


@dataclass(frozen=True, slots=True)
class Roller:
    """Rolls out any number of questions at once."""

    search: Search
    """With the teacher as executor."""
    student: Executor
    capped: Executor
    """The teacher with one search at most."""
    judge: Judge | None
    context: Callable[[], RunContext]
    """For one run."""

    async def roll_out(self, question: Question) -> Rollout:
        """Everything there is to know of `question`. An executor that could not do its work is an error, not a sample:
        raises `UpstreamError`, `OutOfTime` and `StoreFailed`.
        """
        context = self.context()
        trajectory = await self.search.run(question.text, context)
        check(trajectory, 0, context)
        verdict = await self._verdict(question, trajectory)
        run = _Run(question, trajectory, verdict)
        rollouts: list[SubQueryRollout] = []
        for number in range(len(trajectory.rounds)):
            for place, execution in enumerate(trajectory.block(number)):
                student = await self._beside(self.student, run, number, place)
                needed = verdict.correct and len(execution.searches) >= 2
                capped = await self._beside(self.capped, run, number, place) if needed else None
                rollouts.append(SubQueryRollout(Sample(execution, trajectory.answer, verdict), student, capped))
        return Rollout(question, trajectory, verdict, tuple(rollouts))

    async def _beside(self, executor: Executor, run: "_Run", number: int, place: int) -> Sample:
        """What `executor` makes of a sub-query, by its round and its place there, and where its report leads to."""
        block = list(run.trajectory.block(number))
        context, first = self.context(), sum(run.trajectory.rounds[:number])
        execution = await executor.run(block[place].sub_query, first + place, context)
        check_execution(execution, first + place, context)
        if execution.report == block[place].report:
            return Sample(execution, run.trajectory.answer, run.verdict)
        block[place] = execution
        context = self.context()
        changed = self.search.instead(run.trajectory, number, block)
        led = await self.search.proceed(run.question.text, changed, context)
        check(led, first + len(block), context)
        return Sample(execution, led.answer, await self._verdict(run.question, led))

    async def _verdict(self, question: Question, trajectory: Trajectory) -> Verdict:
        """The judge is asked only where it decides."""
        answer = trajectory.answer
        matched = exact_match(answer, question.golds) if question.golds else None
        if exact_match(answer, question.rejected) and not matched:
            return Verdict(exact_match=False)
        if self.judge is None or matched is False:
            return Verdict(matched)
        evidence = () if question.golds else [p for run in trajectory.executions for p in run.report.evidence]
        ledger = self.context().ledger
        accepted = await self.judge.accepts(question.text, question.golds, answer, ledger, evidence)
        return Verdict(matched, accepted, judged=True)


@dataclass(frozen=True, slots=True)
class _Run:
    """The teacher's run, with what came of it."""

    question: Question
    trajectory: Trajectory
    verdict: Verdict
