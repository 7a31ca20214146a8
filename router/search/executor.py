"""The executor: searches for one sub-query and reports (TBSS 3.1)."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from router.background import in_worker
from router.calls import Role
from router.errors import BudgetExhausted, UpstreamError
from router.protocol import NO_EVIDENCE, Report, parse_turn, prompts
from router.protocol.turns import MAX_POINTS, parse_agent_turn
from router.search.agent import Agent, ExecutorLimits, Form
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
    """Anything that works on sub-queries: an executor, managers, a cache."""

    @property
    def report_tokens(self) -> int:
        """Max tokens of a report."""

    def role(self, context: RunContext) -> Role:
        """Return the executor's role, for calls outside of its conversations."""

    async def run(
        self,
        sub_query: str,
        index: int,
        context: RunContext,
    ) -> Execution:
        """See `Executor.run`."""


class Executor:
    """Works on one sub-query at a time, in a fresh context. One instance serves any number of
    concurrent runs.

    With the form `SEARCH_R1` its model was trained to plan, search and answer alone. It may answer
    without a search and writes no evidence, so its report quotes the sentences of its passages that
    hold the answer, if any.
    """

    def __init__(
        self,
        role: Role,
        retriever: Retriever | None,
        limits: ExecutorLimits,
        form: Form = EXECUTOR,
        *,
        forms: Mapping[str, Agent] = {},
        tools: Tools | None = None,
    ) -> None:
        """`retriever`: None for an executor that has only tools. `forms`: agents for other forms of
        reports, by the name in `Reporting.form`; a form that is missing here is served by the
        default agent.
        """
        self._agent = Agent(role, retriever, limits, form, tools)
        self._forms = forms

    @property
    def report_tokens(self) -> int:
        """Max tokens of a report; quoted sentences count one token per character."""
        agent = self._agent
        quoted = MAX_POINTS * agent.limits.report_chars if agent.form.raw else 0
        return agent.role.sampling.max_tokens + quoted

    def role(self, _context: RunContext) -> Role:
        """Return its role, which is the same in every run."""
        return self._agent.role

    async def run(
        self,
        sub_query: str,
        index: int,
        context: RunContext,
        *,
        instead: bool = False,
    ) -> Execution:
        """Search and report.

        Upstream failures and an exhausted budget are not raised: the outcome names them,
        `context.failures` has the error, and the report is neutral. `instead`: whether it replaces
        another version.
        """
        agent = self._forms.get(context.reporting.form, self._agent)
        work = agent.begin(sub_query)
        outcome: ExecutionOutcome = "no_report"
        try:
            async with context.searching():
                while agent.goes_on(work):
                    await agent.turn(work, context, index, "fallback" if instead else "first")
        except TimeoutError:
            outcome = "timed_out"
        except BudgetExhausted:
            outcome = "budget_exhausted"
        except UpstreamError as error:
            outcome = "model_failed" if error.role else "retrieval_failed"
            context.failures[index] = error

        report = NO_EVIDENCE
        if work.report is not None:
            report = work.report
            outcome = "escalated" if report.escalate_to else "reported"
            if agent.form.raw:
                report = await in_worker(_cited, report, tuple(work.searches))
            report = report.within(agent.limits.report_chars)
        elif outcome == "no_report" and not work.searches:
            # It never searched, so this is no honest "nothing found".
            context.failures[index] = agent.role.malformed()
        version = agent.role.executor_version or ""
        return Execution(
            sub_query,
            report,
            outcome,
            tuple(work.searches),
            work.conversation,
            version,
        )


def _cited(report: Report, searches: Iterable[SearchRecord]) -> Report:
    """Return a report without tags, with the passage sentences that it rests on as evidence."""
    shown = (passage for search in searches for passage in search.shown)
    points = dict.fromkeys(citation.quote for citation in cite_answer(report.answer, shown))
    return Report(report.answer, tuple(points)[:MAX_POINTS])
