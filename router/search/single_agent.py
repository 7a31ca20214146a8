"""A single model that searches, reads and answers: the baselines (TBSS 4.1)."""

import asyncio
from dataclasses import replace

from router.amount import NOTHING
from router.calls import Role
from router.errors import BudgetExhausted, ContextTooLong, OutOfTime
from router.models import Message
from router.protocol import prompts
from router.protocol.turns import parse_agent_turn, parse_answer
from router.search.agent import Agent, ContextWindow, ExecutorLimits, Form
from router.search.context import RunContext
from router.search.retrieval import Retriever
from router.trace import Trajectory
from router.trace.values import NOT_FOUND, AnswerOutcome

SINGLE_AGENT = Form(
    parse_agent_turn,
    ("</search>", "</answer>"),
    prompts.agent_documents,
    prompts.CORRECT_AGENT,
    prompts.LAST_ANSWER,
)
_FRAME_TOKENS = 64
"""Max tokens that a search adds to the context when all its passages have been dropped."""


class SingleAgent:
    """The reference configuration "Direct Tool" (TBSS 4.1), or, without a retriever, "no retrieval"
    (TBSS, app. A).

    The paper does not state the budget of its single agent. Here it has that of all roles of a
    factorized run together, in one context: see `single_agent_limits`.
    """

    def __init__(
        self,
        role: Role,
        retriever: Retriever | None,
        limits: ExecutorLimits,
        form: Form = SINGLE_AGENT,
        *,
        require_evidence: bool = True,
    ) -> None:
        """`require_evidence`: return `NOT_FOUND` if no passage was found, as in `FactorizedSearch`;
        ignored without a retriever.
        """
        self._agent = Agent(role, retriever, limits, form)
        self._searches = retriever is not None
        self._require_evidence = require_evidence and retriever is not None

    async def run(self, question: str, context: RunContext) -> Trajectory:
        """Answer `question`.

        If time, budget or context run out during the search, one turn is left to answer from what
        was found. Raises `UpstreamError` (also for the retriever), `OutOfTime` and
        `BudgetExhausted`. `context.failures` has the error of a model whose output cannot be
        parsed.
        """
        work = self._agent.begin(question)
        outcome: AnswerOutcome = "rounds_exhausted"
        try:
            async with asyncio.timeout_at(context.search_deadline):
                while self._agent.goes_on(work):
                    await self._reserve_for_answer(work, context)
                    await self._agent.turn(work, context)
                    context.draft.result = self._trajectory(work, outcome)
            within = len(work.searches) < self._agent.limits.max_searches or not self._searches
            if work.report is not None and within:
                outcome = "answered"
        except TimeoutError:
            outcome = "time_exhausted"
        except BudgetExhausted:
            outcome = "budget_exhausted"
        except ContextTooLong:
            if not work.searches:
                raise
        if self._searches and not work.searches and outcome in ("answered", "rounds_exhausted"):
            outcome = "no_search"
        return await self._answer(work, outcome, context)

    async def _answer(
        self, work: ContextWindow, outcome: AnswerOutcome, context: RunContext
    ) -> Trajectory:
        """Return the model's answer, or the one it writes when asked for it directly."""
        if self._require_evidence and not any(search.passages for search in work.searches):
            context.raise_without_evidence(outcome)
            if work.gave_up and not work.searches:
                context.failures[None] = self._agent.role.malformed()
            if outcome != "no_search":
                outcome = "not_found"
            return self._trajectory(work, outcome, NOT_FOUND)
        answer = work.report.answer if work.report else await self._outright(work, context)
        return self._trajectory(work, outcome).answered(answer)

    async def _outright(self, work: ContextWindow, context: RunContext) -> str:
        """Ask for the answer now; return an empty one if even that does not fit into the
        context.
        """
        work.close(prompts.LAST_ANSWER)
        try:
            async with asyncio.timeout_at(context.deadline):
                await self._release(work, context)
                output = await self._agent.ask(work, context, until=context.deadline)
        except TimeoutError:
            raise OutOfTime(
                "Time ran out before the answer was written; allow a longer deadline."
            ) from None
        except ContextTooLong:
            return ""
        answer = "" if "<search" in output.text.casefold() else parse_answer(output.text)
        if not answer and not work.searches:
            context.failures[None] = self._agent.role.malformed()
        return answer

    async def _reserve_for_answer(self, work: ContextWindow, context: RunContext) -> None:
        """Set aside the cost of answering directly after one more turn."""
        if context.ledger.limited:
            role = self._agent.role
            last = (*work.messages, Message("user", prompts.LAST_ANSWER))
            nothing_yet = not any(search.passages for search in work.searches)
            await role.reserve_for_answer(
                last, role.sampling.max_tokens + _FRAME_TOKENS, context.ledger, shortest=nothing_yet
            )

    async def _release(self, work: ContextWindow, context: RunContext) -> None:
        """Release what was set aside to the answer. Passages are dropped until it suffices."""
        if not context.ledger.limited:
            return
        while True:
            try:
                bare = not any(search.shown for search in work.searches)
                await self._agent.role.reserve_for_answer(
                    work.messages, 0, context.ledger, shortest=bare
                )
                break
            except BudgetExhausted:
                if not work.drop():
                    raise
        await context.ledger.reserve_for_answer(NOTHING)

    def _trajectory(
        self, work: ContextWindow, outcome: AnswerOutcome, answer: str = ""
    ) -> Trajectory:
        return Trajectory(
            answer,
            outcome,
            delegation=work.conversation,
            topology="single_agent" if self._searches else "no_retrieval",
            searches=tuple(work.searches),
        )


def single_agent_limits(
    executor: ExecutorLimits, max_rounds: int, max_sub_queries: int
) -> ExecutorLimits:
    """Return the limits of all executors of a factorized run together: the searches of every
    executor that may be dispatched, and the turns of the delegator and its executors.
    """
    dispatched = max_rounds * max_sub_queries
    return replace(
        executor,
        max_turns=max_rounds + dispatched * executor.max_turns,
        max_searches=dispatched * executor.max_searches,
    )
