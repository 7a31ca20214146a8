"""The executor: searches for one sub-query and reports (TBSS 3.1)."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from router.background import in_worker
from router.calls import Role
from router.errors import BudgetExhausted, UpstreamError
from router.protocol import NO_EVIDENCE, Report, parse_turn, prompts
from router.protocol.turns import MOST_POINTS, parse_agent_turn
from router.search.agent import Agent, ContextWindow, ExecutorLimits, Form
from router.search.context import RunContext
from router.search.retrieval import Retriever
from router.search.tools import Tools
from router.trace import Execution
from router.trace.citation import cite_answer
from router.trace.values import ExecutionOutcome, SearchRecord

STOP = ("</search>", "</evidence>")
EXECUTOR = Form(
    parse_turn,
    STOP,
    prompts.documents,
    prompts.CORRECT_REPORT,
    prompts.LAST_SEARCH,
    prompts.CORRECT_SEARCH,
    persists=True,
)
SEARCH_R1 = Form(
    parse_agent_turn,
    ("</search>", "</answer>"),
    prompts.information,
    prompts.CORRECT_SEARCHER,
    prompts.LAST_SEARCHER,
    raw=True,
)


class Executes(Protocol):
    """Works on sub-queries: an executor, or one of several."""

    @property
    def report_tokens(self) -> int:
        """The most tokens of a report."""

    def role(self, context: RunContext) -> Role:
        """The role in a run whose conversations are not led here."""

    async def run(self, sub_query: str, index: int, context: RunContext) -> Execution:
        """See `Executor.run`."""


@dataclass(slots=True)
class Unfinished:
    """An executor's work that did not come to its report, for another run of the same version
    to go on with.
    """

    work: ContextWindow | None = None

    @property
    def turns(self) -> int:
        """The number of turns that the model has written."""
        return len(self.work.outputs) if self.work else 0

    @property
    def searches(self) -> Sequence[SearchRecord]:
        """Searches that have been done."""
        return self.work.searches if self.work else ()


class Executor:
    """Works on one sub-query at a time in a context that holds nothing else; any number of runs at
    once.

    With the form `SEARCH_R1` its model was trained to plan, search and answer alone. That one may
    answer without a search and writes no evidence: its report has the sentences of its passages
    that hold the answer, if any do.
    """

    def __init__(
        self,
        role: Role,
        retriever: Retriever | None,
        limits: ExecutorLimits,
        form: Form = EXECUTOR,
        *,
        tabular: Agent | None = None,
        tools: Tools | None = None,
    ) -> None:
        """`retriever`: None where tools are all that it has. `tabular`: with another role and form,
        for the work on tables; None where there is none.
        """
        self._agent = Agent(role, retriever, limits, form, tools)
        self._tabular = tabular or self._agent

    @property
    def report_tokens(self) -> int:
        """The most tokens of a report; sentences that are quoted count a token for each
        character.
        """
        agent = self._agent
        return agent.role.sampling.max_tokens + (
            MOST_POINTS * agent.limits.report_chars if agent.form.raw else 0
        )

    def role(self, _context: RunContext) -> Role:
        """Its role, in any run."""
        return self._agent.role

    async def run(
        self,
        sub_query: str,
        index: int,
        context: RunContext,
        unfinished: Unfinished | None = None,
        *,
        instead: bool = False,
    ) -> Execution:
        """Search and report. What goes wrong upstream is not raised, nor that a budget does not
        suffice: the outcome says it, `context.failures` why, and the report is neutral.
        `unfinished`: where to go on, if anything is there, and to leave what has been done, however
        this ends. `instead`: whether it steps in for another version.
        """
        unfinished = unfinished or Unfinished()
        agent = self._tabular if context.tabular else self._agent
        work = unfinished.work = unfinished.work or agent.begin(sub_query)
        outcome: ExecutionOutcome = "no_report"
        try:
            if asyncio.get_running_loop().time() >= context.search_deadline:
                raise TimeoutError  # before a call is opened
            async with asyncio.timeout_at(context.search_deadline):
                while agent.goes_on(work):
                    await agent.turn(work, context, index, "fallback" if instead else "first")
        except TimeoutError:
            outcome = "timed_out"
        except BudgetExhausted:
            outcome = "budget_exhausted"
        except UpstreamError as error:
            outcome = "model_failed" if error.role else "retrieval_failed"
            context.failures[index] = error
        role = agent.role
        report = NO_EVIDENCE
        if work.report is not None:
            outcome = "escalated" if work.report.escalate_to else "reported"
            report = work.report
            if agent.form.raw:
                report = await in_worker(_cited, report, tuple(work.searches))
            report = report.within(agent.limits.report_chars)
        elif outcome == "no_report" and not work.searches:
            # An executor that searched and reports nothing has found nothing.
            context.failures[index] = role.malformed()
        version = role.executor_version or ""
        return Execution(
            sub_query, report, outcome, tuple(work.searches), work.conversation, version
        )


def _cited(report: Report, searches: Iterable[SearchRecord]) -> Report:
    """Return a report without tags with the sentences that it rests on as evidence."""
    shown = (passage for search in searches for passage in search.shown)
    points = dict.fromkeys(citation.quote for citation in cite_answer(report.answer, shown))
    return Report(report.answer, tuple(points)[:MOST_POINTS])
