"""A run as lanes of bars, agents as turns, citations in their passages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from router.edge.pages.timeline import SCALE, lanes, length_s, source
from router.models import Completion, Message
from router.protocol import NO_EVIDENCE, Passage, Report
from router.trace import Conversation, Execution, Run, Trajectory
from router.trace.attribution import attribute
from router.trace.citation import citation
from router.trace.redaction import redacted
from tests.router.edge.pages.demo import runs, table
from tests.router.store.stored import call, run

RUNS = {each.id: each for each in runs()}


def test_lanes_in_the_order_of_the_work() -> None:
    """The delegator, executors by number, the answerer; executors without a call of their own,
    too.
    """
    shared = run("run-1", calls=(call("run-1", 0, role="delegation", sub_query_index=None),))
    assert [lane.name for lane in lanes(shared)] == ["Delegator", "Executor 1", "Executor 2"]
    assert [lane.agent.path for lane in lanes(RUNS["run-right"])] == [
        "delegation", "execution-0", "execution-1", "execution-2", "answer",
    ]  # fmt: skip
    first, second = lanes(RUNS["run-right"])[1:3]
    assert (first.round, first.sub_query, first.execution and first.execution.report.answer) == (
        1, "Who first climbed Mount Orrin?", "Ada Brenn",
    )  # fmt: skip
    assert (second.spent.attempts, second.spent.attempts_without_usage) == (3, 1)


def test_what_was_begun_before_the_delegator_had_ended_is_early() -> None:
    """Of an answer; a table's delegator works beside its executors."""
    early = [
        (lane.agent.path, bar.early)
        for lane in lanes(RUNS["run-right"])
        for bar in lane.bars
        if bar.early
    ]
    assert early == [("execution-0", True), ("execution-2", True)]
    assert not any(bar.early for lane in lanes(RUNS["run-table"]) for bar in lane.bars)


@given(st.lists(st.tuples(st.floats(-5, 50), st.floats(0, 50)), max_size=8), st.floats(0, 20))
def test_no_bar_leaves_its_lane(times: list[tuple[float, float]], duration_s: float) -> None:
    """Whatever clocks say, and each is wide enough to be seen."""
    calls = [
        call("run-1", n, started_at=1000.0 + at, duration_s=took)
        for n, (at, took) in enumerate(times)
    ]
    shown = run("run-1", calls=calls, duration_s=duration_s)
    bars = [bar for lane in lanes(shown) for bar in lane.bars]
    assert len(bars) == len(calls)
    assert all(
        bar.start >= 0 and bar.width >= 2.9 and bar.start + bar.width <= SCALE + 0.2 for bar in bars
    )
    assert length_s(shown) >= duration_s


@pytest.mark.parametrize(
    ("text", "quote", "parts"),
    [
        ("One. Two is here. Three.", "Two is here.", ("One. ", "Two is here.", " Three.")),
        ("One. Two\n  is here.", "Two is here.", ("One. ", "Two\n  is here.", "")),
        ("One (1). Two*.", "One (1).", ("", "One (1).", " Two*.")),
        ("One. Two.", "Three.", ("One. Two.", "", "")),
        ("One. Two.", "", ("One. Two.", "", "")),
    ],
)
def test_a_citation_in_its_passage(text: str, quote: str, parts: tuple[str, str, str]) -> None:
    """Marked whatever its white space; a passage that does not hold it stays whole."""
    passage = Passage("p1", "T", text)
    found = source(citation(passage, quote), passage)
    assert (found.before, found.quote, found.after) == parts
    assert source(citation(passage, quote), None).quote == quote


def test_a_run_without_its_texts_keeps_its_lanes() -> None:
    kept = lanes(redacted(RUNS["run-right"]))
    whole = lanes(RUNS["run-right"])
    assert [(lane.name, lane.bars) for lane in kept] == [(lane.name, lane.bars) for lane in whole]
    assert {lane.sub_query for lane in kept} == {""}


def test_a_table_s_executors() -> None:
    assert len(lanes(table("run-1"))) == 9


def managed() -> Run:
    """A step that a manager gave to two workers, after another manager had named it, and one
    without a manager.
    """
    said = Conversation((Message("user", "step"),), (Completion("…", "stop"),))
    first, second = (
        Execution(f"fact {number}", Report(answer, ("so",)), "reported", (), said, "v1")
        for number, answer in enumerate(("Tarn", "Kestrel"))
    )
    work = Trajectory("", "answered", (first, second), (2,), delegation=said)
    before = Execution(
        "step",
        NO_EVIDENCE,
        "escalated",
        (),
        Conversation(()),
        manager="files",
        work=replace(work, executions=()),
    )
    asked = Execution(
        "step", Report("Kestrel", ()), "reported", (), Conversation(()), "", (), "web", work, before
    )
    plain = Execution("other", Report("no", ()), "reported", (), said, "v2")
    calls = [
        call(
            "run-1", 0, role="delegation", sub_query_index=None, started_at=1000.0, duration_s=1.0
        ),
        call(
            "run-1",
            1,
            role="delegation",
            sub_query_index=0,
            manager="files",
            started_at=1001.0,
            duration_s=1.0,
        ),
        call(
            "run-1",
            2,
            role="delegation",
            sub_query_index=0,
            manager="web",
            started_at=1002.0,
            duration_s=1.0,
        ),
        call("run-1", 3, sub_query_index=0, manager="web", worker=0, started_at=1002.5),
        call("run-1", 4, sub_query_index=0, manager="web", worker=1, started_at=1003.5),
        call("run-1", 5, sub_query_index=1, started_at=1004.0),
    ]
    result = Trajectory(
        "Kestrel", "answered", (asked, plain), (2,), delegation=said, answering=said
    )
    return run("run-1", calls=calls, result=result, events=())


def test_managers_stand_before_their_workers() -> None:
    """Each with its own calls and conversation; a worker is early before its manager's turn has
    ended.
    """
    found = lanes(managed())
    assert [(lane.name, lane.agent.path, len(lane.bars)) for lane in found] == [
        ("Delegator", "delegation", 1),
        ("Manager 1, files", "delegation-0-files", 1),
        ("Manager 1, web", "delegation-0-web", 1),
        ("Worker 1.1, web", "execution-0-web-0", 1),
        ("Worker 1.2, web", "execution-0-web-1", 1),
        ("Executor 2", "execution-1", 1),
        ("Answerer", "answer", 0),
    ]
    assert all(lane.conversation for lane in found)
    assert [lane.name for lane in found for bar in lane.bars if bar.early] == ["Worker 1.1, web"]


def test_a_manager_that_loses_what_its_worker_reported() -> None:
    found = attribute(managed(), ["Tarn"])
    assert found is not None
    assert (found.lost_by, [each.agent and each.agent.path for each in found.sightings]) == (
        "management", ["execution-0-web-0"],
    )  # fmt: skip
    assert found.failed == ()
