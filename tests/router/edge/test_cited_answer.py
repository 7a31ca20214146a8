"""Rendering of an answer with its sources."""

import pytest
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import evidence_pb2

from router.edge.rendering import CitedAnswer, SubAnswer, answer_from_proto
from router.trace.citation import Citation

CITATION = Citation("p1", "Heat", "films.pdf", 3, "Heat is a film\n  by Michael Mann.")


def cited(outcome: str, *citations: Citation, results: tuple[SubAnswer, ...] = ()) -> CitedAnswer:
    return CitedAnswer("run-1", outcome, "Michael Mann", citations, results)


def test_sources_are_numbered_lines() -> None:
    """Title, page, sentence and document, as far as they are known, each source on its own line."""
    text = cited(
        "answered", CITATION, Citation("p2", "Mann", "", None, "He was born in 1943.")
    ).text
    assert text.splitlines() == [
        "Michael Mann",
        "",
        "Sources:",
        "[1] Heat, p. 3: “Heat is a film by Michael Mann.” (films.pdf)",
        "[2] Mann: “He was born in 1943.”",
    ]


@pytest.mark.parametrize(
    "outcome", ["answered", "rounds_exhausted", "time_exhausted", "budget_exhausted", "reported"]
)
def test_an_answer_without_a_source_has_a_note(outcome: str) -> None:
    assert cited(outcome).text == "Michael Mann\n\nNo retrieved passage supports this answer."


def test_an_unsupported_answer_has_a_note() -> None:
    """It stands above the sources."""
    without_sources = CitedAnswer(
        "run-1", "answered", "Michael Mann", (), (), unsupported=True
    ).text
    assert without_sources.splitlines()[2:] == [
        "Unsupported: the retrieved passages do not contain all of this answer; check it."
    ]
    with_sources = CitedAnswer(
        "run-1", "answered", "Michael Mann", (CITATION,), (), unsupported=True
    ).text
    assert with_sources.splitlines()[2:5] == [without_sources.splitlines()[2], "", "Sources:"]


@pytest.mark.parametrize("outcome", ["not_found", "no_report", "model_failed"])
def test_an_answer_that_was_not_found_lists_its_sub_queries(outcome: str) -> None:
    """They stand on one line. No sources are listed, even if passages were cited."""
    results = (SubAnswer("Who directed Heat?", "nobody"), SubAnswer("When?", "never"))
    text = cited(outcome, CITATION, results=results).text
    assert text == "Michael Mann\n\nSearched for: “Who directed Heat?”; “When?”."


def test_failed_sub_queries_stand_last() -> None:
    """The answer itself is unchanged."""
    results = (
        SubAnswer("Who?", "Mann"),
        SubAnswer("When?", "", "model_failed"),
        SubAnswer("Why?", "", "no_report"),
    )
    rendered = cited("answered", CITATION, results=results)
    assert rendered.answer == "Michael Mann"
    assert rendered.text.splitlines()[-3:] == [
        "[1] Heat, p. 3: “Heat is a film by Michael Mann.” (films.pdf)",
        "",
        "Could not look up: “When?” (model failed); “Why?” (no report).",
    ]


def test_an_answer_without_a_search_has_a_note() -> None:
    """An answer out of scope needs none."""
    assert cited("no_search").text == "Michael Mann\n\nNothing was searched for."
    assert cited("out_of_scope").text == "Michael Mann"


def test_an_answer_is_read_from_its_response() -> None:
    """Outcomes become names, and a page of 0 becomes None."""
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
