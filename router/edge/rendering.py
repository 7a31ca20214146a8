"""Rendering of answers and tables with their sources: as values for programs, and as Markdown for
people.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from rolegate.client.text import markdown, model_markdown, source_line, visible
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import table_service_pb2 as table_pb

from router.background import in_viewer
from router.edge.grpc.convert_request import from_proto
from router.edge.run_table import run_table
from router.errors import UpstreamUnavailable
from router.frozen import Frozen
from router.protocol.tags import without_thinking
from router.runs.support import AnswerSentence, answer_sentences, grounds_of, unblocked
from router.table.table_text import to_markdown
from router.trace import Conversation, Execution, Run, Trajectory
from router.trace.citation import Citation
from router.trace.export import output_of
from router.trace.values import AnswerDelta, Reported, TableRun

_UNANSWERED = (
    "not_found",
    "no_search",
    "no_report",
    "timed_out",
    "model_failed",
    "retrieval_failed",
)


SOURCES = "\n\nSources:\n"
"""Text between an answer and the list of its sources."""
_MARKUP = frozenset("\\!<&[](:#")
"""Characters that can begin or continue Markdown markup."""
UNSUPPORTED = "Unsupported: the retrieved passages do not contain all of this answer; check it."
"""Warning below an answer that has names or numbers that no cited evidence contains."""


class SubAnswer(Frozen):
    """A sub-query with the answer in its report."""

    sub_query: str
    answer: str
    outcome: str = "reported"
    """Name of an `ExecutionOutcome`, in lower case and without the prefix of the enum."""


class CitedAnswer(Frozen):
    """The result of a finished run with its sources. The HTTP server, the command line and MCP show
    it to users.
    """

    run_id: str
    outcome: str
    """Name of an `AnswerOutcome`, `ExecutionOutcome` or `TableOutcome`, in lower case and without
    the prefix of the enum; `completed` for a completion.
    """
    answer: str
    """Text of the result: an answer, the answer in a report, a table in Markdown, or a completion.
    """
    citations: tuple[Citation, ...]
    """Sentences that support the answer, without duplicates."""
    results: tuple[SubAnswer, ...]
    """Sub-queries with their answers, in the order in which they were dispatched."""
    unsupported: bool = False
    """True if the answer has names or numbers that no cited evidence contains."""
    question: str = ""
    """The question that was searched, if it was rewritten from a conversation; else empty."""
    sentences: tuple[AnswerSentence, ...] = ()
    """The sentences of the answer; see `router.runs.support.answer_sentences`."""

    @property
    def text(self) -> str:
        """The result in Markdown: the answer, then its numbered sources or the reason why there are
        none, then the sub-queries without a report.

        In the answer, only images, links and HTML are escaped; in the other texts, all markup is
        escaped. The sentences of the answer have marks; see the function `marked`.
        """
        doubt = UNSUPPORTED if self.unsupported else ""
        return "\n\n".join(
            filter(None, (self._shown(), doubt, self._below(), markdown(missed(self.results))))
        )

    @property
    def marked(self) -> str:
        """The answer with marks after its sentences; see the function `marked`."""
        return marked(self.answer, self.sentences)

    def _shown(self) -> str:
        return model_markdown(self.marked)

    def _below(self) -> str:
        if self.outcome in ("out_of_scope", "completed", "clarify"):
            return ""
        if self.outcome in _UNANSWERED:
            searched = "; ".join(f"“{result.sub_query}”" for result in self.results)
            return (
                f"Searched for: {markdown(searched)}." if searched else "Nothing was searched for."
            )
        if not self.citations:
            return "" if self.unsupported else "No retrieved passage supports this answer."
        lines = [SOURCES.strip()]
        for number, citation in enumerate(self.citations, 1):
            lines.append(f"[{number}] {markdown(source_line(citation))}")
        return "\n".join(lines)


def marked(answer: str, sentences: Sequence[Any]) -> str:
    """Return an answer of several sentences with a mark after each: the numbers of the citations
    that support it, such as `[1][3]`, or `[unsupported]`. An answer of one sentence has no marks.

    `sentences`: `AnswerSentence`s, or the gRPC messages of the same name.
    """
    if len(sentences) < 2:
        return answer
    pieces = list[str]()
    start = 0
    for sentence in sentences:
        pieces.append(answer[start : sentence.end_char])
        start = sentence.end_char
        marks = [f"[{index + 1}]" for index in sentence.citation_indexes]
        if not sentence.supported:
            marks = ["[unsupported]"]
        if marks:
            pieces.append(f" {''.join(marks)}")
    return "".join((*pieces, answer[start:]))


class _CitedTable(CitedAnswer, frozen=True):
    """The result of a table's run. Its `answer` is Markdown that `_fenced` wrote, so it needs no
    escaping.
    """

    def _shown(self) -> str:
        return self.answer


class AnswerText:
    """Markdown of an answer that is still being written. Text that was sent cannot be replaced, so
    `take` returns only text that does not change any more.
    """

    def __init__(self) -> None:
        self._answer = ""
        self._read = 0
        self._sent = ""

    def take(self, delta: AnswerDelta) -> str:
        """Add a part of the answer, and return the Markdown that can be sent now. The Markdown ends
        at a place where no markup is open, so later parts do not change it.
        """
        self._answer = self._answer[: delta.kept_chars] + delta.text
        end = len(self._answer) - 1
        while end > self._read and not _MARKUP.isdisjoint(self._answer[end - 1 : end + 1]):
            end -= 1
        if delta.kept_chars < self._read or end <= self._read:
            return ""
        piece = model_markdown(self._answer[self._read : end])
        self._read = end
        self._sent += piece
        return piece

    def rest(self, text: str) -> str:
        """Return the part of `text`, the whole Markdown, that was not sent yet. Raises
        `UpstreamUnavailable` if `text` does not begin with the text that was sent, because a retry
        wrote a different answer.
        """
        if not text.startswith(self._sent):
            raise UpstreamUnavailable(
                "the call failed while the answer was streamed, and the repeated call wrote a "
                "different answer; ask again",
                endpoint="its endpoint",
                role="answer",
            )
        return text[len(self._sent) :]


def missed(results: Iterable[SubAnswer]) -> str:
    """Return a sentence that lists the sub-queries without a report, each with the reason. Empty if
    all of them have a report.
    """
    without = [
        f"“{result.sub_query}” ({result.outcome.replace('_', ' ')})"
        for result in results
        if result.outcome != "reported"
    ]
    return f"Could not look up: {'; '.join(without)}." if without else ""


async def cited_answer(run: Run) -> CitedAnswer:
    """Return the result of a finished run (answer, report, table, completion) with its sources."""
    result = run.result
    if isinstance(result, TableRun):
        return await in_viewer(_cited_table, run, result)
    if isinstance(result, Conversation):
        return CitedAnswer(
            run.id,
            "completed",
            without_thinking(output_of(run)).strip(),
            (),
            (),
        )
    assert isinstance(result, Trajectory | Execution)
    return await unblocked(result, _cited_answer, run, result)


def _cited_answer(run: Run, result: Trajectory | Execution) -> CitedAnswer:
    executions = result.executions if isinstance(result, Trajectory) else (result,)
    cited = [execution.citations(execution.report.evidence) for execution in executions]
    grounds = grounds_of(executions, cited)
    sentences = list[AnswerSentence]()
    if isinstance(result, Trajectory):
        answer = result.answer
        sentences = answer_sentences(run.question, result, grounds)
    else:
        answer = result.report.answer
    return CitedAnswer(
        run.id,
        result.outcome,
        answer,
        tuple(grounds),
        tuple(map(_sub_answer, executions)),
        run.unsupported,
        run.question if run.question != run.request else "",
        tuple(sentences),
    )


def _cited_table(run: Run, result: TableRun) -> CitedAnswer:
    table = run_table(run).table
    cells = [cell for row in table.rows for cell in row.cells]
    shown = _fenced(table.schema.columns, table.rows)
    best = (claim for cell in cells if cell.state != "given" for claim in cell.claims[:1])
    citations = dict.fromkeys(at for claim in best for at in claim.citations)
    return _CitedTable(
        run.id,
        result.outcome,
        shown,
        tuple(citations),
        (),
    )


def _fenced(columns: Iterable[Any], rows: Iterable[Any]) -> str:
    """Return a table as a fenced Markdown code block. No line of the table can end the block."""
    table = to_markdown(tuple(columns), ([cell.value for cell in row.cells] for row in rows))
    return f"```markdown\n{visible(table)}```"


def table_from_proto(table: table_pb.Table) -> CitedAnswer:
    """Convert a `Table` message to the result that is shown to users."""
    cited = (at for row in table.rows for cell in row.cells for at in cell.citations)
    citations = dict.fromkeys(from_proto(Citation, at) for at in cited)
    return from_proto(
        _CitedTable,
        table,
        answer=_fenced(table.columns, table.rows),
        citations=tuple(citations),
        results=(),
    )


def answer_from_proto(response: pb.AnswerResponse) -> CitedAnswer:
    """Convert an `AnswerResponse` message to the result that is shown to users."""
    return from_proto(CitedAnswer, response)


def event_line(response: pb.StreamAnswerResponse | table_pb.StreamTableResponse) -> str | None:
    """Return the `progress_line` of an event message; None for events without such a line."""
    kind = response.WhichOneof("event")
    return kind and progress_line(getattr(response, kind))


def progress_line(event: Any) -> str | None:
    """Return an event as an indented line of text for users: the start of a round, a dispatched
    sub-query, a search or a report. Return None for other events.

    `event`: an `Event` of a run, or the gRPC message of the same name.
    """
    match type(event).__name__:
        case "RoundStarted":
            return f"round {event.round}"
        case "SubQueryDispatched":
            return f"  → {event.index + 1}. {event.sub_query}"
        case "SearchDone":
            return f"    searched “{event.query}”: {', '.join(event.titles) or 'nothing'}"
        case "Reported":
            return f"  ← {event.index + 1}. {_reported(event)}"
        case _:
            return None


def _reported(event: Any) -> str:
    result: SubAnswer | None = None
    if isinstance(event, Reported):
        if event.execution is not None:
            result = _sub_answer(event.execution)
    elif event.HasField("result"):
        result = from_proto(SubAnswer, event.result)
    if result is None:
        return "could not be looked up"
    if result.outcome != "reported":
        return f"could not be looked up ({result.outcome.replace('_', ' ')})"
    return result.answer


def _sub_answer(execution: Execution) -> SubAnswer:
    return SubAnswer(execution.sub_query, execution.report.answer, execution.outcome)
