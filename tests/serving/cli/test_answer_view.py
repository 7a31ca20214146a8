"""Answers on a terminal of 80 columns."""

from io import StringIO
from typing import Any

from rich.console import Console
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import evidence_pb2, usage_pb2

from router.edge.rendering import event_line
from serving.cli.tables import AnswerView

HEAT = evidence_pb2.Citation(
    passage_id="p1", title="Heat", page=3, quote="Heat is a film by\nMichael Mann."
)
LONG = "Heat is one of the many films that were directed by the American director Michael Mann."


def shown(event: pb.StreamAnswerResponse) -> str:
    """Return the text without colours."""
    out = Console(file=StringIO(), width=80)
    AnswerView(out, Console(file=StringIO()), stream=False, as_json=False).show(event.done)
    assert isinstance(out.file, StringIO)
    return out.file.getvalue()


def done(
    outcome: pb.AnswerOutcome, *evidence: evidence_pb2.EvidencePoint, **fields: Any
) -> pb.StreamAnswerResponse:
    """Return the last event of an answer with one sub-query."""
    result = evidence_pb2.SubQueryResult(
        sub_query="Who directed Heat?", answer="Michael Mann", evidence=evidence
    )
    answer = pb.AnswerResponse(
        run_id="run-1", answer="Mann", outcome=outcome, results=[result], **fields
    )
    return pb.StreamAnswerResponse(done=answer)


def test_evidence_is_below_its_sub_query() -> None:
    """Each place has title, page and sentence.

    The point's own words are shown only if they differ from the sentence.
    """
    points = [
        evidence_pb2.EvidencePoint(text="Heat is a film by Michael Mann.", citations=[HEAT]),
        evidence_pb2.EvidencePoint(text="Mann made Heat.", citations=[HEAT]),
        evidence_pb2.EvidencePoint(text="Mann was born in 1900."),
    ]
    lines = shown(done(pb.ANSWER_OUTCOME_ANSWERED, *points, citations=[HEAT])).splitlines()
    quoted = "   Heat, p. 3: “Heat is a film by Michael Mann.”"
    assert lines[3:8] == [
        "1. Who directed Heat? → Michael Mann",
        quoted,
        "   Mann made Heat.",
        quoted,
        "   “Mann was born in 1900.” is in no passage that was found",
    ]
    assert "check it" not in "".join(lines)


def test_a_place_without_pages_has_its_title_alone() -> None:
    heat = evidence_pb2.Citation(title="Heat", quote="It is long.")
    point = evidence_pb2.EvidencePoint(text="It is long.", citations=[heat])
    assert "   Heat: “It is long.”\n" in shown(
        done(pb.ANSWER_OUTCOME_ANSWERED, point, citations=[heat])
    )


def test_an_answer_without_evidence_is_marked() -> None:
    """The reader is asked to check it."""
    text = shown(done(pb.ANSWER_OUTCOME_ANSWERED, unsupported=True))
    assert (
        "Unsupported: the retrieved passages do not contain all of this answer; check it." in text
    )


def test_sentences_of_a_paragraph_are_marked() -> None:
    """Each number is that of a source below the answer."""
    sentences = [
        pb.AnswerSentence(start_char=0, end_char=14, supported=True, citation_indexes=[0]),
        pb.AnswerSentence(start_char=15, end_char=32),
    ]
    event = done(pb.ANSWER_OUTCOME_ANSWERED, citations=[HEAT], sentences=sentences)
    event.done.answer = "Mann did Heat. He died in Paris."
    lines = [line.strip(" │") for line in shown(event).splitlines()]
    assert lines[1] == "Mann did Heat. [1] He died in Paris. [unsupported]"
    assert lines[3] == "[1] Heat, p. 3: “Heat is a film by Michael Mann.”"
    del event.done.sentences[1]
    assert "[1]" not in shown(event)


def test_a_failed_sub_query_is_named() -> None:
    """It is named below the answer, and in the progress."""
    event = done(pb.ANSWER_OUTCOME_ANSWERED)
    assert "look up" not in shown(event)
    event.done.results[0].outcome = evidence_pb2.EXECUTION_OUTCOME_RETRIEVAL_FAILED
    assert "Could not look up: “Who directed Heat?” (retrieval failed).\n" in shown(event)
    reported = pb.StreamAnswerResponse(reported=pb.Reported(index=0, result=event.done.results[0]))
    assert event_line(reported) == "  ← 1. could not be looked up (retrieval failed)"


def test_long_lines_are_indented_throughout() -> None:
    """All lines of a long sentence are indented below its sub-query."""
    point = evidence_pb2.EvidencePoint(
        text=LONG, citations=[evidence_pb2.Citation(title="Heat", quote=LONG)]
    )
    lines = shown(done(pb.ANSWER_OUTCOME_ANSWERED, point)).splitlines()
    assert [line[:4] for line in lines if "Heat" in line or "Mann.”" in line][1:] == [
        "   H",
        "   d",
    ]
    assert max(map(len, lines)) <= 80


def test_unknown_usage_is_shown_as_unknown() -> None:
    """Attempts with unknown cost are counted separately, and so are cached tokens that no engine
    reported.
    """
    usage = usage_pb2.RoleUsage(
        role=usage_pb2.ROLE_EXECUTION, model="small", attempts=3, attempts_without_usage=2
    )
    lines = shown(done(pb.ANSWER_OUTCOME_ANSWERED, usage=[usage])).splitlines()
    (row,) = [" ".join(line.split()) for line in lines if "small" in line]
    assert row == "execution small 3 (2 without token 0 unknown 0 unknown"


def test_known_usage_has_cached_share_and_cost() -> None:
    """Wasted tokens have a column only if there are any."""
    usage = usage_pb2.RoleUsage(
        role=usage_pb2.ROLE_ANSWER,
        model="m",
        attempts=3,
        prompt_tokens=2000,
        cached_tokens=500,
        completion_tokens=40,
        wasted_tokens=0,
        attempts_without_cost=1,
        cost_nano_usd=1_234_567_890,
    )
    first = shown(done(pb.ANSWER_OUTCOME_ANSWERED, usage=[usage]))
    usage.wasted_tokens = 7
    second = shown(done(pb.ANSWER_OUTCOME_ANSWERED, usage=[usage]))
    row = "answer m 3 2,000 25% 40 $1.2346 (1 unknown)"
    assert row in [" ".join(line.split()) for line in first.splitlines()]
    assert row.replace("40", "40 7") in [" ".join(line.split()) for line in second.splitlines()]
    assert ("wasted" in first, "wasted" in second) == (False, True)
