"""Attribution: a wrong answer is traced to the role that lost the correct one."""

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
    """Return an execution with a search."""
    report = Report(answer, (evidence,)) if outcome == "reported" else NO_EVIDENCE
    searches = (SearchRecord("Ada", passages, dropped_passages=dropped),)
    return Execution("Where was Ada born?", report, outcome, searches, Conversation(()))


def traced(
    *executions: Execution,
    answer: str = "Kestrel",
    gold: str = "Tarn",
    known: Sequence[Passage] | None = None,
) -> Attribution:
    """Return the attribution of an answer from these executions."""
    attribution = attribute(
        run("run-1", result=Trajectory(answer, "answered", executions)), [gold], known
    )
    assert attribution is not None
    return attribution


def test_a_value_in_a_report_but_not_in_the_answer_was_lost_by_answering() -> None:
    attribution = traced(execution("Kestrel"), execution("in Tarn", HOLDS))
    assert (attribution.lost_by, attribution.right) == ("answering", False)
    assert [(sighting.where, sighting.agent) for sighting in attribution.sightings] == [
        ("report", SECOND),
        ("shown", SECOND),
    ]


def test_evidence_counts_as_reported() -> None:
    assert traced(execution("Kestrel", evidence="Ada was born in Tarn.")).lost_by == "answering"


def test_a_value_shown_but_not_reported_was_lost_by_reading() -> None:
    """The sighting names the search and quotes the sentence."""
    (seen,) = (attribution := traced(execution("Kestrel", OTHER, HOLDS))).sightings
    assert attribution.lost_by == "reading"
    assert (seen.where, seen.agent, seen.query) == ("shown", FIRST, "Ada")
    assert seen.at is not None
    assert seen.at.quote == "Ada was born in Tarn."


def test_a_dropped_passage_counts_as_found() -> None:
    (seen,) = traced(execution("Kestrel", OTHER, HOLDS, dropped=1)).sightings
    assert seen.where == "dropped"


@pytest.mark.parametrize(
    ("outcome", "lost_by"),
    [("timed_out", "execution"), ("no_report", "execution"), ("retrieval_failed", "retrieval")],
)
def test_an_unseen_value_with_a_failed_executor_was_lost_by_the_failure(
    outcome: ExecutionOutcome, lost_by: str
) -> None:
    attribution = traced(execution("", OTHER, outcome=outcome), execution("Kestrel"), known=[HOLDS])
    assert (attribution.lost_by, attribution.failed) == (lost_by, (FIRST,))


def test_an_unseen_value_with_all_reports_needs_the_documents() -> None:
    """Only the documents distinguish delegation from retrieval.

    Until they are searched, the verdict stays open.
    """
    assert traced(execution("Kestrel", OTHER)).lost_by is None
    assert traced(execution("Kestrel", OTHER), known=[OTHER, HOLDS]).lost_by == "delegation"
    assert traced(execution("Kestrel", OTHER), known=[OTHER]).lost_by == "documents"


def test_a_value_in_no_document_was_lost_by_the_documents() -> None:
    """This holds if an executor failed, as it could not have found the value.

    Yes or no is in any text and proves nothing.
    """
    failed = execution("", OTHER, outcome="timed_out")
    other = execution("Kestrel")
    assert traced(failed, other, known=[OTHER]).lost_by == "documents"
    assert traced(failed, other, known=[HOLDS]).lost_by == "execution"
    assert traced(failed, other).lost_by == "execution"
    assert traced(execution("Kestrel", OTHER), gold="yes", known=[OTHER]).lost_by is None


def test_a_passage_is_read_once() -> None:
    """Many searches, points and cells look through it."""
    assert read(OTHER.text) is read(f"{OTHER.text[:7]}{OTHER.text[7:]}")


def test_a_correct_answer_was_lost_by_no_role() -> None:
    attribution = traced(execution("Tarn", HOLDS), answer="In the town of Tarn.")
    assert (attribution.lost_by, attribution.right) == (None, True)


def test_yes_is_looked_for_in_reports_only() -> None:
    """Many passages contain it."""
    passage = Passage("p1", "Yes", "Yes, it is.")
    assert traced(execution("so it seems", passage), answer="no", gold="yes").sightings == ()
    assert traced(execution("yes", passage), answer="no", gold="yes").lost_by == "answering"


def test_without_gold_text_or_answer_there_is_no_attribution() -> None:
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
    """The order of the executors makes no difference."""
    reported = any(execution.report.answer == "Tarn" for execution in executions)
    shown = any(HOLDS in search.shown for execution in executions for search in execution.searches)
    expected = "delegation"
    if shown:
        expected = "reading"
    if reported:
        expected = "answering"
    assert traced(*executions, known=[HOLDS]).lost_by == expected
