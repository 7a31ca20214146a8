"""The executor: it searches for the answer to one sub-query, and writes a report (TBSS 3.1)."""

from collections.abc import Mapping
from typing import Protocol

from router.calls import Role
from router.errors import BudgetExhausted, UpstreamError
from router.protocol import NO_EVIDENCE, parse_turn, prompts
from router.search.agent import Agent, ExecutorLimits, Form
from router.search.context import RunContext
from router.search.indexes import Indexes
from router.search.retrieval import IndexRetriever
from router.search.tools import Tools
from router.trace import Execution
from router.trace.values import ExecutionOutcome

STOP = ("</search>", "</evidence>")
EXECUTOR = Form(
    parse_turn,
    STOP,
    prompts.documents,
    prompts.CORRECT_REPORT,
    prompts.LAST_SEARCH,
    prompts.CORRECT_SEARCH,
)


class Executes(Protocol):
    """Protocol of everything that works on a sub-query and returns an `Execution`, the record of
    that work. An executor, managers and a report cache implement it.
    """

    @property
    def report_tokens(self) -> int:
        """Max tokens of a report."""

    def role(self, context: RunContext) -> Role:
        """Return the executor's role, for callers that estimate the cost of an execution, or call
        the executor's model directly.
        """

    async def run(
        self,
        sub_query: str,
        index: int,
        context: RunContext,
    ) -> Execution:
        """See `Executor.run`."""


class Executor:
    """Works on sub-queries, each in a fresh context. One instance serves any number of concurrent
    runs.
    """

    def __init__(
        self,
        role: Role,
        retriever: IndexRetriever | Indexes | None,
        limits: ExecutorLimits,
        *,
        forms: Mapping[str, Agent] = {},
        tools: Tools | None = None,
    ) -> None:
        """`retriever`: the indexes to search; None for an executor that has only tools. `forms`:
        agents that write other forms of reports, by the name in `Reporting.form`. The default agent
        serves all forms without an entry.
        """
        self._agent = Agent(
            role,
            retriever,
            limits,
            EXECUTOR,
            tools,
        )
        self._forms = forms

    @property
    def report_tokens(self) -> int:
        """Max tokens of a report."""
        return self._agent.role.sampling.max_tokens

    def role(self, _context: RunContext) -> Role:
        """Return the executor's role, which is the same in every run."""
        return self._agent.role

    async def run(
        self,
        sub_query: str,
        index: int,
        context: RunContext,
        *,
        instead: bool = False,
    ) -> Execution:
        """Work on `sub_query`, and return the execution with its report. `index`: the number of
        the sub-query in the run.

        Timeouts, failures of a model or of the retriever, and an exhausted budget are not raised.
        Instead, the execution's `outcome` names the cause, its report is `NO_EVIDENCE`, and the
        error of a failure is kept in `context.failures`. `instead`: True if this executor replaces
        an unavailable version. Its own calls are then recorded with the purpose `fallback`.
        """
        agent = self._forms.get(context.reporting.form, self._agent)
        outcome: ExecutionOutcome = "no_report"
        async with agent.session() as session:
            work = agent.begin(sub_query, session)
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
            report = report.within(agent.limits.report_chars)
        elif outcome == "no_report" and not work.searches:
            # The model never searched, so "nothing found" would be wrong: record a failure.
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
