"""How an answer is shown with its sources."""

import pytest
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import evidence_pb2

from router.edge.rendering import CitedAnswer, SubAnswer, answer_from_proto
from router.trace.citation import Citation

CITATION = Citation("p1", "Heat", "films.pdf", 3, "Heat is a film\n  by Michael Mann.")


def cited(outcome: str, *citations: Citation, results: tuple[SubAnswer, ...] = ()) -> CitedAnswer:
    return CitedAnswer("run-1", outcome, "Michael Mann", citations, results)


def test_sources_are_numbered_lines() -> None:
    """Title, page, sentence and document, as far as they are known, each source on one line."""
    shown = cited(
        "answered", CITATION, Citation("p2", "Mann", "", None, "He was born in 1943.")
    ).text
    assert shown.splitlines() == [
        "Michael Mann",
        "",
        "Sources:",
        "[1] Heat, p. 3: “Heat is a film by Michael Mann.” (films.pdf)",
        "[2] Mann: “He was born in 1943.”",
    ]


@pytest.mark.parametrize(
    "outcome", ["answered", "rounds_exhausted", "time_exhausted", "budget_exhausted", "reported"]
)
def test_an_answer_without_a_source_says_so(outcome: str) -> None:
    assert cited(outcome).text == "Michael Mann\n\nNo retrieved passage holds this answer."


def test_an_unsupported_answer_says_so() -> None:
    """Above its sources, where it has any."""
    alone = CitedAnswer("run-1", "answered", "Michael Mann", (), (), unsupported=True).text
    assert alone.splitlines()[2:] == [
        "Unsupported: no retrieved passage holds all of this answer; check it."
    ]
    shown = CitedAnswer("run-1", "answered", "Michael Mann", (CITATION,), (), unsupported=True).text
    assert shown.splitlines()[2:5] == [alone.splitlines()[2], "", "Sources:"]


@pytest.mark.parametrize("outcome", ["not_found", "no_report", "model_failed"])
def test_what_was_not_found_says_what_was_searched_for(outcome: str) -> None:
    """On one line, and no sources, although some passages may have been cited on the way."""
    results = (SubAnswer("Who directed Heat?", "nobody"), SubAnswer("When?", "never"))
    shown = cited(outcome, CITATION, results=results).text
    assert shown == "Michael Mann\n\nSearched for: “Who directed Heat?”; “When?”."


def test_what_could_not_be_looked_up_stands_last() -> None:
    """The answer itself stays as it is."""
    results = (
        SubAnswer("Who?", "Mann"),
        SubAnswer("When?", "", "model_failed"),
        SubAnswer("Why?", "", "no_report"),
    )
    shown = cited("answered", CITATION, results=results)
    assert shown.answer == "Michael Mann"
    assert shown.text.splitlines()[-3:] == [
        "[1] Heat, p. 3: “Heat is a film by Michael Mann.” (films.pdf)",
        "",
        "Could not look up: “When?” (model failed); “Why?” (no report).",
    ]


def test_no_search_and_out_of_scope() -> None:
    """An answer without any search says so; what is outside of the scope has said it already."""
    assert cited("no_search").text == "Michael Mann\n\nNothing was searched for."
    assert cited("out_of_scope").text == "Michael Mann"


def test_from_the_wire() -> None:
    """Outcomes by their names, and no page where there is none."""
    message = evidence_pb2.Citation(passage_id="p1", title="Heat", quote="It is.")
    point = evidence_pb2.EvidencePoint(text="It is.", citations=[message])
    outcome = evidence_pb2.EXECUTION_OUTCOME_REPORTED
    result = evidence_pb2.SubQueryResult(
        sub_query="Is it?", answer="yes", evidence=[point, point], outcome=outcome
    )
    response = pb.AnswerResponse(
        run_id="run-1",
        answer="yes",
        outcome=pb.ANSWER_OUTCOME_ANSWERED,
        results=[result],
        citations=[message],
    )
    citations = (Citation("p1", "Heat", "", None, "It is."),)
    results = (SubAnswer("Is it?", "yes"),)
    assert answer_from_proto(response) == CitedAnswer(
        "run-1", "answered", "yes", citations, results
    )
