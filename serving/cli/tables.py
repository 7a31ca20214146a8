"""Runs, answers, tokens and cost, for a terminal."""

from collections.abc import Iterable, Sequence
from datetime import UTC
from textwrap import shorten
from typing import Any

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.timestamp_pb2 import Timestamp
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text
from rolegate.client import Stream
from rolegate.client.text import source_line
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import evidence_pb2
from rolegate.v1.answer_service_pb2 import AnswerOutcome
from rolegate.v1.executor_version_service_pb2 import (
    ExecutorVersion,
    ExecutorVersionDecision,
    ExecutorVersionState,
    TrialFigures,
)
from rolegate.v1.run_service_pb2 import Feedback, Run, RunKind, RunStatus, UpstreamCall, Verdict
from rolegate.v1.table_service_pb2 import TableOutcome
from rolegate.v1.usage_pb2 import Role, RoleUsage
from rolegate.v1.usage_service_pb2 import UsageRow

from router.edge.rendering import UNSUPPORTED, event_line, missed, sub_answer_from_proto
from router.trace.turns import ToolSums
from serving.cli.options import json_of


def word(kind: EnumTypeWrapper, value: Any) -> str:
    """The name of an enum's value as people read it, without the enum's own."""
    return (
        kind.Name(value)
        .removeprefix(kind.Name(0).removesuffix("UNSPECIFIED"))
        .lower()
        .replace("_", " ")
    )


def print_line(console: Console, text: str, indent: int = 0, style: str = "") -> None:
    """Print a text as it is, each of its lines behind `indent` blanks."""
    console.print(Padding(Text(text, style), (0, 0, 0, indent), expand=False))


def new_table(*columns: Column | str) -> Table:
    """An empty table, as all are shown."""
    return Table(*columns, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)


TIMES = {"hour": "%Y-%m-%d %H:%M", "day": "%Y-%m-%d", "month": "%Y-%m"}
"""How the beginning of a bucket is shown."""


def usage_table(usage: Iterable[RoleUsage]) -> Table:
    """A row for each role and model, and each manager where there are any, and a sum."""
    rows = [UsageRow(usage=row) for row in usage]
    managed = any(row.usage.manager for row in rows)
    return grouped_table(rows, ("role", "model", "manager") if managed else ("role", "model"))


def grouped_table(rows: Sequence[UsageRow], by: Sequence[str], bucket: str | None = None) -> Table:
    """A row for each group, and a sum. `by`: names of `labels`."""
    sums = [row.usage for row in rows]
    wasted = any(row.wasted_tokens for row in sums)
    groups = (
        *([Column(bucket, no_wrap=True)] if bucket else []),
        *(Column(name, overflow="fold") for name in by),
    )
    table = new_table(*groups)
    for column in ("calls", "prompt", "cached", "written", *(["wasted"] if wasted else []), "cost"):
        table.add_column(column, justify="right", overflow="fold")
    for row in rows:
        times = [row.bucket_start_time.ToDatetime(UTC).strftime(TIMES[bucket])] if bucket else []
        table.add_row(
            *times,
            *(escape(labels(row)[name]) or "–" for name in by),
            *_figures(row.usage, wasted=wasted),
        )
    table.add_section()
    blank = [""] * (len(by) + bool(bucket) - 1)
    table.add_row("all", *blank, *_figures(total(sums), wasted=wasted))
    return table


def labels(row: UsageRow) -> dict[str, str]:
    """Groups of sums, as it is called in options and tables."""
    role = word(Role, row.usage.role) if row.usage.role else ""
    known = {
        "tenant": row.tenant,
        "role": role,
        "model": row.usage.model,
        "version": row.executor_version,
    }
    return known | {"manager": row.usage.manager}


def summed(usage: Iterable[RoleUsage]) -> list[RoleUsage]:
    """Sums by role, model and manager; what no row knows stays unknown."""
    groups: dict[tuple[Role, str, str], list[RoleUsage]] = {}
    for row in usage:
        groups.setdefault((row.role, row.model, row.manager), []).append(row)
    sums = [total(rows) for rows in groups.values()]
    for (role, model, manager), row in zip(groups, sums, strict=True):
        row.role = role
        row.model = model
        row.manager = manager
    return sums


def total(usage: Iterable[RoleUsage]) -> RoleUsage:
    """One sum over all; what no row knows stays unknown."""
    sums = RoleUsage()
    for row in usage:
        for field, count in row.ListFields():
            if field.name not in ("role", "model", "manager"):
                setattr(sums, field.name, getattr(sums, field.name) + count)
    return sums


def cost(nano_usd: int | None, attempts: int, unknown: int) -> str:
    """Dollars for so many attempts, of which the cost of `unknown` is not known."""
    if nano_usd is None:
        return "unknown" if attempts else "$0"
    dollars = nano_usd / 1e9
    return (f"${dollars:,.4f}" if dollars >= 1 else f"${dollars:.6f}") + (
        f" ({unknown} unknown)" if unknown else ""
    )


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
        f"{row.cached_tokens / max(row.prompt_tokens, 1):.0%}"
        if row.HasField("cached_tokens")
        else "unknown",
        written,
        *([lost] if wasted else []),
        cost(nano_usd, row.attempts, row.attempts_without_cost),
    ]


KINDS, STATUSES = (
    [word(kind, value) for value in kind.values()[1:]] for kind in (RunKind, RunStatus)
)
_MARKS = {"reported": "", "lower_bound": "≥", "estimated": "~"}
_IDENTIFIER = 36
"""Characters of a run's name."""
_STATUS = len("budget exhausted")
_TIME = len("2026-01-31 23:59")
"""Characters of their longest."""
_SHOWN = 60
"""Characters of a request, at most."""


def runs_table(runs: Sequence[Run]) -> Table:
    """Two lines each, which fit on 80 columns. Whose they are is shown where they are not all
    of one tenant.
    """
    tenants = len({run.tenant for run in runs}) > 1
    columns = (
        Column("run\nrequest", min_width=_IDENTIFIER),
        Column("kind\nstatus", min_width=_STATUS, max_width=_STATUS),
        Column(
            "started (UTC)\ntenant" if tenants else "started (UTC)",
            min_width=_TIME,
            max_width=_TIME,
        ),
        Column("s", no_wrap=True),
    )
    table = new_table(*columns)
    for run in runs:
        started = _time(run.start_time)
        table.add_row(
            Text(f"{run.run_id}\n").append(
                shorten(run.request, _SHOWN, placeholder="…"), style="dim"
            ),
            f"{word(RunKind, run.kind)}\n{_status(run)}",
            Text(f"{started}\n{run.tenant}" if tenants else started),
            f"{run.duration.ToTimedelta().total_seconds():.1f}" if run.HasField("duration") else "",
        )
    return table


def calls_table(calls: Sequence[UpstreamCall]) -> Table:
    """A row for each attempt. Before a count, ≥ says that it is a lower bound, ~ that it is an
    estimate; `impossible` stands for one that was reported and cannot be.
    """
    texts = (Column(name, overflow="fold") for name in ("#", "role", "model", "why", "outcome"))
    figures = (Column(name, justify="right") for name in ("prompt", "written", "cost", "s"))
    table = new_table(*texts, *figures)
    for call in calls:
        mark = _MARKS.get(call.counted)
        unknown = call.counted or "unknown"
        table.add_row(
            escape(call.call_id.rpartition("-")[2]),
            f"{word(Role, call.role)} {escape(call.manager)}".rstrip(),
            *(escape(call.model), escape(call.purpose), escape(call.outcome)),
            unknown if mark is None else f"{mark}{call.prompt_tokens:,}",
            unknown if mark is None else f"{mark}{call.completion_tokens:,}",
            cost(call.cost_nano_usd if call.HasField("cost_nano_usd") else None, 1, 0),
            f"{call.duration.ToTimedelta().total_seconds():.2f}",
        )
    return table


def tools_table(sums: Iterable[ToolSums]) -> Table:
    """A row for each tool."""
    figures = (Column(name, justify="right") for name in ("calls", "failed", "s"))
    table = new_table(*(Column(name, overflow="fold") for name in ("server", "tool")), *figures)
    for row in sums:
        names = escape(row.server), escape(row.tool)
        table.add_row(*names, f"{row.calls:,}", f"{row.failures:,}", f"{row.duration_s:.1f}")
    return table


def feedback_line(feedback: Feedback) -> str:
    """Feedback on a run, in one line, as far as anything was."""
    verdict = word(Verdict, feedback.verdict) if feedback.verdict else ""
    score = f"score {feedback.score:g}" if feedback.HasField("score") else ""
    gold = f"right answer {feedback.right_answer!r}" if feedback.right_answer else ""
    return (
        ", ".join(filter(None, (verdict, score, gold, feedback.comment)))
        or "its texts are not kept"
    )


def _status(run: Run) -> str:
    """The outcome of an answer or a table that is there; how far any other run has come."""
    if run.table_outcome:
        return word(TableOutcome, run.table_outcome)
    if run.unsupported:
        return "unsupported"
    return word(AnswerOutcome, run.outcome) if run.outcome else word(RunStatus, run.status)


_KEY = "before the slash the version's, behind it the active one's, on the same runs; tokens a run"


def versions_table(versions: Sequence[ExecutorVersion]) -> Table:
    """A row each."""
    names = (Column(name, no_wrap=True) for name in ("version", "state", "since (UTC)"))
    figures = (
        Column(name, justify="right", overflow="fold")
        for name in ("runs", "right", "failed", "tokens")
    )
    table = new_table(*names, *figures)
    for version in versions:
        shown = _trial_figures(version.figures) if version.HasField("figures") else ()
        table.add_row(escape(version.version), state_of(version), _time(version.state_time), *shown)
    if any(version.HasField("figures") for version in versions):
        table.caption = _KEY
        table.caption_justify = "left"
    return table


def decisions_table(decisions: Iterable[ExecutorVersionDecision]) -> Table:
    """A row each, with the reason in words."""
    names = (
        Column(name, no_wrap=True) for name in ("#", "time (UTC)", "version", "decision", "by")
    )
    table = new_table(*names, Column("why", overflow="fold"))
    for one in decisions:
        texts = (one.version, one.decision, one.decided_by, one.reason)
        table.add_row(str(one.number), _time(one.time), *map(escape, texts))
    return table


def evidence_line(version: ExecutorVersion) -> str:
    """Evidence, by now, that a version is not worse than the active one, and that it is."""
    shown = (
        f"{one.measure} {_shown(one.in_favour)} to {_shown(one.against)}"
        for one in version.figures.evidence
    )
    return f"evidence for {version.version}, to that against it: {', '.join(shown)}"


def state_of(version: ExecutorVersion) -> str:
    """The state of a version, in words."""
    state = word(ExecutorVersionState, version.state)
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


_UNANSWERED = (pb.ANSWER_OUTCOME_NOT_FOUND, pb.ANSWER_OUTCOME_NO_SEARCH)


class AnswerView:
    """Shows one run."""

    def __init__(self, out: Console, progress: Console, *, stream: bool, as_json: bool) -> None:
        """`stream` shows what happens on the way; `as_json` prints for programs."""
        self._out = out
        self._progress = progress
        self._stream = stream
        self._as_json = as_json
        self._searches: list[pb.SearchDone] = []

    def follow(self, stream: Stream[pb.StreamAnswerResponse]) -> pb.AnswerResponse:
        """Show what happens on the way, to the end; the answer. Raises `GatewayError`."""
        with stream as events:
            for event in events:
                self.on_event(event)
        return event.done

    def on_event(self, event: pb.StreamAnswerResponse) -> None:
        """Show what happens on the way."""
        if event.WhichOneof("event") == "search_done":
            self._searches.append(event.search_done)
        if self._stream and self._as_json:
            self._print_json(event)
        elif self._stream and (line := event_line(event)):
            self._progress.print(line, style="dim", markup=False, highlight=False)

    def show(self, answer: pb.AnswerResponse) -> None:
        """Show the answer; in streamed JSON it was the last event."""
        if not self._as_json:
            self._show_answer(answer)
        elif not self._stream:
            self._print_json(answer)

    def _print_json(self, message: pb.StreamAnswerResponse | pb.AnswerResponse) -> None:
        self._out.out(json_of(message), highlight=False)

    def _show_answer(self, answer: pb.AnswerResponse) -> None:
        outcome = word(AnswerOutcome, answer.outcome)
        sound = answer.outcome == pb.ANSWER_OUTCOME_ANSWERED and not answer.unsupported
        colour = "green" if sound else "yellow"
        # A panel makes no room for its subtitle
        shown = escape(answer.answer.ljust(len(outcome) + 2))
        self._out.print(
            Panel(shown, title="answer", subtitle=outcome, border_style=colour, expand=False)
        )
        if answer.unsupported:
            print_line(self._out, UNSUPPORTED, style="yellow")
        if without := missed(map(sub_answer_from_proto, answer.results)):
            print_line(self._out, without, style="yellow")
        for number, result in enumerate(answer.results, 1):
            print_line(self._out, f"{number}. {result.sub_query} → {result.answer}", style="bold")
            if result.shared_from:
                print_line(
                    self._out, f"found by {', '.join(result.shared_from)}", indent=3, style="dim"
                )
            for point in result.evidence:
                self._show_point(point)
        if answer.outcome in _UNANSWERED:
            self._show_searches()
        if answer.usage:
            self._out.print(usage_table(answer.usage))
        seconds = answer.duration.seconds + answer.duration.nanos / 1e9
        print_line(self._out, f"{answer.run_id}, {seconds:.1f} s", style="dim")

    def _show_point(self, point: evidence_pb2.EvidencePoint) -> None:
        """The sentences that it was found in; its own words too where they differ."""
        quotes = {" ".join(citation.quote.split()) for citation in point.citations}
        if not quotes:
            print_line(
                self._out,
                f"“{point.text}” is in no passage that was found",
                indent=3,
                style="yellow",
            )
        elif point.text not in quotes:
            print_line(self._out, point.text, indent=3)
        for citation in point.citations:
            print_line(self._out, source_line(citation), indent=3, style="cyan")

    def _show_searches(self) -> None:
        """Show searches that found no answer."""
        for search in self._searches:
            found = f"{len(search.titles)} passages" if len(search.titles) != 1 else "1 passage"
            of = f" of {', '.join(dict.fromkeys(search.titles))}" if search.titles else ""
            print_line(
                self._out, f"searched for “{search.query}”, which found {found}{of}", style="yellow"
            )
        if not self._searches:
            print_line(self._out, "nothing was searched for", style="yellow")
