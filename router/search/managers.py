"""Managers, the optional layer between the delegator and the executors, as in sections 3.1 and 3.3
of the paper InfoSeeker.

A manager gets one sub-query of the delegator, called its step. It splits the step into smaller
sub-queries, lets workers (executors) search for them, checks their reports, and writes one report.
The delegator sees only the manager's report, and the manager sees only its step, not the question.
There is exactly one layer of managers, because deeper layers give worse results (appendix A of the
paper WideSeek-R1) and multiply the cost.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from router.background import loop_time
from router.calls import Role
from router.errors import BudgetExhausted, UpstreamError
from router.frozen import Frozen
from router.models import Completion
from router.protocol import NO_EVIDENCE, Report, prompts
from router.protocol.turns import MAX_POINTS, ExecutionTurn, ReportTurn
from router.search.context import ANSWERING_SHARE, Draft, RunContext
from router.search.delegator import Delegator
from router.search.executor import STOP, Executes
from router.search.loop import FactorizedSearch
from router.trace import Conversation, Event, Execution, Trajectory
from router.trace.call import Purpose
from router.trace.values import ExecutionOutcome, SearchDone

_CUT: Mapping[str, ExecutionOutcome] = {
    "time_exhausted": "timed_out",
    "budget_exhausted": "budget_exhausted",
}


class Manager(Frozen):
    """Works on a sub-query with a nested search loop, in a fresh context: the manager's model is
    the delegator of that loop, and workers are its executors. The outer loop uses a manager like an
    executor.
    """

    name: str
    delegator: Delegator
    """The manager's model. It writes the sub-queries for the workers, and at the end the manager's
    report. `Delegator.report` parses this report.
    """
    workers: Executes
    max_rounds: int = 2
    """Max turns of the manager in which it dispatches sub-queries."""
    max_workers: int = 8
    """Max workers at a time."""

    @property
    def report_tokens(self) -> int:
        """Max tokens of a report, whether the manager or a worker writes it."""
        return max(self.delegator.role.sampling.max_tokens, self.workers.report_tokens)

    async def run(self, sub_query: str, index: int, context: RunContext) -> Execution:
        """Work on `sub_query`, and return the execution with the manager's report. `index`: the
        number of the sub-query in the run. Errors are handled as in `Executor.run`. If time or
        budget run out, the report joins the workers' reports so far.
        """
        # The workers are the executors of the nested search, which has no answerer.
        search = FactorizedSearch(
            self.delegator,
            self.workers,
            None,
            max_rounds=self.max_rounds,
            early_dispatch=False,
            width=self.max_workers,
        )
        inner = _inside(index, self.name, context)
        inner.draft.result = Trajectory(
            "", "rounds_exhausted", delegation=self.delegator.open(sub_query)
        )
        report: Report | None = None
        cut: ExecutionOutcome | None = None
        error: UpstreamError | None = None
        try:
            async with context.searching():
                report = await _report(self.delegator, await search.run(sub_query, inner), inner)
        except TimeoutError:
            cut = "timed_out"
        except BudgetExhausted:
            cut = "budget_exhausted"
        except UpstreamError as failure:
            error = failure

        work = inner.draft.result
        assert isinstance(work, Trajectory)
        report = self._supported(report, work, context)
        outcome: ExecutionOutcome = cut or _CUT.get(work.outcome, "no_report")
        if report is not None:
            outcome = "escalated" if report.escalate_to else "reported"
        elif error := error or next(iter(inner.failures.values()), None):
            outcome = "model_failed" if error.role else "retrieval_failed"
            context.failures[index] = error
        return Execution(
            sub_query,
            report or NO_EVIDENCE,
            outcome,
            manager=self.name,
            work=work,
        )

    def _supported(
        self, report: Report | None, work: Trajectory, context: RunContext
    ) -> Report | None:
        """Return the report for the manager's execution; None if neither the manager nor its
        workers have one.

        Usually, this is the manager's own report. If the manager wrote none, the workers' reports
        are joined. If the manager's report names another manager to ask, its text is replaced by
        the joined reports in two cases: it has evidence but the workers reported none, or the
        workers reported evidence but it has none.
        """
        grounds = _grounds(work, context)
        # A joined report has up to four texts. Each gets a quarter of `report_tokens`, which at
        # about four characters per token is `report_tokens` characters.
        chars = context.reporting.max_joined_chars or self.report_tokens
        if report is None:
            return _joined(grounds, chars) if grounds else None
        if report.escalate_to and bool(report.evidence) != bool(grounds):
            # Evidence that no worker reported is invented, so it is replaced.
            joined = _joined(grounds, chars) if grounds else NO_EVIDENCE
            return replace(joined, escalate_to=report.escalate_to)
        return report


def _inside(index: int, name: str, context: RunContext) -> RunContext:
    """Return the context in which the workers of the manager `name` run. Their search events are
    emitted under `index`, the number of the manager's sub-query. A part of the remaining time is
    reserved for the manager's report.
    """

    def on_event(event: Event) -> None:
        if isinstance(event, SearchDone):
            context.on_event(replace(event, index=index))

    now = loop_time()
    return replace(
        context,
        on_event=on_event,
        deadline=context.search_deadline,
        search_deadline=now + (context.search_deadline - now) * (1 - ANSWERING_SHARE),
        ledger=context.ledger.within(index, name),
        draft=Draft(),
        failures={},
        manager="",
    )


def _grounds(trajectory: Trajectory, context: RunContext) -> list[Execution]:
    """Return the workers' executions whose reports the manager's report may use."""
    return [
        execution for execution in trajectory.executions if context.reporting.is_grounds(execution)
    ]


async def _report(
    delegator: Delegator, trajectory: Trajectory, context: RunContext
) -> Report | None:
    """Return the manager's report: its last turn if that is a report, or else the report that it
    writes when it is asked to. Return None if the manager writes no report.

    If no worker's execution may be used for the report, return only a report that names another
    manager to ask: the manager's own report, or else the first such report of a worker.
    """
    assert delegator.report and trajectory.delegation
    grounds = _grounds(trajectory, context)
    conversation = trajectory.delegation
    if conversation.outputs and conversation.messages[-1].role == "assistant":
        last_turn = _read(delegator.report, conversation.outputs[-1])
        if last_turn and (grounds or last_turn.escalate_to):
            return last_turn
    if not grounds:
        for execution in trajectory.executions:
            if execution.outcome == "escalated":
                return execution.report
        return None

    purposes: tuple[tuple[Purpose, str], ...] = (
        ("first", prompts.REPORT),
        ("correction", prompts.CORRECT_REPORT),
    )
    for purpose, text in purposes:
        last = conversation.messages[-1]
        request = text
        if last.role == "user":  # the workers' reports of the last round: extend this message
            request = f"{last.content}\n{text}"
            conversation = Conversation(conversation.messages[:-1], conversation.outputs)
        conversation = conversation.with_user_turn(request)
        output = await delegator.role.ask(
            conversation.messages,
            STOP if purpose == "first" else (),
            context.ledger,
            purpose=purpose,
            until=context.deadline,
        )
        conversation = conversation.with_output(output)
        context.draft.result = replace(trajectory, delegation=conversation)
        if report := _read(delegator.report, output):
            return report
    return None


def _read(parse: Callable[[str, bool], ExecutionTurn], output: Completion) -> Report | None:
    turn = parse(output.text, output.finish_reason == "length")
    return turn.report if isinstance(turn, ReportTurn) else None


def _joined(grounds: Sequence[Execution], chars: int) -> Report:
    """Join the reports of several workers into one report, with each text cut to `chars`
    characters. A single report is returned unchanged.
    """
    if len(grounds) == 1:
        return grounds[0].report
    reports = [execution.report for execution in grounds]
    points = [point for report in reports for point in report.evidence[:1]]
    answer = "\n".join(report.answer for report in reports)
    return Report(answer, tuple(points[:MAX_POINTS])).within(chars)


class Managers:
    """All managers of a topology. Each sub-query goes to the manager that the delegator names for
    it, or else to the first manager, which is the default.
    """

    def __init__(self, managers: Sequence[Manager]) -> None:
        self._by_name = {manager.name: manager for manager in managers}
        self._first = managers[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all managers. The first is the default manager."""
        return tuple(self._by_name)

    @property
    def report_tokens(self) -> int:
        """Max tokens of a report of any manager."""
        return max(manager.report_tokens for manager in self._by_name.values())

    def role(self, context: RunContext) -> Role:
        """Return the role of the default manager's workers."""
        return self._first.workers.role(context)

    async def run(self, sub_query: str, index: int, context: RunContext) -> Execution:
        """Let the manager that `context.manager` names work on `sub_query` (see `Manager.run`).

        If this manager's report names a second manager to ask, the second manager works on
        `sub_query` too, unless `Reporting.escalates` is false. Then the second manager's execution
        is returned, unless it failed without evidence and the first manager reported evidence. A
        third manager is never asked.
        """
        manager = self._by_name.get(context.manager, self._first)
        execution = await manager.run(sub_query, index, context)
        other = self._by_name.get(execution.report.escalate_to, manager)
        if other is manager or not context.reporting.escalates:
            return execution
        second = await other.run(sub_query, index, context)
        if second.failed and not second.report.evidence and execution.report.evidence:
            return execution
        return replace(second, before=execution)
