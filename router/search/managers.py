"""Managers: each splits a step, lets workers search, checks their reports, and reports (InfoSeeker
3.1 and 3.3).

The delegator sees only a manager's report, and a manager only its step. There is one layer of
managers and no setting for more: deeper layers give worse results (WideSeek-R1, app. A) and
multiply costs.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from router.calls import Role
from router.errors import BudgetExhausted, UpstreamError
from router.models import Completion
from router.protocol import NO_EVIDENCE, Report, prompts
from router.protocol.turns import MAX_POINTS, ExecutionTurn, ReportTurn
from router.search.context import ANSWERING_SHARE, Draft, RunContext
from router.search.delegator import Delegator, with_output, with_user_turn
from router.search.executor import STOP, Executes
from router.search.loop import FactorizedSearch
from router.trace import Conversation, Event, Execution, Trajectory
from router.trace.call import Purpose
from router.trace.values import ExecutionOutcome, SearchDone

_CUT: Mapping[str, ExecutionOutcome] = {
    "time_exhausted": "timed_out",
    "budget_exhausted": "budget_exhausted",
}


@dataclass(frozen=True, slots=True)
class Manager:
    """Works on a sub-query by a nested search with a delegator and workers, in a fresh context."""

    name: str
    delegator: Delegator
    """Writes the sub-queries; parses the manager's own reports by `Delegator.report`."""
    workers: Executes
    max_rounds: int = 2
    """Max turns that dispatch sub-queries."""
    max_workers: int = 8
    """Max workers at a time."""

    @property
    def report_tokens(self) -> int:
        """Max tokens of a report, whether the manager's or its workers'."""
        return max(self.delegator.role.sampling.max_tokens, self.workers.report_tokens)

    async def run(self, sub_query: str, index: int, context: RunContext) -> Execution:
        """Search and report. Raises nothing that an executor does not raise. If the work is cut
        short, the report joins what workers have found by then.
        """
        inner = _inside(index, self.name, context)
        inner.draft.result = Trajectory(
            "", "rounds_exhausted", delegation=self.delegator.open(sub_query)
        )
        report: Report | None = None
        cut: ExecutionOutcome | None = None
        error: UpstreamError | None = None
        try:
            async with context.searching():
                report = await _report(self.delegator, await self._search(sub_query, inner), inner)
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
            (),
            Conversation(()),
            manager=self.name,
            work=work,
        )

    def _search(self, sub_query: str, inner: RunContext) -> Coroutine[Any, Any, Trajectory]:
        """Run the search loop over the workers, without an answerer."""
        search = FactorizedSearch(
            self.delegator,
            self.workers,
            None,
            max_rounds=self.max_rounds,
            early_dispatch=False,
            width=self.max_workers,
        )
        return search.run(sub_query, inner)

    def _supported(
        self, report: Report | None, work: Trajectory, context: RunContext
    ) -> Report | None:
        """Return the manager's report, or its workers' reports where it has none that they
        support.
        """
        grounds = _grounds(work, context)
        # Each of the up to four texts gets a quarter, at about four characters a token.
        chars = context.reporting.max_joined_chars or self.report_tokens
        if report is None:
            return _joined(grounds, chars) if grounds else None
        if report.escalate_to and bool(report.evidence) != bool(grounds):
            # Evidence that no worker reported is a guess.
            joined = _joined(grounds, chars) if grounds else NO_EVIDENCE
            return msgspec.structs.replace(joined, escalate_to=report.escalate_to)
        return report


def _inside(index: int, name: str, context: RunContext) -> RunContext:
    """Return the context of a manager's workers. Their searches are reported as the manager's, and
    part of the time is reserved for its report.
    """

    def on_event(event: Event) -> None:
        if isinstance(event, SearchDone):
            context.on_event(msgspec.structs.replace(event, index=index))

    now = asyncio.get_running_loop().time()
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
    """Return the executions that a report may rest on."""
    return [
        execution for execution in trajectory.executions if context.reporting.is_grounds(execution)
    ]


async def _report(
    delegator: Delegator, trajectory: Trajectory, context: RunContext
) -> Report | None:
    """Return the manager's report: its last turn, or what it writes when asked for one.

    Without any grounds, only an escalation counts: the manager's, or else a worker's.
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
        if last.role == "user":  # the reports of the last round: extend that message
            conversation = Conversation(conversation.messages[:-1], conversation.outputs)
            conversation = with_user_turn(conversation, f"{last.content}\n{text}")
        else:
            conversation = with_user_turn(conversation, text)
        output = await delegator.role.ask(
            conversation.messages,
            STOP if purpose == "first" else (),
            context.ledger,
            purpose=purpose,
            until=context.deadline,
        )
        conversation = with_output(conversation, output)
        context.draft.result = msgspec.structs.replace(trajectory, delegation=conversation)
        if report := _read(delegator.report, output):
            return report
    return None


def _read(parse: Callable[[str, bool], ExecutionTurn], output: Completion) -> Report | None:
    turn = parse(output.text, output.finish_reason == "length")
    return turn.report if isinstance(turn, ReportTurn) else None


def _joined(grounds: Sequence[Execution], chars: int) -> Report:
    """Return the workers' reports as one, each text cut to `chars` characters; a single report is
    left whole.
    """
    if len(grounds) == 1:
        return grounds[0].report
    reports = [execution.report for execution in grounds]
    points = [point for report in reports for point in report.evidence[:1]]
    answer = "\n".join(report.answer for report in reports)
    return Report(answer, tuple(points[:MAX_POINTS])).within(chars)


class Managers:
    """Managers by name. A sub-query goes to the manager that its block names, or else to the
    default.
    """

    def __init__(self, managers: Sequence[Manager]) -> None:
        self._by_name = {manager.name: manager for manager in managers}
        self._first = managers[0]

    @property
    def names(self) -> tuple[str, ...]:
        """All names, beginning with the default manager's."""
        return tuple(self._by_name)

    @property
    def report_tokens(self) -> int:
        """Max tokens of a report."""
        return max(manager.report_tokens for manager in self._by_name.values())

    def role(self, context: RunContext) -> Role:
        """Return the role of the first manager's workers."""
        return self._first.workers.role(context)

    async def run(self, sub_query: str, index: int, context: RunContext) -> Execution:
        """See `Manager.run`. If the report names another manager, that one is asked too, once,
        unless `Reporting.escalates` is false. If it fails, the first manager's findings are kept.
        """
        manager = self._by_name.get(context.manager, self._first)
        execution = await manager.run(sub_query, index, context)
        other = self._by_name.get(execution.report.escalate_to, manager)
        if other is manager or not context.reporting.escalates:
            return execution
        second = await other.run(sub_query, index, context)
        if second.failed and not second.report.evidence and execution.report.evidence:
            return execution
        return msgspec.structs.replace(second, before=execution)
