"""Without factorization: one model plans, searches, reads and answers, or answers from what it knows (TBSS 4.1)."""

import asyncio

from router import prompts
from router.agent import SINGLE_AGENT, Agent, AgentWork
from router.amount import NOTHING
from router.answer_text import parse_answer
from router.context import RunContext
from router.errors import BudgetExhausted, ContextTooLong, OutOfTime
from router.executor import ExecutorLimits
from router.model import Message
from router.retrieval import Retriever
from router.role import Role
from router.trajectory import NOT_FOUND, AnswerOutcome, Trajectory

_FRAME_TOKENS = 64
"""What a search adds to the context when all its passages have given way, at most."""


class SingleAgent:
    """The reference configuration "Direct Tool" (TBSS 4.1), or, without a retriever, "no retrieval" (TBSS, app. A).

    The paper does not say what its single agent may spend. Here it has what all roles of the factorized run have in
    all, in one context: see `single_agent_limits`.
    """

    def __init__(
        self, role: Role, retriever: Retriever | None, limits: ExecutorLimits, *, require_evidence: bool = True
    ) -> None:
        """`require_evidence`: as for `Search`; where no passage was found, the answer is `NOT_FOUND`. Without a
        retriever, nothing is required.
        """
        self._agent = Agent(role, retriever, limits, SINGLE_AGENT)
        self._searches, self._require_evidence = retriever is not None, require_evidence and retriever is not None

    async def run(self, question: str, context: RunContext) -> Trajectory:
        """Answer `question`. What ends the search early, be it time, budget or a context that is full, leaves one turn
        to answer from what was found. Raises `UpstreamError`, also of the retriever, `OutOfTime` and `BudgetExhausted`;
        of a model that cannot be understood `context.failures` tells.
        """
        work = AgentWork(self._agent.role.opening(prompts.request(question)), SINGLE_AGENT)
        outcome: AnswerOutcome = "rounds_exhausted"
        try:
            async with asyncio.timeout_at(context.search_deadline):
                while self._agent.goes_on(work):
                    await self._hold(work, context)
                    await self._agent.turn(work, context)
                    context.draft.result = self._found(work, outcome)
            within = len(work.searches) < self._agent.limits.max_searches or not self._searches
            if work.answer is not None and within:
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

    async def _answer(self, work: AgentWork, outcome: AnswerOutcome, context: RunContext) -> Trajectory:
        """The answer that it gave, or gives now that it is asked for outright."""
        if self._require_evidence and not any(search.passages for search in work.searches):
            if outcome == "time_exhausted":
                raise OutOfTime("Time ran out before anything was found; allow a longer deadline or a faster model.")
            if outcome == "budget_exhausted" and context.ledger.refusal is not None:
                raise context.ledger.refusal
            if work.gave_up and not work.searches:
                context.failures[None] = self._agent.role.malformed()
            return self._found(work, "no_search" if outcome == "no_search" else "not_found", NOT_FOUND)
        answer = await self._outright(work, context) if work.answer is None else work.answer
        return self._found(work, outcome).answered(answer)

    async def _outright(self, work: AgentWork, context: RunContext) -> str:
        """Its answer, now; empty where its context has no room even for that."""
        work.shown.close(prompts.LAST_ANSWER)
        try:
            async with asyncio.timeout_at(context.deadline):
                await self._release(work, context)
                output = await self._agent.ask(work, context, until=context.deadline)
        except TimeoutError:
            raise OutOfTime("Time ran out before the answer was written; allow a longer deadline.") from None
        except ContextTooLong:
            return ""
        answer = "" if "<search" in output.text.casefold() else parse_answer(output.text)
        if not answer and not work.searches:
            context.failures[None] = self._agent.role.malformed()
        return answer

    async def _hold(self, work: AgentWork, context: RunContext) -> None:
        """Keep back what answering outright may cost after one more turn."""
        if context.ledger.limited:
            role = self._agent.role
            last = (*work.shown.messages, Message("user", prompts.LAST_ANSWER))
            nothing_yet = not any(search.passages for search in work.searches)
            coming = role.sampling.max_tokens + _FRAME_TOKENS
            await role.hold(last, coming, context.ledger, least=nothing_yet)

    async def _release(self, work: AgentWork, context: RunContext) -> None:
        """Let the answer have what was kept back for it; passages give way until that suffices."""
        if not context.ledger.limited:
            return
        while True:
            try:
                bare = not any(search.shown for search in work.searches)
                await self._agent.role.hold(work.shown.messages, 0, context.ledger, least=bare)
                break
            except BudgetExhausted:
                if not work.shown.drop():
                    raise
        await context.ledger.hold(NOTHING)

    def _found(self, work: AgentWork, outcome: AnswerOutcome, answer: str = "") -> Trajectory:
        return Trajectory(
            answer,
            outcome,
            delegation=work.conversation,
            topology="single_agent" if self._searches else "no_retrieval",
            searches=work.searches,
        )


def single_agent_limits(executor: ExecutorLimits, max_rounds: int, max_sub_queries: int) -> ExecutorLimits:
    """What the factorized run has in all: of searches, those of every executor that can be dispatched, and of turns,
    the delegator's decisions with those of its executors.
    """
    dispatched = max_rounds * max_sub_queries
    return ExecutorLimits(
        max_turns=max_rounds + dispatched * executor.max_turns,
        max_searches=dispatched * executor.max_searches,
        top_k=executor.top_k,
        passage_chars=executor.passage_chars,
    )
