"""Runs and their calls, for a terminal."""

from collections.abc import Sequence
from datetime import UTC
from textwrap import shorten

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text
from rolegate.v1.answer_service_pb2 import AnswerOutcome
from rolegate.v1.run_service_pb2 import Feedback, Run, RunKind, RunStatus, UpstreamCall, Verdict
from rolegate.v1.usage_pb2 import Role

from serving.cli.usage_table import cost

KINDS = [name.removeprefix("RUN_KIND_").lower() for name in RunKind.keys()[1:]]
STATUSES = [name.removeprefix("RUN_STATUS_").lower() for name in RunStatus.keys()[1:]]
_MARKS = {"reported": "", "lower_bound": "≥", "estimated": "~"}
_IDENTIFIER = 36
"""Characters of a run's name."""
_STATUS, _TIME = len("budget exhausted"), len("2026-01-31 23:59")
"""Characters of their longest."""
_SHOWN = 60
"""Characters of a request, at most."""


def runs_table(runs: Sequence[Run]) -> Table:
    """Two lines each, which fit on 80 columns. Whose they are is shown where they are not all of one tenant."""
    tenants = len({run.tenant for run in runs}) > 1
    columns = (
        Column("run\nrequest", min_width=_IDENTIFIER),
        Column("kind\nstatus", min_width=_STATUS, max_width=_STATUS),
        Column("started (UTC)\ntenant" if tenants else "started (UTC)", min_width=_TIME, max_width=_TIME),
        Column("s", no_wrap=True),
    )
    table = Table(*columns, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for run in runs:
        kind = RunKind.Name(run.kind).removeprefix("RUN_KIND_").lower()
        started = run.start_time.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M")
        table.add_row(
            Text(f"{run.run_id}\n").append(shorten(run.request, _SHOWN, placeholder="…"), style="dim"),
            f"{kind}\n{_status(run)}",
            Text(f"{started}\n{run.tenant}" if tenants else started),
            f"{run.duration.ToTimedelta().total_seconds():.1f}" if run.HasField("duration") else "",
        )
    return table


def calls_table(calls: Sequence[UpstreamCall]) -> Table:
    """A row for each attempt. Before a count, ≥ says that it is a lower bound, ~ that it is an estimate; `impossible`
    stands for one that was reported and cannot be.
    """
    texts = (Column(name, overflow="fold") for name in ("#", "role", "model", "why", "outcome"))
    figures = (Column(name, justify="right") for name in ("prompt", "written", "cost", "s"))
    table = Table(*texts, *figures, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for call in calls:
        mark, unknown = _MARKS.get(call.counted), call.counted or "unknown"
        table.add_row(
            escape(call.call_id.rpartition("-")[2]),
            Role.Name(call.role).removeprefix("ROLE_").lower(),
            escape(call.model),
            escape(call.purpose),
            escape(call.outcome),
            unknown if mark is None else f"{mark}{call.prompt_tokens:,}",
            unknown if mark is None else f"{mark}{call.completion_tokens:,}",
            cost(call.cost_nano_usd if call.HasField("cost_nano_usd") else None, 1, 0),
            f"{call.duration.ToTimedelta().total_seconds():.2f}",
        )
    return table


def feedback_line(feedback: Feedback) -> str:
    """What was said of a run, as far as anything was."""
    verdict = Verdict.Name(feedback.verdict).removeprefix("VERDICT_").lower() if feedback.verdict else ""
    score = f"score {feedback.score:g}" if feedback.HasField("score") else ""
    gold = f"right answer {feedback.gold_answer!r}" if feedback.gold_answer else ""
    return ", ".join(filter(None, (verdict, score, gold, feedback.comment))) or "its texts are not kept"


def _status(run: Run) -> str:
    """The outcome of an answer that is there; how far any other run has come."""
    if run.outcome:
        return AnswerOutcome.Name(run.outcome).removeprefix("ANSWER_OUTCOME_").lower().replace("_", " ")
    return RunStatus.Name(run.status).removeprefix("RUN_STATUS_").lower()
