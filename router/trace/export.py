"""A run as it is exported: as a row of a table, or as what each of its agents sampled and what
that was worth.
"""

import hashlib
from collections.abc import Iterator, Sequence

import msgspec

from router.models import Completion, Message
from router.protocol import exact_match
from router.protocol.prompts import said
from router.protocol.scoring import token_f1
from router.trace.call import RoleName, sum_known
from router.trace.run import Feedback, Run
from router.trace.table import TableOutcome
from router.trace.turns import work_of
from router.trace.values import AnswerOutcome, Conversation, Execution, TableRun, Trajectory, brief


class ExportRow(msgspec.Struct, frozen=True):
    """Flat, of the same types in every row, and null for nothing but what is unknown, so that any
    reader of tables gets along with it.
    """

    run_id: str
    tenant: str
    kind: str
    status: str
    request: str
    request_id: str
    """Empty for none."""
    outcome: str
    """The outcome of an answer or a table; empty for other kinds, and for runs that did not
    finish.
    """
    output: str
    """The answer, the report or the text; empty where it did not come to that."""
    redacted: bool
    started_at: float
    """Unix time, seconds."""
    duration_s: float
    calls: int
    """Attempts of upstream calls."""
    prompt_tokens: int | None
    """Null where those of no call are known."""
    completion_tokens: int | None
    tokens_known: bool
    """True where the counts hold the tokens of all calls."""
    cost_nano_usd: int | None
    """Billionths of a dollar; null where that of no call is known."""
    cost_known: bool
    """True where this is the cost of all calls."""
    feedback: str
    """Feedback on it, oldest first, as a JSON array."""
    trace: str
    """Everything that was said, found and spent, as JSON."""


def export_row(run: Run, feedback: Sequence[Feedback] = ()) -> ExportRow:
    """The row of a run that has ended, with what was said of it."""
    usages = [call.usage for call in run.calls]
    costs = [call.nano_usd for call in run.calls]
    return ExportRow(
        run_id=run.id,
        tenant=run.tenant,
        kind=run.kind,
        status=run.status,
        request=run.request,
        request_id=run.request_id,
        outcome=outcome_of(run) or "",
        output=output_of(run),
        redacted=run.redacted,
        started_at=run.started_at,
        duration_s=run.duration_s,
        calls=len(run.calls),
        prompt_tokens=_sum([usage.prompt_tokens if usage else None for usage in usages]),
        completion_tokens=_sum([usage.completion_tokens if usage else None for usage in usages]),
        tokens_known=None not in usages,
        cost_nano_usd=_sum(costs),
        cost_known=None not in costs,
        feedback=msgspec.json.encode(feedback).decode(),
        trace=trace_json(run),
    )


def _sum(counts: list[int | None]) -> int | None:
    """The sum of what is known, which is nothing where there is nothing to know."""
    return sum_known(counts) if counts else 0


def outcome_of(run: Run) -> AnswerOutcome | TableOutcome | None:
    """The outcome of an answer or a table; None for other kinds, and for runs that did not
    finish.
    """
    return (
        run.result.outcome
        if run.status == "finished" and isinstance(run.result, Trajectory | TableRun)
        else None
    )


def output_of(run: Run) -> str:
    """The answer, the report or the text; empty where it did not come to that, and for tables,
    which are made.
    """
    match run.result:
        case Trajectory():
            return run.result.answer
        case Execution():
            return run.result.report.answer
        case Conversation(outputs=(*_, last)):
            return last.text
        case _:
            return ""


def trace_json(run: Run) -> str:
    """Everything that was said, found and spent; what executors did stands in the result, and
    not in the events too.
    """
    return msgspec.json.encode(msgspec.structs.replace(run, events=brief(run.events))).decode()


class Reward(msgspec.Struct, frozen=True):
    """The worth of a run, in parts; null where that is not known."""

    exact_match: bool | None
    f1: float | None
    tokens: int | None
    """Prompt and completion tokens of all of its calls."""


class AgentTrajectory(msgspec.Struct, frozen=True):
    """One agent's whole conversation in one run: a line of an export for reinforcement learning."""

    group: str
    """The same for all runs of one question, word for word."""
    run_id: str
    agent: str
    """Its name in the run: `delegation`, `execution-0`, …, `answer`; a manager's and its first
    worker's `delegation-0-browser` and `execution-0-browser-0`.
    """
    parent: str | None
    """The agent that dispatched it."""
    role: RoleName
    sub_query: int | None
    """The number of the one that it worked on, from 0."""
    model: str
    """Of an executor, its version."""
    question: str
    right_answers: tuple[str, ...]
    answer: str
    """The run's, as the reward is."""
    reward: Reward
    messages: tuple[Message, ...]
    """The assistant's are the turns as they were shown again."""
    turns: tuple[Completion, ...]
    """As the engine returned them, with tokens where it was asked for these."""


def reward_of(run: Run, golds: Sequence[str]) -> Reward:
    """The reward of a run, if these are the right answers."""
    counts = [call.usage.total_tokens if call.usage else None for call in run.calls]
    tokens = None if None in counts else sum_known(counts) or 0
    answer = output_of(run)
    return (
        Reward(exact_match(answer, golds), token_f1(answer, golds), tokens)
        if golds
        else Reward(None, None, tokens)
    )


def agent_trajectories(run: Run, golds: Sequence[str]) -> Iterator[AgentTrajectory]:
    """A line for each agent that wrote anything, delegator, executors, answerer; none of a run that
    came to no answer, or whose texts were not kept.
    """
    found = run.result
    if run.status != "finished" or run.redacted or not isinstance(found, Trajectory):
        return
    group = hashlib.sha256(run.request.encode()).hexdigest()[:16]
    reward = reward_of(run, golds)
    for agent, execution, talk in work_of(run):
        if talk is not None and talk.outputs:
            role = agent.role
            number = agent.sub_query
            manager = agent.manager
            last = [Message("assistant", said(talk.outputs[0].text))] if role == "answer" else []
            managing = f"delegation-{number}-{manager}"
            leads = number is None or (bool(manager) and agent.worker is None)
            setting = run.settings.get(f"managers.{manager}" if manager and leads else role)
            yield AgentTrajectory(
                group=group,
                run_id=run.id,
                agent=agent.path,
                parent=None
                if number is None
                else "delegation"
                if leads or not manager
                else managing,
                role=role,
                sub_query=number,
                model=(execution.executor if execution else "")
                or (setting.model if setting else ""),
                question=run.request,
                right_answers=tuple(golds),
                answer=found.answer,
                reward=reward,
                messages=(*talk.messages, *last),
                turns=talk.outputs,
            )
