"""The search loop: decide, dispatch, inform, until the evidence suffices; then answer (TBSS 3.1).

A round has three steps:

    decide      the delegator writes sub-queries, or stops
    dispatch    executors work on the sub-queries in parallel, each in a fresh context
    inform      the delegator is shown their reports, and nothing else

The rounds end when the delegator stops, after `max_rounds`, or when time or budget run out. Then
the answerer writes the answer from the reports alone.

A trajectory is a frozen value. Each step returns the next one, and `context.draft` keeps the
latest, which is stored however the run ends.

Where spending is limited, the cost of the answer is set aside before each step that spends: before
a decision for the reports so far, before a dispatch also for the reports to come. So the search
can never spend what the answer needs.
"""

import asyncio
import hashlib
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

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


@dataclass(frozen=True, slots=True)
class FactorizedSearch:
    """Answers questions with three roles that share nothing but reports. One instance serves any
    number of concurrent questions.
    """

    delegator: Delegator
    executor: Executes
    answerer: Answerer | None
    """None for a search that ends with the delegator's last turn and writes no answer."""
    max_rounds: int = 4
    """Max decisions of the delegator (T in TBSS 4.1)."""
    require_evidence: bool = True
    """Without a report that carries evidence, return `NOT_FOUND` instead of letting the answerer
    guess.
    """
    early_dispatch: bool = True
    """Start a sub-query as soon as it is written, before the block is complete; ignored in runs
    with a budget, which must not pay for guesses.
    """
    topology: TopologyName = "factorized"
    """Recorded in the trajectories."""
    width: int | None = None
    """Max executors at a time; None for no limit."""

    def run(self, question: str, context: RunContext) -> Coroutine[Any, Any, Trajectory]:
        """Answer `question`.

        An executor that fails counts as one that found nothing, and a delegator whose output cannot
        be parsed as one that stopped; `context.failures` has their errors. Raises `UpstreamError`
        if the delegator or the answerer fails, `OutOfTime` if the deadline passes, and
        `BudgetExhausted` if the budget runs out before anything is found.
        """
        delegation = self.delegator.open(question)
        opened = Trajectory("", "rounds_exhausted", delegation=delegation, topology=self.topology)
        return self.proceed(question, opened, context)

    async def again(self, question: str, recorded: Trajectory, context: RunContext) -> Trajectory:
        """Replay a recorded trajectory with this search's executor.

        The recorded rounds stand as long as all reports of a round are unchanged. From the first
        round whose reports differ, the search continues live. Raises what `run` raises.
        """
        executions: tuple[Execution, ...] = ()
        for number in range(len(recorded.rounds)):
            block = recorded.block(number)
            sub_queries = [execution.sub_query for execution in block]
            async with dispatching(self.executor, number + 1, len(executions), context) as work:
                replayed = await work.run(sub_queries)

            if [execution.report for execution in replayed] != [old.report for old in block]:
                rest = recorded.executions[len(executions) :]
                changed = replace(recorded, executions=(*executions, *rest))
                return await self.proceed(
                    question, self.instead(changed, number, replayed), context
                )
            executions += tuple(replayed)
        return replace(recorded, executions=executions)

    def instead(
        self, recorded: Trajectory, number: int, executions: Sequence[Execution]
    ) -> Trajectory:
        """Return `recorded` up to round `number` (from 0), with `executions` as that round's."""
        before = recorded.before(number)
        assert before.delegation is not None
        return self._inform(before, executions, self.delegator.over_limit(before.delegation))

    async def proceed(
        self, question: str, trajectory: Trajectory, context: RunContext
    ) -> Trajectory:
        """Continue a trajectory whose delegator has just been shown the question or reports.
        Raises what `run` raises.
        """
        try:
            for number in range(len(trajectory.rounds) + 1, self.max_rounds + 1):
                async with dispatching(
                    self.executor,
                    number,
                    len(trajectory.executions),
                    context,
                    self.width,
                ) as work:
                    decision, trajectory = await self._decide(question, trajectory, work, context)
                    if not isinstance(decision, Dispatch):
                        trajectory = self._stopped(decision, trajectory, context)
                        break
                    executions = await self._dispatch(
                        question,
                        trajectory,
                        decision,
                        work,
                        context,
                    )
                trajectory = self._inform(trajectory, executions, decision.over_limit)
                context.draft.result = trajectory
                if trajectory.outcome != "rounds_exhausted":
                    break
        except TimeoutError:
            trajectory = replace(trajectory, outcome="time_exhausted")
        except BudgetExhausted:
            trajectory = replace(trajectory, outcome="budget_exhausted")
        if self.answerer is None:
            return trajectory
        return await self._answer(self.answerer, question, trajectory, context)

    async def _decide(
        self,
        question: str,
        trajectory: Trajectory,
        work: Dispatching,
        context: RunContext,
    ) -> tuple[Decision, Trajectory]:
        """Ask the delegator for its next decision. `work` starts certain sub-queries early."""
        assert trajectory.delegation is not None
        await self._reserve_for_answer(question, trajectory, (), context)
        context.on_event(RoundStarted(len(trajectory.rounds) + 1))
        early = work if self.early_dispatch and not context.ledger.budgeted else None
        async with asyncio.timeout_at(context.search_deadline):
            try:
                decision, conversation = await self.delegator.decide(
                    trajectory.delegation, context.ledger, early
                )
            except ContextTooLong:
                if not trajectory.executions:
                    raise
                return Stop(), trajectory  # reports fill its context, so they have to suffice
        trajectory = replace(trajectory, delegation=conversation)
        context.draft.result = trajectory
        return decision, trajectory

    async def _dispatch(
        self,
        question: str,
        trajectory: Trajectory,
        decision: Dispatch,
        work: Dispatching,
        context: RunContext,
    ) -> list[Execution]:
        """Let executors work on the sub-queries of a decision."""
        await self._reserve_for_answer(question, trajectory, decision.sub_queries, context)
        return await work.run(decision.sub_queries, decision.managers)

    def _inform(
        self, trajectory: Trajectory, executions: Sequence[Execution], over_limit: Sequence[str]
    ) -> Trajectory:
        """Return the trajectory with another round, whose reports the delegator is shown."""
        assert trajectory.delegation is not None
        ends = {execution.outcome for execution in executions}
        outcome = trajectory.outcome
        if "budget_exhausted" in ends:
            outcome = "budget_exhausted"
        elif "timed_out" in ends:
            outcome = "time_exhausted"
        return replace(
            trajectory,
            outcome=outcome,
            executions=(*trajectory.executions, *executions),
            rounds=(*trajectory.rounds, len(executions)),
            messages_before_reports=(
                *trajectory.messages_before_reports,
                len(trajectory.delegation.messages),
            ),
            delegation=self.delegator.inform(trajectory.delegation, executions, over_limit),
        )

    def _stopped(
        self, decision: Decision, trajectory: Trajectory, context: RunContext
    ) -> Trajectory:
        """Return the trajectory after a decision that dispatches nothing."""
        if trajectory.executions:
            return replace(trajectory, outcome="answered")
        if isinstance(decision, Malformed):
            context.failures[None] = self.delegator.role.malformed()
        return replace(trajectory, outcome="no_search")

    async def _reserve_for_answer(
        self,
        question: str,
        trajectory: Trajectory,
        coming: Sequence[str],
        context: RunContext,
    ) -> None:
        """Set aside the worst-case cost of an answer from the reports so far and from those on the
        sub-queries `coming`. Raises `BudgetExhausted`.
        """
        if not context.ledger.limited or self.answerer is None:
            return
        pairs = [(execution.sub_query, execution.report) for execution in trajectory.executions]
        pairs += [(sub_query, NO_EVIDENCE) for sub_query in coming]
        coming_tokens = len(coming) * self.executor.report_tokens
        # While there is no evidence, assume a short answer, which leaves more for the search.
        reserve = partial(
            self.answerer.role.reserve_for_answer,
            self.answerer.messages(question, pairs),
            ledger=context.ledger,
            shortest=not any(report.evidence for _, report in pairs),
        )
        async with asyncio.timeout_at(context.search_deadline):
            if not trajectory.rounds and not coming:
                # Refuse a budget that cannot hold a decision, a search, a report and an answer
                # before anything is spent.
                searching = await self.executor.role(context).min_cost("", turns=2)
                searching += await self.delegator.role.min_cost(question)
                await reserve(0, extra=searching)
            await reserve(coming_tokens)

    async def _answer(
        self,
        answerer: Answerer,
        question: str,
        trajectory: Trajectory,
        context: RunContext,
    ) -> Trajectory:
        """Let the answerer write, or return `NOT_FOUND` where there is nothing to answer from."""
        grounds = any(map(context.reporting.is_grounds, trajectory.executions))
        if self.require_evidence and not grounds:
            context.raise_without_evidence(trajectory.outcome)
            outcome: AnswerOutcome = "not_found"
            if trajectory.outcome == "no_search":
                outcome = "no_search"
            return replace(trajectory, answer=NOT_FOUND, outcome=outcome)
        try:
            async with asyncio.timeout_at(context.deadline):
                answer, answering = await answerer.answer(
                    question, trajectory.executions, context.ledger
                )
        except TimeoutError:
            raise OutOfTime(
                "Time ran out before the answer was written; allow a longer deadline."
            ) from None
        if not without_thinking(answering.outputs[-1].text).strip():
            context.failures[None] = answerer.role.malformed()
        return replace(trajectory, answering=answering).answered(answer)


class Loop(Protocol):
    """A search that answers questions."""

    async def run(self, question: str, context: RunContext) -> Trajectory:
        """Answer `question`. Raises `UpstreamError`, `OutOfTime` and `BudgetExhausted`."""


@dataclass(frozen=True, slots=True)
class Topology:
    """A loop with the roles that work in it."""

    loop: Loop
    roles: Mapping[Any, Role]
    """By name, managers as `managers.NAME`; without the executor's further versions."""


def settings_of(roles: Mapping[Any, Role]) -> dict[str, RoleSetting]:
    """Return the models and prompt hashes of roles, for the trace."""
    return {
        name: RoleSetting(role.model.name, hashlib.sha256(role.system.encode()).hexdigest())
        for name, role in roles.items()
    }
