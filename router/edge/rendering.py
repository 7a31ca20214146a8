"""An answer with its sources: values for programs, and a text that a person in any chat tool can check."""

from collections.abc import Iterable

import msgspec
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import evidence_pb2

from router.trace.citation import Citation

_UNANSWERED = ("not_found", "no_search", "no_report", "timed_out", "model_failed", "retrieval_failed")


class SubAnswer(msgspec.Struct, frozen=True):
    """What was reported for a sub-query."""

    sub_query: str
    answer: str
    outcome: str = "reported"
    """A name of `ExecutionOutcome`, in small letters and without the prefix."""


class CitedAnswer(msgspec.Struct, frozen=True):
    """The answer to a question, or the report on a sub-query."""

    run_id: str
    outcome: str
    """A name of `AnswerOutcome` or `ExecutionOutcome`, in small letters and without the prefix."""
    answer: str
    citations: tuple[Citation, ...]
    """What the answer rests on, each sentence once."""
    results: tuple[SubAnswer, ...]
    """In order of dispatch."""

    @property
    def text(self) -> str:
        """The answer and, below it, its numbered sources, or why there are none, and what could not be looked up."""
        return "\n\n".join(filter(None, (self.answer, self._below(), missed(self.results))))

    def _below(self) -> str:
        if self.outcome == "out_of_scope":
            return ""
        if self.outcome in _UNANSWERED:
            searched = "; ".join(f"“{result.sub_query}”" for result in self.results)
            return f"Searched for: {searched}." if searched else "Nothing was searched for."
        if not self.citations:
            return "No retrieved passage holds this answer."
        return "\n".join(
            ["Sources:", *(f"[{number}] {source_line(at)}" for number, at in enumerate(self.citations, 1))]
        )


def missed(results: Iterable[SubAnswer]) -> str:
    """The sub-queries that have no report; empty where all have one."""
    without = [f"“{result.sub_query}”" for result in results if result.outcome not in ("reported", "unspecified")]
    return f"Could not look up: {'; '.join(without)}." if without else ""


def place(title: str, page: int | None) -> str:
    """Where a reader finds it: `Heat, p. 3`."""
    return f"{title}, p. {page}" if page else title


def source_line(citation: Citation | evidence_pb2.Citation) -> str:
    """Title and page, the quoted sentence, and the document."""
    document = f" ({citation.document})" if citation.document else ""
    return " ".join(f"{place(citation.title, citation.page)}: “{citation.quote}”{document}".split())


def answer_from_proto(response: answer_pb.AnswerResponse) -> CitedAnswer:
    """The answer to a question."""
    outcome = answer_pb.AnswerOutcome.Name(response.outcome).removeprefix("ANSWER_OUTCOME_").lower()
    results = tuple(map(sub_answer_from_proto, response.results))
    return CitedAnswer(response.run_id, outcome, response.answer, _citations(response.citations), results)


def report_from_proto(run_id: str, result: evidence_pb2.SubQueryResult) -> CitedAnswer:
    """The report on one sub-query."""
    reported = sub_answer_from_proto(result)
    citations = _citations(citation for point in result.evidence for citation in point.citations)
    return CitedAnswer(run_id, reported.outcome, result.answer, citations, (reported,))


def sub_answer_from_proto(result: evidence_pb2.SubQueryResult) -> SubAnswer:
    """The report on a sub-query, from the wire."""
    outcome = evidence_pb2.ExecutionOutcome.Name(result.outcome).removeprefix("EXECUTION_OUTCOME_").lower()
    return SubAnswer(result.sub_query, result.answer, outcome)


def _citations(messages: Iterable[evidence_pb2.Citation]) -> tuple[Citation, ...]:
    found = (Citation(at.passage_id, at.title, at.document, at.page or None, at.quote) for at in messages)
    return tuple(dict.fromkeys(found))


def event_line(event: pb.StreamAnswerResponse) -> str | None:
    """Rounds, sub-queries, searches and reports, each under what it belongs to; None for other events."""
    match event.WhichOneof("event"):
        case "round_started":
            return f"round {event.round_started.round}"
        case "sub_query_dispatched":
            return f"  → {event.sub_query_dispatched.index + 1}. {event.sub_query_dispatched.sub_query}"
        case "search_done":
            found = ", ".join(event.search_done.titles) or "nothing"
            return f"    searched “{event.search_done.query}”: {found}"
        case "reported":
            result = event.reported.result
            failed = result.outcome not in (evidence_pb2.EXECUTION_OUTCOME_REPORTED, 0)
            return f"  ← {event.reported.index + 1}. {'could not be looked up' if failed else result.answer}"
        case _:
            return None
