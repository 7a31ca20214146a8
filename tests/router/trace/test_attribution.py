"""Wrong answers, traced to the role that lost them by where the right one stands."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from router.protocol import NO_EVIDENCE, Passage, Report
from router.trace import Conversation, Execution, Trajectory
from router.trace.attribution import Attribution, attribute
from router.trace.citation import read
from router.trace.redaction import redacted
from router.trace.turns import AgentId
from router.trace.values import ExecutionOutcome, SearchRecord
from tests.router.store.stored import run

FIRST = AgentId("execution", 0)
SECOND = AgentId("execution", 1)
HOLDS = Passage("p1", "Ada", "Ada was born in Tarn.")
OTHER = Passage("p2", "Kestrel", "Kestrel is a town.")


def execution(
    answer: str,
    *passages: Passage,
    outcome: ExecutionOutcome = "reported",
    dropped: int = 0,
    evidence: str = "so",
) -> Execution:
    """One with a search."""
    told = Report(answer, (evidence,)) if outcome == "reported" else NO_EVIDENCE
    searches = (SearchRecord("Ada", passages, dropped_passages=dropped),)
    return Execution("Where was Ada born?", told, outcome, searches, Conversation(()))


def traced(
    *executions: Execution,
    answer: str = "Kestrel",
    gold: str = "Tarn",
    known: Sequence[Passage] | None = None,
) -> Attribution:
    """The trace of an answer that came of these."""
    found = attribute(
        run("run-1", result=Trajectory(answer, "answered", executions)), [gold], known
    )
    assert found is not None
    return found


def test_a_report_has_it_and_the_answer_does_not() -> None:
    found = traced(execution("Kestrel"), execution("in Tarn", HOLDS))
    assert (found.lost_by, found.right) == ("answering", False)
    assert [(each.where, each.agent) for each in found.sightings] == [
        ("report", SECOND),
        ("shown", SECOND),
    ]


def test_evidence_counts_as_reported() -> None:
    assert traced(execution("Kestrel", evidence="Ada was born in Tarn.")).lost_by == "answering"


def test_an_executor_was_shown_it_and_reported_something_else() -> None:
    """It is told by which search, and with the sentence."""
    (seen,) = (found := traced(execution("Kestrel", OTHER, HOLDS))).sightings
    assert found.lost_by == "reading"
    assert (seen.where, seen.agent, seen.query) == ("shown", FIRST, "Ada")
    assert seen.at is not None
    assert seen.at.quote == "Ada was born in Tarn."


def test_a_passage_that_gave_way_counts_as_found() -> None:
    (seen,) = traced(execution("Kestrel", OTHER, HOLDS, dropped=1)).sightings
    assert seen.where == "dropped"


@pytest.mark.parametrize(
    ("outcome", "lost_by"),
    [("timed_out", "execution"), ("no_report", "execution"), ("retrieval_failed", "retrieval")],
)
def test_nothing_has_it_and_an_executor_failed(outcome: ExecutionOutcome, lost_by: str) -> None:
    found = traced(execution("", OTHER, outcome=outcome), execution("Kestrel"), known=[HOLDS])
    assert (found.lost_by, found.failed) == (lost_by, (FIRST,))


def test_nothing_has_it_and_all_reported() -> None:
    """Only the documents tell delegation from retrieval; until somebody looks there, it stays
    open.
    """
    assert traced(execution("Kestrel", OTHER)).lost_by is None
    assert traced(execution("Kestrel", OTHER), known=[OTHER, HOLDS]).lost_by == "delegation"
    assert traced(execution("Kestrel", OTHER), known=[OTHER]).lost_by == "documents"


def test_an_answer_that_stands_in_no_document_is_lost_by_them() -> None:
    """Also where an executor failed, who could not have found it; a verdict stands in any text,
    and tells nothing.
    """
    failed = execution("", OTHER, outcome="timed_out")
    other = execution("Kestrel")
    assert traced(failed, other, known=[OTHER]).lost_by == "documents"
    assert traced(failed, other, known=[HOLDS]).lost_by == "execution"
    assert traced(failed, other).lost_by == "execution"
    assert traced(execution("Kestrel", OTHER), gold="yes", known=[OTHER]).lost_by is None


def test_a_passage_is_read_once() -> None:
    """However many searches, points and cells look through it."""
    assert read(OTHER.text) is read(f"{OTHER.text[:7]}{OTHER.text[7:]}")


def test_an_answer_that_holds_it_is_lost_by_nobody() -> None:
    found = traced(execution("Tarn", HOLDS), answer="In the town of Tarn.")
    assert (found.lost_by, found.right) == (None, True)


def test_yes_is_looked_for_in_reports_alone() -> None:
    """As it stands in many a passage."""
    passage = Passage("p1", "Yes", "Yes, it is.")
    assert traced(execution("so it seems", passage), answer="no", gold="yes").sightings == ()
    assert traced(execution("yes", passage), answer="no", gold="yes").lost_by == "answering"


def test_no_gold_no_text_no_answer() -> None:
    whole = run("run-1", result=Trajectory("Kestrel", "answered", (execution("Kestrel"),)))
    assert attribute(whole, []) is None
    assert attribute(redacted(whole), ["Tarn"]) is None
    assert attribute(replace(whole, result=execution("Kestrel")), ["Tarn"]) is None


@given(
    st.lists(
        st.sampled_from([execution("Kestrel", OTHER), execution("x", HOLDS), execution("Tarn")]),
        max_size=4,
    )
)
def test_the_role_nearest_to_the_answer_lost_it(executions: list[Execution]) -> None:
    """Whatever order the executors have."""
    reported = any(one.report.answer == "Tarn" for one in executions)
    shown = any(HOLDS in search.shown for one in executions for search in one.searches)
    assert traced(*executions, known=[HOLDS]).lost_by == (
        "answering" if reported else "reading" if shown else "delegation"
    )
