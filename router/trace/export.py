"""A run as a row of an exported table."""

from collections.abc import Sequence

import msgspec

from router.trace.call import sum_known
from router.trace.run import Feedback, Run
from router.trace.table import TableOutcome
from router.trace.values import AnswerOutcome, Conversation, Execution, TableRun, Trajectory, brief


class ExportRow(msgspec.Struct, frozen=True):
    """Flat, of the same types in every row, and null for nothing but what is unknown, so that any reader of tables gets
    along with it.
    """

    run_id: str
    tenant: str
    kind: str
    status: str
    request: str
    request_id: str
    """Empty for none."""
    outcome: str
    """The outcome of an answer or a table; empty for other kinds, and for runs that did not finish."""
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
    """The outcome of an answer or a table; None for other kinds, and for runs that did not finish."""
    return run.result.outcome if run.status == "finished" and isinstance(run.result, Trajectory | TableRun) else None


def output_of(run: Run) -> str:
    """The answer, the report or the text; empty where it did not come to that, and for tables, which are made."""
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
    """Everything that was said, found and spent; what executors did stands in the result, and not in the events too."""
    return msgspec.json.encode(msgspec.structs.replace(run, events=brief(run.events))).decode()
