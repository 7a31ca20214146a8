"""Runs, answers, tokens and cost, for a terminal."""

from collections.abc import Iterable, Sequence
from datetime import UTC
from typing import Any

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console
from rich.markup import escape
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
from serving.cli.grid import counted, new_table, print_line
from serving.cli.options import json_of


def word(kind: EnumTypeWrapper, value: Any) -> str:
    """Return the name of an enum's value in words, without the enum's own name."""
    return (
        kind.Name(value)
        .removeprefix(kind.Name(0).removesuffix("UNSPECIFIED"))
        .lower()
        .replace("_", " ")
    )


TIMES = {"hour": "%Y-%m-%d %H:%M", "day": "%Y-%m-%d", "month": "%Y-%m"}
"""Formats of the start of a bucket."""


def usage_table(usage: Iterable[RoleUsage]) -> Table:
    """Return a row for each role and model, and for each manager if there are any, and a sum."""
    rows = [UsageRow(usage=row) for row in usage]
    managed = any(row.usage.manager for row in rows)
    return grouped_table(rows, ("role", "model", "manager") if managed else ("role", "model"))


def grouped_table(rows: Sequence[UsageRow], by: Sequence[str], bucket: str | None = None) -> Table:
    """Return a row for each group, and a sum. `by`: names of `labels`."""
    sums = [row.usage for row in rows]
    wasted = any(row.wasted_tokens for row in sums)
    texts: list[Column | str] = [*by]
    if bucket:
        texts.insert(0, Column(bucket, no_wrap=True))
    figures = ["calls", "prompt", "cached", "written", *(["wasted"] if wasted else []), "cost"]
    table = new_table([*texts, *figures], texts=len(texts))
    for row in rows:
        starts = [row.bucket_start_time.ToDatetime(UTC).strftime(TIMES[bucket])] if bucket else []
        groups = [escape(labels(row)[name]) or "–" for name in by]
        table.add_row(*starts, *groups, *_figures(row.usage, wasted=wasted))
    table.add_section()
    blanks = [""] * (len(texts) - 1)
    table.add_row("all", *blanks, *_figures(total(sums), wasted=wasted))
    return table


def labels(row: UsageRow) -> dict[str, str]:
    """Return the groups of a sum, by the names that options and tables use."""
    role = word(Role, row.usage.role) if row.usage.role else ""
    known = {
        "tenant": row.tenant,
        "role": role,
        "model": row.usage.model,
        "version": row.executor_version,
    }
    return known | {"manager": row.usage.manager}


def summed(usage: Iterable[RoleUsage]) -> list[RoleUsage]:
    """Return sums by role, model and manager; what no row knows stays unknown."""
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
    """Return one sum over all rows; what no row knows stays unknown."""
    sums = RoleUsage()
    for row in usage:
        for field, count in row.ListFields():
            if field.name not in ("role", "model", "manager"):
                setattr(sums, field.name, getattr(sums, field.name) + count)
    return sums


def cost(nano_usd: int | None, attempts: int, unknown: int) -> str:
    """Return dollars for a number of attempts, of which `unknown` have no known cost."""
    if nano_usd is None:
        return "unknown" if attempts else "$0"
    dollars = nano_usd / 1e9
    shown = f"${dollars:,.4f}" if dollars >= 1 else f"${dollars:.6f}"
    return f"{shown} ({unknown} unknown)" if unknown else shown


def uncounted(row: RoleUsage) -> bool:
    """Return whether the usage of all its attempts is unknown."""
    return 0 < row.attempts == row.attempts_without_usage


def _figures(row: RoleUsage, *, wasted: bool) -> list[str]:
    unknown = f" ({row.attempts_without_usage} unknown)" if row.attempts_without_usage else ""
    nano_usd = row.cost_nano_usd if row.HasField("cost_nano_usd") else None
    cached = "unknown"
    if row.HasField("cached_tokens"):
        cached = f"{row.cached_tokens / max(row.prompt_tokens, 1):.0%}"
    prompt, written, wasted_tokens = (
        "unknown" if uncounted(row) else f"{tokens:,}"
        for tokens in (row.prompt_tokens, row.completion_tokens, row.wasted_tokens)
    )
    return [
        f"{row.attempts:,}{unknown}",
        prompt,
        cached,
        written,
        *([wasted_tokens] if wasted else []),
        cost(nano_usd, row.attempts, row.attempts_without_cost),
    ]


_MARKS = {"reported": "", "lower_bound": "≥", "estimated": "~"}


def runs_table(runs: Sequence[Run]) -> Table:
    """Return a line for each run, at most 80 columns wide; requests get the room that is left.
    Kinds and tenants are shown if there are several.
    """
    kinds = len({run.kind for run in runs}) > 1
    tenants = len({run.tenant for run in runs}) > 1
    names = ["run", *(["kind"] if kinds else []), "status", *(["tenant"] if tenants else [])]
    columns = [Column(name, no_wrap=name != "tenant") for name in (*names, "started UTC", "s")]
    table = new_table([*columns, "request"], texts=len(names) + 1)
    table.columns[-1].justify = "left"
    for run in runs:
        seconds = run.duration.ToTimedelta().total_seconds()
        table.add_row(
            run.run_id,
            *([word(RunKind, run.kind)] if kinds else []),
            _status(run),
            *([_one_line(run.tenant)] if tenants else []),
            run.start_time.ToDatetime(UTC).strftime("%m-%d %H:%M"),
            f"{seconds:.1f}" if run.HasField("duration") else "",
            _one_line(run.request),
        )
    return table


def _one_line(text: str) -> Text:
    return Text(" ".join(text.split()), no_wrap=True, overflow="ellipsis")


def calls_table(calls: Sequence[UpstreamCall]) -> Table:
    """Return a row for each attempt. Before a count, ≥ marks a lower bound and ~ an estimate;
    `impossible` stands for a reported count that cannot be true.
    """
    rows = []
    for call in calls:
        mark = _MARKS.get(call.counted)
        prompt = written = call.counted or "unknown"
        if mark is not None:
            prompt = f"{mark}{call.prompt_tokens:,}"
            written = f"{mark}{call.completion_tokens:,}"
        rows.append(
            (
                call.call_id.rpartition("-")[2],
                f"{word(Role, call.role)} {call.manager}".rstrip(),
                call.model,
                call.purpose,
                call.outcome,
                prompt,
                written,
                cost(call.cost_nano_usd if call.HasField("cost_nano_usd") else None, 1, 0),
                f"{call.duration.ToTimedelta().total_seconds():.2f}",
            )
        )
    texts = ("#", "role", "model", "why", "outcome")
    return new_table((*texts, "prompt", "written", "cost", "s"), rows, texts=len(texts))


def tools_table(sums: Iterable[ToolSums]) -> Table:
    """Return a row for each tool."""
    rows = [
        (row.server, row.tool, row.calls, row.failures, f"{row.duration_s:.1f}") for row in sums
    ]
    return new_table(("server", "tool", "calls", "failed", "s"), rows, texts=2)


def feedback_line(feedback: Feedback) -> str:
    """Return feedback on a run as one line."""
    verdict = word(Verdict, feedback.verdict) if feedback.verdict else ""
    score = f"score {feedback.score:g}" if feedback.HasField("score") else ""
    gold = f"right answer {feedback.right_answer!r}" if feedback.right_answer else ""
    return (
        ", ".join(filter(None, (verdict, score, gold, feedback.comment)))
        or "its texts are not kept"
    )


def _status(run: Run) -> str:
    """Return the outcome of an answer or a table, or the status of a run without one."""
    if run.table_outcome:
        return word(TableOutcome, run.table_outcome)
    if run.unsupported:
        return "unsupported"
    return word(AnswerOutcome, run.outcome) if run.outcome else word(RunStatus, run.status)


_CAPTION = "version/active version, on the same runs; tokens per run"


def versions_table(versions: Sequence[ExecutorVersion]) -> Table:
    """Return a row for each version, with the figures of its trial."""
    texts = [Column(name, no_wrap=True) for name in ("version", "state", "since (UTC)")]
    table = new_table([*texts, "runs", "right", "failed", "tokens"], texts=len(texts))
    for version in versions:
        figures = _trial_figures(version.figures) if version.HasField("figures") else ()
        since = _time(version.state_time)
        table.add_row(escape(version.version), state_of(version), since, *figures)
    if any(version.HasField("figures") for version in versions):
        table.caption = _CAPTION
        table.caption_justify = "left"
    return table


def decisions_table(decisions: Iterable[ExecutorVersionDecision]) -> Table:
    """Return a row for each decision, with its reason."""
    fixed = [
        Column(name, no_wrap=True) for name in ("#", "time (UTC)", "version", "decision", "by")
    ]
    rows = [
        (
            decision.number,
            _time(decision.time),
            decision.version,
            decision.decision,
            decision.decided_by,
            decision.reason,
        )
        for decision in decisions
    ]
    return new_table([*fixed, "why"], rows, texts=len(fixed) + 1)


def evidence_line(version: ExecutorVersion) -> str:
    """Return the evidence that a version is not worse than the active one, and that it is."""
    ratios = (
        f"{evidence.measure} {_evidence(evidence.in_favour)} to {_evidence(evidence.against)}"
        for evidence in version.figures.evidence
    )
    return f"evidence for {version.version}, to that against it: {', '.join(ratios)}"


def state_of(version: ExecutorVersion) -> str:
    """Return the state of a version in words."""
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


def _evidence(evidence: float) -> str:
    if evidence >= 1000:
        return ">999"
    return f"{evidence:.2g}" if evidence < 100 else f"{evidence:.0f}"


def _time(timestamp: Timestamp) -> str:
    return timestamp.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M")


_UNANSWERED = (pb.ANSWER_OUTCOME_NOT_FOUND, pb.ANSWER_OUTCOME_NO_SEARCH)


class AnswerView:
    """Shows one run."""

    def __init__(
        self,
        out: Console,
        progress: Console,
        *,
        stream: bool,
        as_json: bool,
    ) -> None:
        """`stream`: show events while the run goes on. `as_json`: print for programs."""
        self._out = out
        self._progress = progress
        self._stream = stream
        self._as_json = as_json
        self._searches: list[pb.SearchDone] = []

    def follow(self, stream: Stream[pb.StreamAnswerResponse]) -> pb.AnswerResponse:
        """Show events until the run ends; return its answer. Raises `GatewayError`."""
        with stream as events:
            for event in events:
                self.on_event(event)
        return event.done

    def on_event(self, event: pb.StreamAnswerResponse) -> None:
        """Show one event."""
        if event.WhichOneof("event") == "search_done":
            self._searches.append(event.search_done)
        if self._stream and self._as_json:
            self._print_json(event)
        elif self._stream and (line := event_line(event)):
            self._progress.print(line, style="dim", markup=False, highlight=False)

    def show(self, answer: pb.AnswerResponse) -> None:
        """Show the answer, unless it was the last event of streamed JSON."""
        if not self._as_json:
            self._show_answer(answer)
        elif not self._stream:
            self._print_json(answer)

    def _print_json(self, message: pb.StreamAnswerResponse | pb.AnswerResponse) -> None:
        self._out.out(json_of(message), highlight=False)

    def _show_answer(self, answer: pb.AnswerResponse) -> None:
        outcome = word(AnswerOutcome, answer.outcome)
        sound = answer.outcome == pb.ANSWER_OUTCOME_ANSWERED and not answer.unsupported
        # A panel makes no room for its subtitle
        text = escape(answer.answer.ljust(len(outcome) + 2))
        colour = "green" if sound else "yellow"
        self._out.print(
            Panel(
                text,
                title="answer",
                subtitle=outcome,
                border_style=colour,
                expand=False,
            )
        )
        if answer.unsupported:
            print_line(self._out, UNSUPPORTED, style="yellow")
        if warning := missed(map(sub_answer_from_proto, answer.results)):
            print_line(self._out, warning, style="yellow")
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
        """Show the sentences that support a point, and its own words if they differ."""
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
            passages = counted(len(search.titles), "passage")
            titles = f" of {', '.join(dict.fromkeys(search.titles))}" if search.titles else ""
            line = f"searched for “{search.query}”, which found {passages}{titles}"
            print_line(self._out, line, style="yellow")
        if not self._searches:
            print_line(self._out, "nothing was searched for", style="yellow")
