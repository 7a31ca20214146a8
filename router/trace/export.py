"""Exports of runs for training and analysis. A run is exported as one flat row, or as one line for
each of its agents, with the agent's conversation and the run's reward.
"""

import hashlib
from collections.abc import Iterator, Sequence

import msgspec

from router.frozen import Frozen
from router.models import Completion, Message
from router.protocol import exact_match
from router.protocol.prompts import shown_turn
from router.protocol.scoring import token_f1
from router.trace.call import AgentRole, sum_known
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


class ExportRow(Frozen):
    """A run as a flat row, for readers of tables such as `datasets.load_dataset`. Each field has
    the same type in every row, or is null if the value is unknown.
    """

    run_id: str
    tenant: str
    kind: str
    status: str
    request: str
    question: str
    """The question as it was searched; differs from `request` in a conversation."""
    request_id: str
    """The idempotency key that the client chose; empty for none."""
    outcome: str
    """The outcome of an answer or a table. Empty for other kinds of runs, and for runs that did not
    finish.
    """
    output: str
    """The answer, the report or the completion; empty if there is none, and for tables."""
    redacted: bool
    started_at: float
    """Unix time, seconds."""
    duration_s: float
    calls: int
    """Number of attempts of upstream calls."""
    prompt_tokens: int | None
    """Sum over the calls with a known count; null if the count of no call is known."""
    completion_tokens: int | None
    """Sum over the calls with a known count; null if the count of no call is known."""
    tokens_known: bool
    """True if the token counts of all calls are known."""
    cost_nano_usd: int | None
    """Sum over the calls with a known cost, in billionths of a dollar; null if the cost of no call
    is known.
    """
    cost_known: bool
    """True if the cost of all calls is known."""
    feedback: str
    """All feedback on the run, oldest first, as a JSON array."""
    trace: str
    """The complete run as JSON."""


def export_row(run: Run, feedback: Sequence[Feedback] = ()) -> ExportRow:
    """Return the row of an ended run with its feedback."""
    costs = [call.nano_usd for call in run.calls]
    return ExportRow(
        run_id=run.id,
        tenant=run.tenant,
        kind=run.kind,
        status=run.status,
        request=run.request,
        question=run.question,
        request_id=run.request_id,
        outcome=outcome_of(run) or "",
        output=output_of(run),
        redacted=run.redacted,
        started_at=run.started_at,
        duration_s=run.duration_s,
        calls=len(run.calls),
        prompt_tokens=_sum([call.count("prompt_tokens") for call in run.calls]),
        completion_tokens=_sum([call.count("completion_tokens") for call in run.calls]),
        tokens_known=all(call.usage for call in run.calls),
        cost_nano_usd=_sum(costs),
        cost_known=None not in costs,
        feedback=msgspec.json.encode(feedback).decode(),
        trace=trace_json(run),
    )


def _sum(counts: list[int | None]) -> int | None:
    """Return the sum of the known counts; 0 if `counts` is empty, and None if none is known."""
    return sum_known(counts) if counts else 0


def outcome_of(run: Run) -> AnswerOutcome | TableOutcome | None:
    """Return the outcome of an answer or a table. Return None for other kinds of runs, and for runs
    that did not finish.
    """
    if run.status == "finished" and isinstance(run.result, Trajectory | TableRun):
        return run.result.outcome
    return None


def output_of(run: Run) -> str:
    """Return the text that the run produced: the answer, the answer in the report, or the
    completion. Return an empty string if there is none, and for tables.
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
    """Return the complete run as JSON. Executions appear only in the result, not in the events."""
    return msgspec.json.encode(msgspec.structs.replace(run, events=brief(run.events))).decode()


class Reward(Frozen):
    """The quantities from which a trainer computes a run's reward. Each is null if unknown."""

    exact_match: bool | None
    """True if the answer equals a right answer."""
    f1: float | None
    """Token F1 of the answer against the right answers, from 0 to 1."""
    tokens: int | None
    """Prompt and completion tokens of all calls of the run."""
    item_f1: float | None = None
    """Item F1 (F1 over cells) of the table against its right rows, from 0 to 1."""


class AgentTrajectory(Frozen):
    """One agent's complete conversation in one run. It is one line of an export for reinforcement
    learning.
    """

    group: str
    """Id of the question: equal for all runs whose questions have exactly the same text, and for
    tables also the same columns.
    """
    run_id: str
    agent: str
    """The agent's name within the run: `delegation`, `execution-0`, …, `answer`. A manager is named
    like `delegation-0-browser`, and its first worker `execution-0-browser-0`.
    """
    parent: str | None
    """Name of the agent that dispatched this one; null for the delegator and the answerer."""
    layer: int
    """0 for the delegator and the answerer, 1 for an agent that the delegator dispatched, 2 for a
    worker of a manager.
    """
    role: AgentRole
    sub_query_index: int | None
    """The number of the agent's sub-query, from 0; null for the delegator and the answerer."""
    model: str
    """The agent's model; for an executor, its version if that is known."""
    question: str
    right_answers: tuple[str, ...]
    answer: str
    """The run's answer, to which the reward belongs; empty for a table."""
    reward: Reward
    messages: tuple[Message, ...]
    """The conversation's messages. Assistant messages have the text as it was shown to the agent in
    its later turns, without reasoning.
    """
    turns: tuple[Completion, ...]
    """The agent's outputs as the engine returned them, with token ids if they were requested."""


def reward_of(run: Run, golds: Sequence[str], item_f1: float | None) -> Reward:
    """Return the reward of a run.

    `golds`: the right answers of a question; empty if they are unknown, and for tables. `item_f1`:
    the score of a table; None if its right rows are unknown.
    """
    counts = [call.usage.total_tokens if call.usage else None for call in run.calls]
    tokens = None if None in counts else sum_known(counts) or 0
    answer = output_of(run)
    if not golds:
        return Reward(None, None, tokens, item_f1)
    return Reward(exact_match(answer, golds), token_f1(answer, golds), tokens)


def agent_trajectories(
    run: Run,
    golds: Sequence[str],
    item_f1: float | None = None,
) -> Iterator[AgentTrajectory]:
    """Yield one line of the export for each agent that wrote anything. Yield nothing for a run that
    did not finish with an answer or a table, or whose texts were not stored. `golds`, `item_f1`:
    see `reward_of`.
    """
    result = run.result
    if run.status != "finished" or run.redacted or run.kind not in ("answer", "table"):
        return
    if not isinstance(result, Trajectory | TableRun):
        return
    asked = run.question
    if isinstance(result, TableRun):
        asked = "\n".join((asked, *(column.name for column in result.schema.shown)))
    group = hashlib.sha256(asked.encode()).hexdigest()[:16]
    reward = reward_of(run, golds, item_f1)
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
            layer=(agent.sub_query_index is not None) + (agent.worker is not None),
            role=agent.role,
            sub_query_index=agent.sub_query_index,
            model=model,
            question=run.question,
            right_answers=tuple(golds),
            answer=output_of(run),
            reward=reward,
            messages=messages,
            turns=conversation.outputs,
        )
