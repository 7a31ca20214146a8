"""Exports of a run: as a row of a table, or as the trajectory of each agent with its reward."""

import hashlib
from collections.abc import Iterator, Sequence

import msgspec

from router.models import Completion, Message
from router.protocol import exact_match
from router.protocol.prompts import shown_turn
from router.protocol.scoring import token_f1
from router.trace.call import RoleName, sum_known
from router.trace.run import Feedback, Run
from router.trace.table import TableOutcome
from router.trace.turns import work_of
from router.trace.values import (
    AnswerOutcome,
    Conversation,
    Execution,
    TableRun,
    Trajectory,
    brief,
)


class ExportRow(msgspec.Struct, frozen=True):
    """A flat row with the same types in every row. Null means unknown, so that any reader of tables
    can read it.
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
    """The answer, the report or the text; empty without one."""
    redacted: bool
    started_at: float
    """Unix time, seconds."""
    duration_s: float
    calls: int
    """Attempts of upstream calls."""
    prompt_tokens: int | None
    """Null if those of no call are known."""
    completion_tokens: int | None
    tokens_known: bool
    """True if the counts include the tokens of all calls."""
    cost_nano_usd: int | None
    """Billionths of a dollar; null if that of no call is known."""
    cost_known: bool
    """True if this is the cost of all calls."""
    feedback: str
    """Feedback on it, oldest first, as a JSON array."""
    trace: str
    """The complete run as JSON."""


def export_row(run: Run, feedback: Sequence[Feedback] = ()) -> ExportRow:
    """Return the row of an ended run with its feedback."""
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
    """Return the sum of the known counts, 0 if there are none."""
    return sum_known(counts) if counts else 0


def outcome_of(run: Run) -> AnswerOutcome | TableOutcome | None:
    """Return the outcome of an answer or a table; None for other kinds, and for runs that did not
    finish.
    """
    if run.status == "finished" and isinstance(run.result, Trajectory | TableRun):
        return run.result.outcome
    return None


def output_of(run: Run) -> str:
    """Return the answer, the report or the text; empty without one, and for tables."""
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
    """Return the complete run as JSON. Executions are part of the result, and left out of the
    events.
    """
    return msgspec.json.encode(msgspec.structs.replace(run, events=brief(run.events))).decode()


class Reward(msgspec.Struct, frozen=True):
    """The parts of a run's reward; null if unknown."""

    exact_match: bool | None
    f1: float | None
    tokens: int | None
    """Prompt and completion tokens of all of its calls."""


class AgentTrajectory(msgspec.Struct, frozen=True):
    """One agent's complete conversation in one run: a line of an export for reinforcement
    learning.
    """

    group: str
    """Equal for all runs of one question, verbatim."""
    run_id: str
    agent: str
    """Its name within the run: `delegation`, `execution-0`, …, `answer`; a manager's and its first
    worker's are `delegation-0-browser` and `execution-0-browser-0`.
    """
    parent: str | None
    """The agent that dispatched it."""
    role: RoleName
    sub_query_index: int | None
    """The number of its sub-query, from 0."""
    model: str
    """The version, for an executor."""
    question: str
    right_answers: tuple[str, ...]
    answer: str
    """The run's answer, which the reward is for."""
    reward: Reward
    messages: tuple[Message, ...]
    """Assistant messages are the turns as the agent was shown them again."""
    turns: tuple[Completion, ...]
    """As the engine returned them, with token ids if they were requested."""


def reward_of(run: Run, golds: Sequence[str]) -> Reward:
    """Return the reward of a run, given the right answers."""
    counts = [call.usage.total_tokens if call.usage else None for call in run.calls]
    tokens = None if None in counts else sum_known(counts) or 0
    answer = output_of(run)
    if not golds:
        return Reward(None, None, tokens)
    return Reward(exact_match(answer, golds), token_f1(answer, golds), tokens)


def agent_trajectories(run: Run, golds: Sequence[str]) -> Iterator[AgentTrajectory]:
    """Yield a line for each agent that wrote anything; none for a run without an answer, or whose
    texts were not stored.
    """
    trajectory = run.result
    if run.status != "finished" or run.redacted or not isinstance(trajectory, Trajectory):
        return
    group = hashlib.sha256(run.request.encode()).hexdigest()[:16]
    reward = reward_of(run, golds)
    for agent, execution, conversation in work_of(run):
        if conversation is None or not conversation.outputs:
            continue
        messages = conversation.messages
        if agent.role == "answer":
            messages += (Message("assistant", shown_turn(conversation.outputs[0].text)),)
        setting = run.settings.get(agent.role)
        parent = None if agent.sub_query_index is None else "delegation"
        if agent.manager and agent.worker is None:
            setting = run.settings.get(f"managers.{agent.manager}")
        elif agent.manager:
            parent = f"delegation-{agent.sub_query_index}-{agent.manager}"
        model = setting.model if setting else ""
        if execution and execution.executor:
            model = execution.executor
        yield AgentTrajectory(
            group=group,
            run_id=run.id,
            agent=agent.path,
            parent=parent,
            role=agent.role,
            sub_query_index=agent.sub_query_index,
            model=model,
            question=run.request,
            right_answers=tuple(golds),
            answer=trajectory.answer,
            reward=reward,
            messages=messages,
            turns=conversation.outputs,
        )
