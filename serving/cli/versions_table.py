"""Versions of the executor and decisions on them, for a terminal."""

from collections.abc import Iterable, Sequence
from datetime import UTC

from google.protobuf.timestamp_pb2 import Timestamp
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Column, Table
from rolegate.v1.executor_version_service_pb2 import (
    ExecutorVersion,
    ExecutorVersionDecision,
    ExecutorVersionState,
    TrialFigures,
)

_KEY = "before the slash the version's, behind it the active one's, on the same runs; tokens a run"


def versions_table(versions: Sequence[ExecutorVersion]) -> Table:
    """A row each."""
    names = (Column(name, no_wrap=True) for name in ("version", "state", "since (UTC)"))
    figures = (Column(name, justify="right", overflow="fold") for name in ("runs", "right", "failed", "tokens"))
    table = Table(*names, *figures, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, caption_justify="left")
    for version in versions:
        shown = _figures(version.figures) if version.HasField("figures") else ()
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


def _figures(trial: TrialFigures) -> tuple[str, ...]:
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
