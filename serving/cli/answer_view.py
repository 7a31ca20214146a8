"""How a terminal shows a run: progress on one stream, the answer on the other."""

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import evidence_pb2

from router.edge.rendering import event_line, missed, source_line, sub_answer_from_proto
from serving.cli.tables import message_json, usage_table

_FROM_REPORTS = (
    pb.ANSWER_OUTCOME_ANSWERED,
    pb.ANSWER_OUTCOME_ROUNDS_EXHAUSTED,
    pb.ANSWER_OUTCOME_TIME_EXHAUSTED,
    pb.ANSWER_OUTCOME_BUDGET_EXHAUSTED,
)
_UNANSWERED = (pb.ANSWER_OUTCOME_NOT_FOUND, pb.ANSWER_OUTCOME_NO_SEARCH)


class AnswerView:
    """Shows one run."""

    def __init__(self, out: Console, progress: Console, *, stream: bool, as_json: bool) -> None:
        """`stream` shows what happens on the way; `as_json` prints for programs."""
        self._out, self._progress, self._stream, self._as_json = out, progress, stream, as_json
        self._searches: list[pb.SearchDone] = []

    def tell(self, event: pb.StreamAnswerResponse) -> None:
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
        self._out.out(message_json(message), highlight=False)

    def _show_answer(self, answer: pb.AnswerResponse) -> None:
        outcome = pb.AnswerOutcome.Name(answer.outcome).removeprefix("ANSWER_OUTCOME_").lower().replace("_", " ")
        colour = "green" if answer.outcome == pb.ANSWER_OUTCOME_ANSWERED else "yellow"
        shown = escape(answer.answer.ljust(len(outcome) + 2))  # a panel makes no room for its subtitle
        self._out.print(Panel(shown, title="answer", subtitle=outcome, border_style=colour, expand=False))
        if answer.outcome in _FROM_REPORTS and not answer.citations:
            self._line("nothing that was retrieved holds this answer: check it", style="yellow")
        if without := missed(map(sub_answer_from_proto, answer.results)):
            self._line(without, style="yellow")
        for number, result in enumerate(answer.results, 1):
            self._line(f"{number}. {result.sub_query} → {result.answer}", style="bold")
            if result.shared_from:
                self._line(f"found by {', '.join(result.shared_from)}", indent=3, style="dim")
            for point in result.evidence:
                self._show_point(point)
        if answer.outcome in _UNANSWERED:
            self._show_searches()
        if answer.usage:
            self._out.print(usage_table(answer.usage))
        seconds = answer.duration.seconds + answer.duration.nanos / 1e9
        self._line(f"{answer.run_id}, {seconds:.1f} s", style="dim")

    def _show_point(self, point: evidence_pb2.EvidencePoint) -> None:
        """The sentences that it was found in; its own words too where they differ."""
        quotes = {" ".join(citation.quote.split()) for citation in point.citations}
        if not quotes:
            self._line(f"“{point.text}” is in no passage that was found", indent=3, style="yellow")
        elif point.text not in quotes:
            self._line(point.text, indent=3)
        for citation in point.citations:
            self._line(source_line(citation), indent=3, style="cyan")

    def _show_searches(self) -> None:
        """What was looked for in vain, and where."""
        for search in self._searches:
            found = f"{len(search.titles)} passages" if len(search.titles) != 1 else "1 passage"
            of = f" of {', '.join(dict.fromkeys(search.titles))}" if search.titles else ""
            self._line(f"searched for “{search.query}”, which found {found}{of}", style="yellow")
        if not self._searches:
            self._line("nothing was searched for", style="yellow")

    def _line(self, text: str, *, indent: int = 0, style: str = "") -> None:
        self._out.print(Padding(Text(text, style), (0, 0, 0, indent), expand=False))
