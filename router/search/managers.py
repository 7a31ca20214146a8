"""Managers: each splits a step, lets workers look, checks what comes back, and reports (InfoSeeker
3.1 and 3.3).

Above a manager only its report is seen, and inside nothing but the step. There is one layer of
them, and no setting for more: with deeper ones results get worse (WideSeek-R1, app. A), and costs
multiply.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from router.calls import Role
from router.errors import BudgetExhausted, UpstreamError
from router.models import Message
from router.protocol import NO_EVIDENCE, Report, prompts
from router.protocol.turns import MOST_POINTS, ReportTurn
from router.search.context import ANSWERING_SHARE, Draft, RunContext
from router.search.delegator import Delegator, told
from router.search.executor import STOP, Executes
from router.search.loop import FactorizedSearch
from router.trace import Conversation, Event, Execution, Trajectory
from router.trace.call import Purpose
from router.trace.values import ExecutionOutcome, SearchDone

_CHARS = 10**6
"""Of a text in a report on a table that is made of workers' ones."""
_CUT: Mapping[str, ExecutionOutcome] = {
    "time_exhausted": "timed_out",
    "budget_exhausted": "budget_exhausted",
}


@dataclass(frozen=True, slots=True)
class Manager:
    """Works on a sub-query by a search of its own, in a context that holds nothing else."""

    name: str
    delegator: Delegator
    """Reads reports of its own by `report`."""
    workers: Executes
    max_rounds: int = 2
    """Turns in which it may dispatch."""
    max_workers: int = 8
    """Workers at a time."""

    @property
    def report_tokens(self) -> int:
        """The most tokens of a report, its own or its workers'."""
        return max(self.delegator.role.sampling.max_tokens, self.workers.report_tokens)

    async def run(self, sub_query: str, index: int, context: RunContext) -> Execution:
        """Look, and report. Nothing is raised that an executor does not raise. What ends the work
        early leaves a report of what workers have found by then.
        """
        inner = _inside(index, self.name, context)
        now = asyncio.get_running_loop().time()
        inner.draft.result = Trajectory(
            "", "rounds_exhausted", delegation=self.delegator.open(sub_query)
        )
        search = FactorizedSearch(
            self.delegator,
            self.workers,
            None,
            max_rounds=self.max_rounds,
            early_dispatch=False,
            width=self.max_workers,
        )
        report: Report | None = None
        cut: ExecutionOutcome | None = None
        error: UpstreamError | None = None
        try:
            if now >= context.search_deadline:
                raise TimeoutError  # before a call is opened
            async with asyncio.timeout_at(context.search_deadline):
                found = await search.run(sub_query, inner)
                report = await _report(self.delegator, found, inner)
        except TimeoutError:
            cut = _CUT["time_exhausted"]
        except BudgetExhausted:
            cut = _CUT["budget_exhausted"]
        except UpstreamError as failed:
            error = failed
        work = inner.draft.result
        assert isinstance(work, Trajectory)
        grounds = _grounds(work, context)
        # Each of the up to four texts gets a quarter, at some four characters a token. Tables need
        # all lines.
        chars = _CHARS if context.tabular else self.report_tokens
        if report is None and grounds:
            report = _joined(grounds, chars)
        elif report and report.escalate_to and bool(report.evidence) != bool(grounds):
            # What it wrote without any is a guess
            found_by = _joined(grounds, chars) if grounds else NO_EVIDENCE
            report = msgspec.structs.replace(found_by, escalate_to=report.escalate_to)
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


def _inside(index: int, name: str, context: RunContext) -> RunContext:
    """The context of a manager's workers: their searches are told as its own, and of the time a
    part is left to report in.
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


def _grounds(found: Trajectory, context: RunContext) -> list[Execution]:
    """Executions that a report may rest on."""
    return [
        one
        for one in found.executions
        if one.report.evidence or (context.tabular and not one.failed)
    ]


async def _report(delegator: Delegator, found: Trajectory, context: RunContext) -> Report | None:
    """The report that its last turn is, or that it writes when asked for one; of nothing there is
    none, unless it, or else a worker, says who could find something.
    """
    assert delegator.report and found.delegation
    grounds = _grounds(found, context)
    conversation = found.delegation
    if conversation.outputs and conversation.messages[-1].role == "assistant":
        said = delegator.report(
            conversation.outputs[-1].text, conversation.outputs[-1].finish_reason == "length"
        )
        if isinstance(said, ReportTurn) and (grounds or said.report.escalate_to):
            return said.report
    if not grounds:
        return next((one.report for one in found.executions if one.outcome == "escalated"), None)
    purposes: tuple[tuple[Purpose, str], ...] = (
        ("first", prompts.REPORT),
        ("correction", prompts.CORRECT_REPORT),
    )
    for purpose, text in purposes:
        last = conversation.messages[-1]
        beside = last.role == "user"  # reports, in a round that was the last one
        if beside:
            conversation = Conversation(conversation.messages[:-1], conversation.outputs)
        conversation = told(conversation, f"{last.content}\n{text}" if beside else text)
        stop = STOP if purpose == "first" else ()
        output = await delegator.role.ask(
            conversation.messages, stop, context.ledger, purpose=purpose, until=context.deadline
        )
        conversation = Conversation(
            (*conversation.messages, Message("assistant", prompts.said(output.text))),
            (*conversation.outputs, output),
        )
        context.draft.result = msgspec.structs.replace(found, delegation=conversation)
        said = delegator.report(output.text, output.finish_reason == "length")
        if isinstance(said, ReportTurn):
            return said.report
    return None


def _joined(grounds: Sequence[Execution], chars: int) -> Report:
    """The reports of workers, where their manager cannot say it; of several, each text cut to
    `chars` characters.
    """
    if len(grounds) == 1:
        return grounds[0].report
    points = [point for one in grounds for point in one.report.evidence[:1]]
    return Report(
        "\n".join(one.report.answer for one in grounds), tuple(points[:MOST_POINTS])
    ).within(chars)


class Managers:
    """Managers by name: each sub-query goes to the one that its block names, or else to the
    first.
    """

    def __init__(self, managers: Sequence[Manager]) -> None:
        self._by_name = {manager.name: manager for manager in managers}
        self._first = managers[0]

    @property
    def names(self) -> tuple[str, ...]:
        """All names, the first one's first."""
        return tuple(self._by_name)

    @property
    def report_tokens(self) -> int:
        """The most tokens of a report."""
        return max(manager.report_tokens for manager in self._by_name.values())

    def role(self, context: RunContext) -> Role:
        """The workers', in any run."""
        return self._first.workers.role(context)

    async def run(self, sub_query: str, index: int, context: RunContext) -> Execution:
        """See `Manager.run`. Where the manager names another one, that one is asked, once; in a
        table's run, the table does so. Where that one fails, what the first has found is kept.
        """
        manager = self._by_name.get(context.manager, self._first)
        execution = await manager.run(sub_query, index, context)
        other = self._by_name.get(execution.report.escalate_to, manager)
        if other is manager or context.tabular:
            return execution
        second = await other.run(sub_query, index, context)
        kept = second.failed and not second.report.evidence and execution.report.evidence
        return execution if kept else msgspec.structs.replace(second, before=execution)
