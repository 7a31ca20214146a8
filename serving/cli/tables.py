"""Tokens and cost, for a terminal."""

from collections.abc import Iterable, Sequence
from datetime import UTC
from textwrap import shorten

import orjson
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text
from rolegate.v1.answer_service_pb2 import AnswerOutcome
from rolegate.v1.executor_version_service_pb2 import (
    ExecutorVersion,
    ExecutorVersionDecision,
    ExecutorVersionState,
    TrialFigures,
)
from rolegate.v1.run_service_pb2 import Feedback, Run, RunKind, RunStatus, UpstreamCall, Verdict
from rolegate.v1.usage_pb2 import Role, RoleUsage
from rolegate.v1.usage_service_pb2 import UsageRow

TIMES = {"hour": "%Y-%m-%d %H:%M", "day": "%Y-%m-%d", "month": "%Y-%m"}
"""How the beginning of a bucket is shown."""


def usage_table(usage: Iterable[RoleUsage]) -> Table:
    """A row for each role and model, and a sum."""
    return grouped_table([UsageRow(usage=row) for row in usage], ("role", "model"))


def grouped_table(rows: Sequence[UsageRow], by: Sequence[str], bucket: str | None = None) -> Table:
    """A row for each group, and a sum. `by`: names of `labels`."""
    sums = [row.usage for row in rows]
    wasted = any(row.wasted_tokens for row in sums)
    groups = (*([Column(bucket, no_wrap=True)] if bucket else []), *(Column(name, overflow="fold") for name in by))
    table = Table(*groups, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for column in ("calls", "prompt", "cached", "written", *(["wasted"] if wasted else []), "cost"):
        table.add_column(column, justify="right", overflow="fold")
    for row in rows:
        times = [row.bucket_start_time.ToDatetime(UTC).strftime(TIMES[bucket])] if bucket else []
        table.add_row(*times, *(escape(labels(row)[name]) or "–" for name in by), *_figures(row.usage, wasted=wasted))
    table.add_section()
    blank = [""] * (len(by) + bool(bucket) - 1)
    table.add_row("all", *blank, *_figures(total(sums), wasted=wasted))
    return table


def labels(row: UsageRow) -> dict[str, str]:
    """What sums can be split by, as it is called in options and tables."""
    role = Role.Name(row.usage.role).removeprefix("ROLE_").lower() if row.usage.role else ""
    return {"tenant": row.tenant, "role": role, "model": row.usage.model, "version": row.executor_version}


def summed(usage: Iterable[RoleUsage]) -> list[RoleUsage]:
    """Sums by role and model; what no row knows stays unknown."""
    groups: dict[tuple[Role, str], list[RoleUsage]] = {}
    for row in usage:
        groups.setdefault((row.role, row.model), []).append(row)
    sums = [total(rows) for rows in groups.values()]
    for (role, model), row in zip(groups, sums, strict=True):
        row.role, row.model = role, model
    return sums


def total(usage: Iterable[RoleUsage]) -> RoleUsage:
    """One sum over all; what no row knows stays unknown."""
    sums = RoleUsage()
    for row in usage:
        for field, count in row.ListFields():
            if field.name not in ("role", "model"):
                setattr(sums, field.name, getattr(sums, field.name) + count)
    return sums


def cost(nano_usd: int | None, attempts: int, unknown: int) -> str:
    """Dollars for so many attempts, of which the cost of `unknown` is not known."""
    if nano_usd is None:
        return "unknown" if attempts else "$0"
    dollars = nano_usd / 1e9
    return (f"${dollars:,.4f}" if dollars >= 1 else f"${dollars:.6f}") + (f" ({unknown} unknown)" if unknown else "")


def uncounted(row: RoleUsage) -> bool:
    """True where the usage of none of its attempts is known."""
    return 0 < row.attempts == row.attempts_without_usage


def _figures(row: RoleUsage, *, wasted: bool) -> list[str]:
    unknown = f" ({row.attempts_without_usage} unknown)" if row.attempts_without_usage else ""
    nano_usd = row.cost_nano_usd if row.HasField("cost_nano_usd") else None
    read, written, lost = (
        "unknown" if uncounted(row) else f"{tokens:,}"
        for tokens in (row.prompt_tokens, row.completion_tokens, row.wasted_tokens)
    )
    return [
        f"{row.attempts:,}{unknown}",
        read,
        f"{row.cached_tokens / max(row.prompt_tokens, 1):.0%}" if row.HasField("cached_tokens") else "unknown",
        written,
        *([lost] if wasted else []),
        cost(nano_usd, row.attempts, row.attempts_without_cost),
    ]


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


_KEY = "before the slash the version's, behind it the active one's, on the same runs; tokens a run"


def versions_table(versions: Sequence[ExecutorVersion]) -> Table:
    """A row each."""
    names = (Column(name, no_wrap=True) for name in ("version", "state", "since (UTC)"))
    figures = (Column(name, justify="right", overflow="fold") for name in ("runs", "right", "failed", "tokens"))
    table = Table(*names, *figures, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, caption_justify="left")
    for version in versions:
        shown = _trial_figures(version.figures) if version.HasField("figures") else ()
        table.add_row(escape(version.version), state_of(version), _time(version.state_time), *shown)
    if any(version.HasField("figures") for version in versions):
        table.caption = _KEY
    return table


def decisions_table(decisions: Iterable[ExecutorVersionDecision]) -> Table:
    """A row each, with the reason in words."""
    names = (Column(name, no_wrap=True) for name in ("#", "time (UTC)", "version", "decision", "by"))
    table = Table(*names, Column("why", overflow="fold"), box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for one in decisions:
        texts = (one.version, one.decision, one.decided_by, one.reason)
        table.add_row(str(one.number), _time(one.time), *map(escape, texts))
    return table


def evidence_line(version: ExecutorVersion) -> str:
    """How sure it is by now that a version is not worse than the active one, and that it is."""
    shown = (f"{one.measure} {_shown(one.in_favour)} to {_shown(one.against)}" for one in version.figures.evidence)
    return f"evidence for {version.version}, to that against it: {', '.join(shown)}"


def state_of(version: ExecutorVersion) -> str:
    """What a version does, in words."""
    state = ExecutorVersionState.Name(version.state).removeprefix("EXECUTOR_VERSION_STATE_").lower().replace("_", " ")
    return f"{state} {version.canary_share:.0%}" if version.canary_share else state


def _trial_figures(trial: TrialFigures) -> tuple[str, ...]:
    runs = max(1, trial.trials)
    return (
        f"{trial.trials:,}",
        f"{trial.right:,}/{trial.active_right:,} of {trial.judged:,}",
        f"{trial.failed:,}/{trial.active_failed:,}",
        f"{trial.tokens / runs:,.0f}/{trial.active_tokens / runs:,.0f}",
    )


def _shown(evidence: float) -> str:
    return f"{evidence:.2g}" if evidence < 100 else f"{evidence:.0f}" if evidence < 1000 else ">999"


def _time(timestamp: Timestamp) -> str:
    return timestamp.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M")


def message_json(message: Message) -> str:
    """One line, with the names of the protocol and every field that has a default."""
    as_dict = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return orjson.dumps(as_dict).decode()
