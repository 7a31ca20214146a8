"""How a terminal shows a run: progress on one stream, the answer on the other."""

import orjson
from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import evidence_pb2, usage_pb2


class AnswerView:
    """Shows the events of one run."""

    def __init__(self, out: Console, progress: Console, *, stream: bool, as_json: bool) -> None:
        """`stream` shows what happens on the way; `as_json` prints for programs."""
        self._out, self._progress, self._stream, self._as_json = out, progress, stream, as_json

    def show(self, event: pb.StreamAnswerResponse) -> None:
        """Show one event; the last one is the answer."""
        if self._as_json:
            if self._stream:
                self._print_json(event)
            elif event.WhichOneof("event") == "done":
                self._print_json(event.done)
        elif event.WhichOneof("event") == "done":
            self._show_answer(event.done)
        elif self._stream and (line := _progress_line(event)):
            self._progress.print(line, highlight=False)

    def _print_json(self, message: pb.StreamAnswerResponse | pb.AnswerResponse) -> None:
        as_dict = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        self._out.out(orjson.dumps(as_dict).decode(), highlight=False)

    def _show_answer(self, answer: pb.AnswerResponse) -> None:
        outcome = pb.AnswerOutcome.Name(answer.outcome).removeprefix("ANSWER_OUTCOME_").lower().replace("_", " ")
        colour = "green" if answer.outcome == pb.ANSWER_OUTCOME_ANSWERED else "yellow"
        shown = escape(answer.answer.ljust(len(outcome) + 2))  # a panel makes no room for its subtitle
        self._out.print(Panel(shown, title="answer", subtitle=outcome, border_style=colour, expand=False))
        for number, result in enumerate(answer.results, 1):
            self._show_result(number, result)
        if answer.usage:
            self._out.print(_usage_table(list(answer.usage)))
        seconds = answer.duration.seconds + answer.duration.nanos / 1e9
        self._out.print(f"{answer.run_id}, {seconds:.1f} s", style="dim", highlight=False)

    def _show_result(self, number: int, result: evidence_pb2.SubQueryResult) -> None:
        self._out.print(f"{number}. {escape(result.sub_query)} [bold]{escape(result.answer)}[/bold]", highlight=False)
        for point in result.evidence:
            titles = (
                ", ".join(dict.fromkeys(citation.title for citation in point.citations))
                or "in no passage that was found"
            )
            self._out.print(f'   "{escape(point.text)}" [cyan]\\[{escape(titles)}][/cyan]', highlight=False)


def _progress_line(event: pb.StreamAnswerResponse) -> str | None:
    match event.WhichOneof("event"):
        case "round_started":
            return f"[bold]round {event.round_started.round}[/bold]"
        case "sub_query_dispatched":
            return f"  → {event.sub_query_dispatched.index + 1}. {escape(event.sub_query_dispatched.sub_query)}"
        case "search_done":
            found = ", ".join(event.search_done.titles) or "nothing"
            return f"    [dim]searched “{escape(event.search_done.query)}”: {escape(found)}[/dim]"
        case "reported":
            return f"  ← {event.reported.index + 1}. {escape(event.reported.result.answer)}"
        case _:
            return None


def _usage_table(usage: list[usage_pb2.RoleUsage]) -> Table:
    table = Table("role", "model", title="tokens by role", title_justify="left")
    for column in ("calls", "prompt", "of these cached", "completion"):
        table.add_column(column, justify="right")
    for row in usage:
        table.add_row(
            usage_pb2.Role.Name(row.role).removeprefix("ROLE_").lower(),
            escape(row.model),
            str(row.attempts),
            str(row.prompt_tokens),
            str(row.cached_tokens) if row.HasField("cached_tokens") else "unknown",
            str(row.completion_tokens),
        )
    total = [sum(getattr(row, field) for row in usage) for field in ("attempts", "prompt_tokens", "completion_tokens")]
    table.add_section()
    table.add_row("all", "", str(total[0]), str(total[1]), "", str(total[2]))
    return table
