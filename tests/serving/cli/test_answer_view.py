"""What a terminal of 80 columns shows of an answer."""

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
    """The text, without colours."""
    out = Console(file=StringIO(), width=80)
    AnswerView(out, Console(file=StringIO()), stream=False, as_json=False).show(event.done)
    assert isinstance(out.file, StringIO)
    return out.file.getvalue()


def done(
    outcome: pb.AnswerOutcome, *evidence: evidence_pb2.EvidencePoint, **fields: Any
) -> pb.StreamAnswerResponse:
    """The last event, of one sub-query."""
    result = evidence_pb2.SubQueryResult(
        sub_query="Who directed Heat?", answer="Michael Mann", evidence=evidence
    )
    answer = pb.AnswerResponse(
        run_id="run-1", answer="Mann", outcome=outcome, results=[result], **fields
    )
    return pb.StreamAnswerResponse(done=answer)


def test_evidence_stands_under_its_sub_query() -> None:
    """Title, page and sentence of each place; the point's own words only where they differ from
    the sentence.
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


def test_a_place_without_pages() -> None:
    """Is named by its title alone."""
    heat = evidence_pb2.Citation(title="Heat", quote="It is long.")
    point = evidence_pb2.EvidencePoint(text="It is long.", citations=[heat])
    assert "   Heat: “It is long.”\n" in shown(
        done(pb.ANSWER_OUTCOME_ANSWERED, point, citations=[heat])
    )


def test_an_answer_that_rests_on_nothing() -> None:
    """The reader is told to check it."""
    text = shown(done(pb.ANSWER_OUTCOME_ANSWERED, unsupported=True))
    assert "Unsupported: no retrieved passage holds all of this answer; check it." in text


def test_what_could_not_be_looked_up() -> None:
    """Is said below the answer, by the sub-query, and on the way."""
    event = done(pb.ANSWER_OUTCOME_ANSWERED)
    assert "look up" not in shown(event)
    event.done.results[0].outcome = evidence_pb2.EXECUTION_OUTCOME_RETRIEVAL_FAILED
    assert "Could not look up: “Who directed Heat?” (retrieval failed).\n" in shown(event)
    reported = pb.StreamAnswerResponse(reported=pb.Reported(index=0, result=event.done.results[0]))
    assert event_line(reported) == "  ← 1. could not be looked up (retrieval failed)"


def test_long_lines_are_indented_throughout() -> None:
    """A sentence that takes several lines stays below its sub-query."""
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
    """Attempts whose cost nobody knows are told apart; so are cached tokens that no engine
    reported.
    """
    usage = usage_pb2.RoleUsage(
        role=usage_pb2.ROLE_EXECUTION, model="small", attempts=3, attempts_without_usage=2
    )
    lines = shown(done(pb.ANSWER_OUTCOME_ANSWERED, usage=[usage])).splitlines()
    (row,) = [line.split() for line in lines if "small" in line]
    assert row == ["execution", "small", "3", "(2", "unknown)", "0", "unknown", "0", "unknown"]


def test_known_usage() -> None:
    """The share that was cached, and what it cost; what was wasted has a column only where
    anything was.
    """
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
