"""The search loop: delegate, execute, inform, until the evidence suffices; then answer (TBSS
3.1).
"""

import asyncio
import hashlib
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec.structs import replace

from router.amount import NOTHING
from router.calls import Role
from router.errors import BudgetExhausted, ContextTooLong, OutOfTime
from router.protocol import NO_EVIDENCE
from router.protocol.decision import Decision, Dispatch, Stop
from router.protocol.tags import Malformed, without_thinking
from router.search.answerer import Answerer
from router.search.context import RunContext
from router.search.delegator import Delegator
from router.search.dispatch import Dispatching, dispatching
from router.search.executor import Executes
from router.trace import Execution, Trajectory
from router.trace.run import RoleSetting
from router.trace.values import NOT_FOUND, AnswerOutcome, RoundStarted, TopologyName


class FactorizedSearch:
    """Answers questions with three roles that share nothing but reports; any number of
    questions at once.
    """

    def __init__(
        self,
        delegator: Delegator,
        executor: Executes,
        answerer: Answerer | None,
        *,
        max_rounds: int = 4,
        require_evidence: bool = True,
        early_dispatch: bool = True,
        topology: TopologyName = "factorized",
        width: int = 10**6,
    ) -> None:
        """`answerer`: None for a search that ends with the delegator's last turn, and has no
        answer. `max_rounds`: delegator decisions (T in TBSS 4.1). `require_evidence`: without a
        single report that carries evidence, the answer is `NOT_FOUND` and the answerer is not asked
        to guess. `early_dispatch`: begin with a sub-query once it is written, not when the block
        is; not in runs with a budget, which are not to spend on guesses. `topology`: what the
        trajectories are to say of whose model the executor is. `width`: executors at a time.
        """
        self._delegator = delegator
        self._executor = executor
        self._answerer = answerer
        self._max_rounds = max_rounds
        self._require_evidence = require_evidence
        self._early_dispatch = early_dispatch
        self._topology = topology
        self._width = width

    def run(self, question: str, context: RunContext) -> Coroutine[Any, Any, Trajectory]:
        """Answer `question`. Raises `UpstreamError` where the delegator or the answerer fails,
        `OutOfTime` where the deadline passes, `BudgetExhausted` where nothing was found by the time
        that the budget does not suffice; an executor's failure is a result that found nothing, a
        delegator that cannot be understood one that has stopped, and `context.failures` tells of
        both.
        """
        delegation = self._delegator.open(question)
        opened = Trajectory("", "rounds_exhausted", delegation=delegation, topology=self._topology)
        return self.proceed(question, opened, context)

    async def again(self, question: str, found: Trajectory, context: RunContext) -> Trajectory:
        """Work on the sub-queries of a run that another executor worked in. As long as all reports
        of a round are the same, so is what followed them, and nothing else is asked. Raises what
        `run` raises.
        """
        executions: tuple[Execution, ...] = ()
        for number in range(len(found.rounds)):
            block = found.block(number)
            sub_queries = [execution.sub_query for execution in block]
            async with dispatching(self._executor, number + 1, len(executions), context) as work:
                anew = await work.run(sub_queries)
            if any(new.report != old.report for new, old in zip(anew, block, strict=True)):
                changed = replace(
                    found, executions=(*executions, *found.executions[len(executions) :])
                )
                return await self.proceed(question, self.instead(changed, number, anew), context)
            executions += tuple(anew)
        return replace(found, executions=executions)

    def instead(
        self, found: Trajectory, number: int, executions: Sequence[Execution]
    ) -> Trajectory:
        """`found` up to round `number`, from 0, as if its executors had come to `executions`."""
        before = found.before(number)
        assert before.delegation is not None
        return self._told(before, executions, self._delegator.over_limit(before.delegation))

    async def proceed(self, question: str, found: Trajectory, context: RunContext) -> Trajectory:
        """Go on from a decision, or from reports that the delegator has been told. Raises what
        `run` raises.
        """
        try:
            if not found.rounds:
                # A budget that cannot hold a decision, a search, a report and an answer is refused
                # before any is paid.
                await self._reserve_for_answer(question, found, (), context, begins=True)
            await self._reserve_for_answer(question, found, (), context)
            for number in range(len(found.rounds) + 1, self._max_rounds + 1):
                context.on_event(RoundStarted(number))
                async with dispatching(
                    self._executor, number, len(found.executions), context, self._width
                ) as work:
                    decision, found = await self._decide(found, work, context)
                    if not isinstance(decision, Dispatch):
                        if isinstance(decision, Malformed) and not found.executions:
                            context.failures[None] = self._delegator.role.malformed()
                        found = replace(
                            found, outcome="answered" if found.executions else "no_search"
                        )
                        break
                    await self._reserve_for_answer(question, found, decision.sub_queries, context)
                    executions = await work.run(decision.sub_queries, decision.managers)
                    found = self._told(found, executions, decision.over_limit)
                context.draft.result = found
                if found.outcome in ("time_exhausted", "budget_exhausted"):
                    break
                await self._reserve_for_answer(question, found, (), context)
        except TimeoutError:
            found = replace(found, outcome="time_exhausted")
        except BudgetExhausted:
            found = replace(found, outcome="budget_exhausted")
        return await self._answer(question, found, context) if self._answerer else found

    async def _reserve_for_answer(
        self,
        question: str,
        found: Trajectory,
        coming: Sequence[str],
        context: RunContext,
        *,
        begins: bool = False,
    ) -> None:
        """Keep back what answering may cost, from what was found and from the reports on the
        sub-queries `coming`. `begins`: with the least that it takes to find something.
        """
        if not context.ledger.limited or self._answerer is None:
            return
        async with asyncio.timeout_at(context.search_deadline):
            pairs = [(execution.sub_query, execution.report) for execution in found.executions]
            pairs += [(sub_query, NO_EVIDENCE) for sub_query in coming]
            beside = NOTHING
            if begins:
                searching = await self._executor.role(context).least("", turns=2)
                beside = searching + await self._delegator.role.least(question)
            await self._answerer.reserve_for_answer(
                question, pairs, len(coming) * self._executor.report_tokens, context.ledger, beside
            )

    async def _decide(
        self, found: Trajectory, work: Dispatching, context: RunContext
    ) -> tuple[Decision, Trajectory]:
        assert found.delegation is not None
        early = work if self._early_dispatch and not context.ledger.budgeted else None
        async with asyncio.timeout_at(context.search_deadline):
            try:
                decision, conversation = await self._delegator.decide(
                    found.delegation, context.ledger, early
                )
            except ContextTooLong:
                if not found.executions:
                    raise
                return Stop(), found  # its context is full of reports: they must do
        found = replace(found, delegation=conversation)
        context.draft.result = found
        return decision, found

    def _told(
        self, found: Trajectory, executions: Sequence[Execution], over_limit: Sequence[str]
    ) -> Trajectory:
        """`found` with the reports of another round, which the delegator is shown."""
        assert found.delegation is not None
        ends = {execution.outcome for execution in executions}
        outcome = found.outcome
        if "budget_exhausted" in ends or "timed_out" in ends:
            outcome = "budget_exhausted" if "budget_exhausted" in ends else "time_exhausted"
        return replace(
            found,
            outcome=outcome,
            executions=(*found.executions, *executions),
            rounds=(*found.rounds, len(executions)),
            told=(*found.told, len(found.delegation.messages)),
            delegation=self._delegator.inform(found.delegation, executions, over_limit),
        )

    async def _answer(self, question: str, found: Trajectory, context: RunContext) -> Trajectory:
        """Let the answerer write, or say that nothing was found."""
        assert self._answerer is not None
        # A list or table needs no evidence beside it: each of its values is looked for in the
        # passages.
        grounds = (
            one.report.evidence or (context.tabular and not one.failed) for one in found.executions
        )
        if self._require_evidence and not any(grounds):
            context.raise_without_evidence(found.outcome)
            outcome: AnswerOutcome = "no_search" if found.outcome == "no_search" else "not_found"
            return replace(found, answer=NOT_FOUND, outcome=outcome)
        try:
            async with asyncio.timeout_at(context.deadline):
                answer, answering = await self._answerer.answer(
                    question, found.executions, context.ledger
                )
        except TimeoutError:
            raise OutOfTime(
                "Time ran out before the answer was written; allow a longer deadline."
            ) from None
        if not without_thinking(answering.outputs[-1].text).strip():
            context.failures[None] = self._answerer.role.malformed()
        return replace(found, answering=answering).answered(answer)


class Loop(Protocol):
    """A way to the answer of a question."""

    async def run(self, question: str, context: RunContext) -> Trajectory:
        """Answer `question`. Raises `UpstreamError`, `OutOfTime` and `BudgetExhausted`."""


@dataclass(frozen=True, slots=True)
class Topology:
    """A way to answer, with the roles that work on it."""

    loop: Loop
    roles: Mapping[Any, Role]
    """By their names, and managers' as `managers.NAME`; without the versions of the executor."""


def settings_of(roles: Mapping[Any, Role]) -> dict[str, RoleSetting]:
    """Models and prompts of roles, for the trace."""
    return {
        name: RoleSetting(role.model.name, hashlib.sha256(role.system.encode()).hexdigest())
        for name, role in roles.items()
    }
