"""An off-the-shelf searcher as executor, spoken to in its own protocol (TBSS 4.1; Search-R1, arXiv 2503.09516)."""

import asyncio

from router import prompts
from router.agent import SEARCH_R1, Agent, AgentWork
from router.citation import cite_answer
from router.context import RunContext
from router.errors import BudgetExhausted, UpstreamError
from router.execution import Execution, ExecutionOutcome
from router.execution_turn import MOST_POINTS
from router.executor import ExecutorLimits
from router.model import Message
from router.report import NO_EVIDENCE, Report
from router.retrieval import Retriever
from router.role import Role


class Searcher:
    """Is to a search what its executor is; its model was trained to plan, search and answer alone.

    It writes one turn: `<think>…</think>`, `<search>…</search>`, then `<information>…</information>` is put in and it
    goes on, until `<answer>…</answer>`. It may answer without a search, as it was trained to. It writes no evidence, so
    its report has the sentences of its passages that hold the answer; there may be none.
    """

    def __init__(self, role: Role, retriever: Retriever, limits: ExecutorLimits) -> None:
        """`role`: its prompt is no system prompt, but what the user's turn begins with."""
        self._agent = Agent(role, retriever, limits, SEARCH_R1)

    @property
    def report_tokens(self) -> int:
        """What a report has at most: its answer, and sentences whose characters are counted as a token each."""
        return self._agent.role.sampling.max_tokens + MOST_POINTS * self._agent.limits.report_chars

    def role(self, _context: RunContext) -> Role:
        """Its role, in any run."""
        return self._agent.role

    async def run(self, sub_query: str, index: int, context: RunContext) -> Execution:
        """As `Executor.run`: nothing that goes wrong is raised."""
        role = self._agent.role
        opening = (Message("user", prompts.searcher_request(role.system, sub_query)),)
        work = AgentWork(opening, SEARCH_R1)
        outcome: ExecutionOutcome = "no_report"
        try:
            async with asyncio.timeout_at(context.search_deadline):
                while self._agent.goes_on(work):
                    await self._agent.turn(work, context, index)
        except TimeoutError:
            outcome = "timed_out"
        except BudgetExhausted:
            outcome = "budget_exhausted"
        except UpstreamError as error:
            outcome = "model_failed" if error.role else "retrieval_failed"
            context.failures[index] = error
        report = NO_EVIDENCE
        if work.answer is not None:
            outcome, report = "reported", self._report(work.answer, work)
        elif outcome == "no_report" and not work.searches:
            context.failures[index] = role.malformed()
        version = role.executor_version or ""
        return Execution(sub_query, report, outcome, work.searches, work.conversation, version)

    def _report(self, answer: str, work: AgentWork) -> Report:
        shown = (passage for search in work.searches for passage in search.shown)
        points = dict.fromkeys(citation.quote for citation in cite_answer(answer, shown))
        return Report(answer, tuple(points)[:MOST_POINTS]).within(self._agent.limits.report_chars)
