"""The search loop: decide, dispatch, inform, until the evidence suffices; then answer (TBSS 3.1).

A round has three steps:

    decide      the delegator writes sub-queries, or stops
    dispatch    executors work on the sub-queries in parallel, each in a fresh context
    inform      the delegator is shown their reports, and nothing else

The rounds end when the delegator stops, after `max_rounds`, or when time or budget run out. Then
the answerer writes the answer from the question and the reports alone.

A trajectory is a frozen value. Each step returns an extended trajectory. After each decision and
each round, it is kept in `context.draft`, so that even a failed run is stored with its work so far.

If the run has a budget, or its tenant a quota, the cost of the answer is reserved before each step
that spends tokens. Before a decision, the reservation covers an answer from the reports so far;
before a dispatch, also from the reports to come. While there is no evidence, it covers only the
shortest answer. So the search cannot spend the tokens that the answer needs.

A resumed run goes through the same steps. Turns and searches that the interrupted run recorded are
taken from the record (`Ledger.turn_before`), and not made again.
"""

import asyncio
import hashlib
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from router.calls import Role
from router.errors import BudgetExhausted, ContextTooLong, OutOfTime
from router.frozen import Frozen
from router.protocol import NO_EVIDENCE
from router.protocol.decision import Decision, Dispatch, Stop
from router.protocol.tags import Malformed
from router.search.answer_stream import AnswerStream
from router.search.answerer import Answerer
from router.search.context import RunContext
from router.search.delegator import Delegator
from router.search.dispatch import Dispatching, dispatching
from router.search.executor import Executes
from router.trace import Execution, Trajectory
from router.trace.run import RoleSetting
from router.trace.values import AnswerDelta, RoundStarted, TopologyName


class FactorizedSearch(Frozen):
    """The search loop with its three roles: delegator, executor and answerer. An executor gets only
    its sub-query. The delegator and the answerer get only the executor's report, and nothing else
    of its work. One instance serves any number of concurrent questions.
    """

    delegator: Delegator
    executor: Executes
    answerer: Answerer | None
    """Writes the answer. None for a manager's nested search, because it ends without an answer."""
    max_rounds: int = 4
    """Max decisions of the delegator (T in TBSS 4.1)."""
    require_evidence: bool = True
    """True if a run without evidence ends with a fixed answer that says so. False if the answerer
    is asked even then.
    """
    early_dispatch: bool = True
    """Whether work on a sub-query starts while the delegator still writes further sub-queries.
    Ignored in runs with a budget, because the work is wasted if the delegator's complete turn lacks
    the sub-query.
    """
    topology: TopologyName = "factorized"
    """Name of the topology, for the recorded trajectories."""
    width: int | None = None
    """Max executors at a time; None for no limit. Only the search inside a manager has a limit."""

    def run(self, question: str, context: RunContext) -> Coroutine[Any, Any, Trajectory]:
        """Answer `question`. Return the trajectory: the record of all rounds, with the answer.

        If an executor fails, the search continues as if it had found nothing. If the delegator's
        output cannot be parsed, no further round begins, as if the delegator had stopped. Errors of
        executors, and malformed output in the first round, are kept in `context.failures`.

        Raises `UpstreamError` if the delegator or the answerer fails; `OutOfTime` if the deadline
        passes before the answer is written, or if the search deadline passes before anything is
        found; `BudgetExhausted` if a budget or quota has no room for the answer, or runs out before
        anything is found; and `StoreFailed` if the run cannot be recorded.
        """
        delegation = self.delegator.open(question)
        # The outcome stays "rounds_exhausted" unless something else ends the search.
        opened = Trajectory("", "rounds_exhausted", delegation=delegation, topology=self.topology)
        return self.proceed(question, opened, context)

    async def again(self, question: str, recorded: Trajectory, context: RunContext) -> Trajectory:
        """Replay a recorded trajectory with this search's executor, such as a new version on shadow
        traffic; return the new trajectory.

        Each recorded round's sub-queries are worked on again. While all new reports of a round
        equal the recorded ones, the recorded decisions are reused. From the first round with a
        different report, the search continues with new decisions. Raises the errors of `run`.
        """
        executions: tuple[Execution, ...] = ()
        for number in range(len(recorded.rounds)):
            block = recorded.block(number)
            sub_queries = [execution.sub_query for execution in block]
            async with dispatching(self.executor, number + 1, len(executions), context) as work:
                replayed = await work.run(sub_queries)

            if [execution.report for execution in replayed] != [old.report for old in block]:
                changed = replace(recorded, executions=executions)
                return await self.proceed(
                    question, self.with_reports(changed, number, replayed), context
                )
            executions += tuple(replayed)
        return replace(recorded, executions=executions)

    def with_reports(
        self, recorded: Trajectory, number: int, executions: Sequence[Execution]
    ) -> Trajectory:
        """Return `recorded` up to and including round `number` (from 0), with that round's
        executions replaced by `executions`.
        """
        before = recorded.before(number)
        assert before.delegation is not None
        return self._inform(before, executions, self.delegator.over_limit(before.delegation))

    async def proceed(
        self, question: str, trajectory: Trajectory, context: RunContext
    ) -> Trajectory:
        """Continue a trajectory at the delegator's next decision, and return it complete. The
        delegator's conversation must end with the question or with reports. Raises the errors of
        `run`.
        """
        try:
            for number in range(len(trajectory.rounds) + 1, self.max_rounds + 1):
                if trajectory.outcome != "rounds_exhausted":
                    break  # the executors reached the deadline, or used up the budget
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
                    await self._reserve_for_answer(
                        question, trajectory, decision.sub_queries, context
                    )
                    executions = await work.run(decision.sub_queries, decision.managers)
                trajectory = self._inform(trajectory, executions, decision.over_limit)
                context.draft.result = trajectory
        except TimeoutError:
            trajectory = replace(trajectory, outcome="time_exhausted")
        except BudgetExhausted:
            trajectory = replace(trajectory, outcome="budget_exhausted")
        if self.answerer is None:
            return trajectory
        answerer = self.answerer.styled(context.style)
        return await self._answer(answerer, question, trajectory, context)

    async def _decide(
        self,
        question: str,
        trajectory: Trajectory,
        work: Dispatching,
        context: RunContext,
    ) -> tuple[Decision, Trajectory]:
        """Ask the delegator for its next decision. `work`: starts executors on sub-queries while
        the delegator is still writing, if early dispatch is allowed.
        """
        assert trajectory.delegation is not None
        await self._reserve_for_answer(question, trajectory, (), context)
        context.on_event(RoundStarted(len(trajectory.rounds) + 1))
        # A tenant's quota limits a run too, but does not forbid early work.
        early = work if self.early_dispatch and not context.ledger.budgeted else None
        async with asyncio.timeout_at(context.search_deadline):
            try:
                decision, conversation = await self.delegator.decide(
                    trajectory.delegation, context.ledger, early
                )
            except ContextTooLong:
                if not trajectory.executions:
                    raise
                return Stop(), trajectory  # the reports fill the context, so answer from them
        trajectory = replace(trajectory, delegation=conversation)
        context.draft.result = trajectory
        return decision, trajectory

    def _inform(
        self, trajectory: Trajectory, executions: Sequence[Execution], over_limit: Sequence[str]
    ) -> Trajectory:
        """Return the trajectory with another round of `executions`. The delegator's conversation is
        extended by their reports.
        """
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
        """Return the trajectory with the outcome of a decision that dispatches nothing. `_answer`
        replaces the outcome if there is no evidence.
        """
        if trajectory.executions:
            return replace(trajectory, outcome="answered")
        if isinstance(decision, Malformed):
            context.failures[None] = self.delegator.role.malformed()  # None: no sub-query failed
        return replace(trajectory, outcome="no_search")

    async def _reserve_for_answer(
        self,
        question: str,
        trajectory: Trajectory,
        coming: Sequence[str],
        context: RunContext,
    ) -> None:
        """Reserve the worst-case cost of an answer from the reports so far and from the future
        reports on the sub-queries `coming`. While there is no evidence, reserve only the cost of
        the shortest answer, which leaves more for the search. Do nothing if neither a budget nor a
        quota limits the run, or if there is no answerer. Raises `BudgetExhausted` if the budget is
        too small.
        """
        if not context.ledger.limited or self.answerer is None:
            return
        pairs = [(execution.sub_query, execution.report) for execution in trajectory.executions]
        pairs += [(sub_query, NO_EVIDENCE) for sub_query in coming]
        coming_tokens = len(coming) * self.executor.report_tokens
        answerer = self.answerer.styled(context.style)
        reserve = partial(
            answerer.role.reserve_for_answer,
            answerer.messages(question, pairs),
            ledger=context.ledger,
            shortest=not any(report.evidence for _, report in pairs),
        )
        async with asyncio.timeout_at(context.search_deadline):
            if not trajectory.rounds and not coming:
                # Before anything is spent, refuse a budget that is too small for one decision, one
                # search, one report (two turns of an executor) and the answer
                searching = await self.executor.role(context).min_cost("", turns=2)
                searching += await self.delegator.role.min_cost(question)
                await reserve(0, extra=searching)
            await reserve(coming_tokens)  # in place of the earlier reservation

    async def _answer(
        self,
        answerer: Answerer,
        question: str,
        trajectory: Trajectory,
        context: RunContext,
    ) -> Trajectory:
        """Let the answerer write the answer. If there is no evidence to answer from, return the
        trajectory with an answer that says so.
        """
        grounds = any(map(context.reporting.is_grounds, trajectory.executions))
        if self.require_evidence and not grounds:
            context.raise_without_evidence(trajectory.outcome)
            if trajectory.outcome != "no_search":
                trajectory = replace(trajectory, outcome="not_found")
            return trajectory.answered("")
        # `kept`: number of characters of the answer so far that remain valid
        stream = AnswerStream(lambda kept, text: context.on_event(AnswerDelta(kept, text)))
        on_text = stream.attempt if context.streamed else None
        try:
            async with asyncio.timeout_at(context.deadline):
                answer, answering = await answerer.answer(
                    question, trajectory.executions, context.ledger, on_text
                )
        except TimeoutError:
            raise OutOfTime(
                "Time ran out before the answer was written; raise --timeout or server.timeout_s."
            ) from None
        trajectory = replace(trajectory, answering=answering)
        if isinstance(answer, Malformed):
            context.failures[None] = answerer.role.malformed()
            return trajectory.answered("")
        answered = trajectory.answered(answer)
        if context.streamed:
            stream.show(answered.answer, last=True)
        return answered


class Loop(Protocol):
    """Protocol of a search that answers questions, such as `FactorizedSearch`."""

    async def run(self, question: str, context: RunContext) -> Trajectory:
        """Answer `question`; return the trajectory. Raises `UpstreamError`, `OutOfTime` and
        `BudgetExhausted`.
        """


class Topology(Frozen):
    """A search loop, together with the roles that it uses."""

    loop: Loop
    roles: Mapping[Any, Role]
    """Roles by name. A manager's role is named `managers.NAME`. The executor's role is that of the
    configured version; roles of other versions are not included.
    """


def settings_of(roles: Mapping[Any, Role]) -> dict[str, RoleSetting]:
    """Return each role's model, and the hash of its system prompt, for the stored run."""
    return {
        name: RoleSetting(role.model.name, hashlib.sha256(role.system.encode()).hexdigest())
        for name, role in roles.items()
    }
