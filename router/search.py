"""The search loop: delegate, execute, inform, until the evidence suffices; then answer (TBSS 3.1)."""

import asyncio
from collections.abc import Sequence
from typing import Literal

import msgspec

from router.answerer import Answerer
from router.context import RunContext
from router.delegation import Dispatch, Stop
from router.delegator import Delegator
from router.errors import OutOfTime
from router.events import AnswerWritten, Reported, RoundStarted, SubQueryDispatched
from router.execution import Conversation, Execution
from router.executor import Executor

AnswerOutcome = Literal["answered", "rounds_exhausted", "no_search", "time_exhausted", "out_of_scope", "not_found"]
NOT_FOUND = "not found"


class Trajectory(msgspec.Struct, frozen=True, tag=True):
    """Everything that was said in answering one question."""

    answer: str
    outcome: AnswerOutcome
    executions: tuple[Execution, ...] = ()
    """In order of dispatch."""
    rounds: tuple[int, ...] = ()
    """How many sub-queries each dispatching round sent out."""
    delegation: Conversation | None = None
    answering: Conversation | None = None


class Search:
    """Answers questions with three roles that share nothing but reports; any number of questions at once."""

    def __init__(
        self,
        delegator: Delegator,
        executor: Executor,
        answerer: Answerer,
        *,
        max_rounds: int = 4,
        require_evidence: bool = True,
    ) -> None:
        """`max_rounds`: delegator decisions (T in TBSS 4.1). `require_evidence`: without a single report that carries
        evidence, the answer is "not found" and the answerer is not asked to guess.
        """
        self._delegator, self._executor, self._answerer = delegator, executor, answerer
        self._max_rounds, self._require_evidence = max_rounds, require_evidence

    async def run(self, question: str, context: RunContext) -> Trajectory:
        """Answer `question`. Raises `UpstreamError` where the delegator or the answerer fails, `OutOfTime` where the
        deadline passes; an executor's failure is a result that found nothing.
        """
        conversation = self._delegator.open(question)
        executions: list[Execution] = []
        rounds: list[int] = []
        outcome: AnswerOutcome = "rounds_exhausted"
        try:
            for number in range(1, self._max_rounds + 1):
                context.emit(RoundStarted(number))
                async with asyncio.timeout_at(context.search_deadline):
                    decision, conversation = await self._delegator.decide(conversation, context.ledger)
                if isinstance(decision, Stop):
                    outcome = "answered" if executions else "no_search"
                    break
                block = await self._execute(decision, number, len(executions), context)
                conversation = self._delegator.inform(conversation, block, decision.over_limit)
                executions += block
                rounds.append(len(block))
                if any(execution.outcome == "timed_out" for execution in block):
                    outcome = "time_exhausted"
                    break
        except TimeoutError:
            outcome = "time_exhausted"
        return await self._answer(
            question, Trajectory("", outcome, tuple(executions), tuple(rounds), conversation), context
        )

    async def _execute(self, block: Dispatch, number: int, first: int, context: RunContext) -> list[Execution]:
        """Run the sub-queries of a block side by side; the executions in the block's order."""

        async def execute(index: int, sub_query: str) -> Execution:
            context.emit(SubQueryDispatched(index, number, sub_query))
            execution = await self._executor.run(sub_query, index, context)
            context.emit(Reported(index, execution))
            return execution

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(execute(index, text)) for index, text in enumerate(block.sub_queries, first)]
        return [task.result() for task in tasks]

    async def _answer(self, question: str, found: Trajectory, context: RunContext) -> Trajectory:
        """Let the answerer write, or say that nothing was found."""
        if self._require_evidence and not _has_evidence(found.executions):
            if found.outcome == "time_exhausted":
                raise OutOfTime("Time ran out before anything was found; allow a longer deadline or a faster model.")
            outcome: AnswerOutcome = "no_search" if found.outcome == "no_search" else "not_found"
            answered = msgspec.structs.replace(found, answer=NOT_FOUND, outcome=outcome)
        else:
            answered = await self._ask_answerer(question, found, context)
        context.emit(AnswerWritten(answered.answer))
        return answered

    async def _ask_answerer(self, question: str, found: Trajectory, context: RunContext) -> Trajectory:
        try:
            async with asyncio.timeout_at(context.deadline):
                answer, answering = await self._answerer.answer(question, found.executions, context.ledger)
        except TimeoutError:
            raise OutOfTime("Time ran out before the answer was written; allow a longer deadline.") from None
        if answer.casefold().rstrip(" .!") in ("", NOT_FOUND):
            return msgspec.structs.replace(found, answer=NOT_FOUND, outcome="not_found", answering=answering)
        return msgspec.structs.replace(found, answer=answer, answering=answering)


def _has_evidence(executions: Sequence[Execution]) -> bool:
    return any(execution.report.evidence for execution in executions)
