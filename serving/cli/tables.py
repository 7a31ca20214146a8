"""Tables and texts with which commands show runs, answers, model calls, tokens, cost and executor
versions.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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

from router.edge.rendering import UNSUPPORTED, answer_from_proto, event_line, marked, missed
from serving.cli.grid import new_table, print_line
from serving.cli.options import json_of


def word(kind: EnumTypeWrapper, value: Any) -> str:
    """Return the name of a protobuf enum's value in lower-case words, without the enum's name:
    "timed out" for `EXECUTION_OUTCOME_TIMED_OUT`. For `TABLE_OUTCOME_FILLED` return "done", because
    such a table may still have empty cells.
    """
    name = kind.Name(value).removeprefix(kind.Name(0).removesuffix("UNSPECIFIED"))
    return "done" if name == "FILLED" else name.lower().replace("_", " ")


TIMES = {"hour": "%Y-%m-%d %H:%M", "day": "%Y-%m-%d", "month": "%Y-%m"}
"""`strftime` formats for the start of a time bucket (hour, day or month), by the bucket's size."""


def usage_table(usage: Iterable[RoleUsage]) -> Table:
    """Return a table of tokens and cost: a row for each role and model (and manager, if there are
    any), and a last row with the sums. `usage`: the usage of one or more answers.
    """
    groups = defaultdict[tuple[Any, str, str], list[RoleUsage]](list)
    for row in usage:
        groups[row.role, row.model, row.manager].append(row)
    rows = list[UsageRow]()
    for (role, model, manager), members in groups.items():
        summed = total(members)
        summed.MergeFrom(RoleUsage(role=role, model=model, manager=manager))
        rows.append(UsageRow(usage=summed))
    managed = any(row.usage.manager for row in rows)
    return grouped_table(rows, ("role", "model", *(["manager"] if managed else [])))


def grouped_table(rows: Sequence[UsageRow], by: Sequence[str], bucket: str | None = None) -> Table:
    """Return a table of tokens and cost: a row for each of `rows`, and a last row with the sums.
    `by`: names of the properties to show in each row, such as `tenant` (see `labels`). `bucket`:
    size of the time buckets, a key of `TIMES`; None if the rows have no times.
    """
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
    table.add_row("all", *[""] * (len(texts) - 1), *_figures(total(sums), wasted=wasted))
    return table


def labels(row: UsageRow) -> dict[str, str]:
    """Return the properties that all calls in a row have in common, such as tenant and role. The
    keys are the names that --by and the tables use. A property is empty if the rows are not grouped
    by it.
    """
    role = word(Role, row.usage.role) if row.usage.role else ""
    return {
        "tenant": row.tenant,
        "role": role,
        "model": row.usage.model,
        "version": row.executor_version,
        "manager": row.usage.manager,
        "key": row.key_id,
    }


def total(usage: Iterable[RoleUsage]) -> RoleUsage:
    """Return the sum of each figure over the rows of `usage`. If a figure is unknown in every row,
    its sum is not set.
    """
    sums = RoleUsage()
    for row in usage:
        for field, count in row.ListFields():
            if field.name not in ("role", "model", "manager"):
                setattr(sums, field.name, getattr(sums, field.name) + count)
    return sums


def _cost(calls: RoleUsage | UpstreamCall, attempts: int, unknown: int) -> str:
    """Return the cost of one or more attempts as text, in dollars. `attempts`: number of attempts.
    `unknown`: number of attempts without a known cost.
    """
    if not calls.HasField("cost_nano_usd"):
        return "unknown" if attempts else "$0"
    dollars = calls.cost_nano_usd / 1e9
    shown = f"${dollars:,.4f}" if dollars >= 1 else f"${dollars:.6f}"
    return f"{shown} ({unknown} unknown)" if unknown else shown


def uncounted(row: RoleUsage) -> bool:
    """Return True if `row` has attempts, and the token counts of all of them are unknown."""
    return 0 < row.attempts == row.attempts_without_usage


def _figures(row: RoleUsage, *, wasted: bool) -> list[str]:
    unknown = (
        f" ({row.attempts_without_usage} without token counts)"
        if row.attempts_without_usage
        else ""
    )
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
        _cost(row, row.attempts, row.attempts_without_cost),
    ]


_MARKS = {"reported": "", "lower_bound": "≥", "estimated": "~"}


def runs_table(runs: Sequence[Run]) -> Table:
    """Return a table with one line for each run. The text of the request is shortened, so that the
    table fits into 80 columns. The column for the kind or the tenant is left out if its value is
    the same for all runs.
    """
    names = ["run", "kind", "status", "tenant", "started UTC", "s", "request"]
    rows: list[list[Any]] = [
        [
            run.run_id,
            word(RunKind, run.kind),
            _status(run),
            _one_line(run.tenant),
            run.start_time.ToDatetime(UTC).strftime("%m-%d %H:%M"),
            f"{run.duration.ToTimedelta().total_seconds():.1f}" if run.HasField("duration") else "",
            _one_line(run.request),
        ]
        for run in runs
    ]
    for index in (3, 1):
        if len({str(row[index]) for row in rows}) < 2:
            for row in (names, *rows):
                del row[index]
    columns = [Column(name, no_wrap=name not in ("tenant", "request")) for name in names]
    table = new_table(columns, rows, texts=len(names))
    table.columns[-2].justify = "right"
    return table


def _one_line(text: str) -> Text:
    return Text(" ".join(text.split()), no_wrap=True, overflow="ellipsis")


def calls_table(calls: Sequence[UpstreamCall]) -> Table:
    """Return a table with a row for each attempt of a model call. A token count after ≥ is a lower
    bound, and a count after ~ is an estimate. If the endpoint reported a count that cannot be true,
    the word `impossible` is shown instead.
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
                _cost(call, 1, 0),
                f"{call.duration.ToTimedelta().total_seconds():.2f}",
            )
        )
    return new_table(
        ("#", "role", "model", "why", "outcome", "prompt", "written", "cost", "s"), rows, texts=5
    )


def feedback_line(feedback: Feedback) -> str:
    """Return feedback on a run as one line."""
    verdict = word(Verdict, feedback.verdict) if feedback.verdict else ""
    score = f"score {feedback.score:g}" if feedback.HasField("score") else ""
    gold = f"right answer {feedback.right_answer!r}" if feedback.right_answer else ""
    return (
        ", ".join(filter(None, (verdict, score, gold, feedback.comment)))
        or "its texts are not stored"
    )


def _status(run: Run) -> str:
    """Return the outcome of an answer or a table in words; for other runs, the status. An answer
    with a name or number that its evidence does not contain is "unsupported".
    """
    if run.table_outcome:
        return word(TableOutcome, run.table_outcome)
    if run.unsupported:
        return "unsupported"
    return word(AnswerOutcome, run.outcome) if run.outcome else word(RunStatus, run.status)


_CAPTION = "a/b: the version / the active version, on the same runs; tokens per run"


def versions_table(versions: Sequence[ExecutorVersion]) -> Table:
    """Return a table with a row for each version: its state, and the figures of its trial."""
    texts = [Column(name, no_wrap=True) for name in ("version", "state", "since (UTC)")]
    rows = []
    for version in versions:
        figures = _trial_figures(version.figures) if version.HasField("figures") else ()
        rows.append((version.version, state_of(version), _time(version.state_time), *figures))
    table = new_table([*texts, "runs", "right", "failed", "tokens"], rows, texts=3)
    if any(version.HasField("figures") for version in versions):
        table.caption = _CAPTION
        table.caption_justify = "left"
    return table


def decisions_table(decisions: Iterable[ExecutorVersionDecision]) -> Table:
    """Return a table with a row for each decision on a version, with its reason."""
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
    return new_table([*fixed, "why"], rows, texts=6)


def state_of(version: ExecutorVersion) -> str:
    """Return the state of a version in words. For a canary, add its share of the runs."""
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


def _time(timestamp: Timestamp) -> str:
    return timestamp.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M")


@dataclass
class RunView(ABC):
    """Shows one run: its events while it is running, and its result."""

    doing = "asking"
    """Text of the progress line before the first event that has its own text."""

    out: Console
    """Console for the result."""
    progress: Console
    """Console for the events and the progress line, and for notes on the result."""
    stream: bool
    """Whether to show the events of the run."""
    as_json: bool
    """Whether to print the result as JSON, and also the events if `stream` is true."""

    def follow(self, stream: Stream[Any]) -> Any:
        """Show the events of a run until it ends; return its result. Raises `GatewayError`."""
        with stream as events, self.progress.status(self.doing) as status:
            for event in events:
                status.update(escape(self.so_far(event)))
                if self.stream and self.as_json:
                    self.out.out(json_of(event), highlight=False)
                elif self.stream and (line := event_line(event)):
                    print_line(self.progress, line, style="dim")
        return event.done

    def so_far(self, _event: Any) -> str:
        """Return the text of the progress line after an event."""
        return self.doing

    def show(self, result: Any) -> None:
        """Show the result of the run. If the events were printed as JSON, print nothing, because
        the last event contained the result.
        """
        if not self.as_json:
            self.show_result(result)
        elif not self.stream:
            self.out.out(json_of(getattr(result, "message", result)), highlight=False)

    @abstractmethod
    def show_result(self, result: Any) -> None:
        """Print the result as text for people."""


class AnswerView(RunView):
    """Shows a run that answers a question: its events, and the answer with its evidence."""

    _answer = ""

    def so_far(self, event: Any) -> str:
        """Return the part of the answer that has been written so far, if any; else `doing`."""
        if event.WhichOneof("event") == "answer_delta":
            delta = event.answer_delta
            self._answer = self._answer[: delta.kept_chars] + delta.text
        elif event.WhichOneof("event") == "done":
            self._answer = ""
        return self._answer or self.doing

    def show_result(self, answer: pb.AnswerResponse) -> None:
        """Show the answer, with its sub-queries, evidence and cost."""
        outcome = word(AnswerOutcome, answer.outcome)
        sound = answer.outcome == pb.ANSWER_OUTCOME_ANSWERED and not answer.unsupported
        # A panel is only as wide as its text, so the text is padded to the width of the subtitle
        shown = marked(answer.answer, answer.sentences)
        text = escape(shown.ljust(len(outcome) + 2))
        colour = "green" if sound else "yellow"
        self.out.print(
            Panel(
                text,
                title="answer",
                subtitle=outcome,
                border_style=colour,
                expand=False,
            )
        )
        if shown != answer.answer:
            for number, citation in enumerate(answer.citations, 1):
                print_line(self.out, f"[{number}] {source_line(citation)}", style="cyan")
        if answer.unsupported:
            print_line(self.out, UNSUPPORTED, style="yellow")
        if warning := missed(answer_from_proto(answer).results):
            print_line(self.out, warning, style="yellow")
        for number, result in enumerate(answer.results, 1):
            print_line(self.out, f"{number}. {result.sub_query} → {result.answer}", style="bold")
            if result.shared_from:
                print_line(
                    self.out, f"reused from {', '.join(result.shared_from)}", indent=3, style="dim"
                )
            for point in result.evidence:
                self._show_point(point)
        if answer.usage:
            self.out.print(usage_table(answer.usage))
        seconds = answer.duration.ToTimedelta().total_seconds()
        print_line(self.out, f"{answer.run_id}, {seconds:.1f} s", style="dim")

    def _show_point(self, point: evidence_pb2.EvidencePoint) -> None:
        """Print a point (a sentence of a report's evidence) and the supporting sentences from
        passages. The point itself is left out if it is equal to one of these sentences.
        """
        quotes = {" ".join(citation.quote.split()) for citation in point.citations}
        if not quotes:
            print_line(
                self.out,
                f"“{point.text}” is in no passage that was found",
                indent=3,
                style="yellow",
            )
        elif point.text not in quotes:
            print_line(self.out, point.text, indent=3)
        for citation in point.citations:
            print_line(self.out, source_line(citation), indent=3, style="cyan")
