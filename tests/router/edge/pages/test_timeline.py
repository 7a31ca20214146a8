"""A run as lanes of bars, agents as turns, citations in their passages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from router.edge.pages.timeline import SCALE, Agents, Lane, length_s, source
from router.models import Completion, Message
from router.protocol import NO_EVIDENCE, Passage, Report
from router.trace import Conversation, Execution, Run, Trajectory
from router.trace.attribution import attribute
from router.trace.citation import citation
from router.trace.redaction import redacted
from tests.router.edge.pages.demo import runs, table
from tests.router.store.stored import call, run

RUNS = {demo_run.id: demo_run for demo_run in runs()}


def lanes(of: Run) -> list[Lane]:
    agents = Agents(of)
    return list(map(agents.lane, agents.ids))


def test_lanes_are_in_the_order_of_the_work() -> None:
    """The delegator, executors by number, the answerer. Executors without calls have a lane too."""
    shared = run("run-1", calls=(call("run-1", 0, role="delegation", sub_query_index=None),))
    assert [lane.name for lane in lanes(shared)] == ["Delegator", "Executor 1", "Executor 2"]
    assert [lane.agent.path for lane in lanes(RUNS["run-right"])] == [
        "delegation", "execution-0", "execution-1", "execution-2", "answer",
    ]  # fmt: skip
    first_executor, second_executor = lanes(RUNS["run-right"])[1:3]
    assert (
        first_executor.round,
        first_executor.sub_query,
        first_executor.execution and first_executor.execution.report.answer,
    ) == (
        1,
        "Who first climbed Mount Orrin?",
        "Ada Brenn",
    )
    assert (second_executor.spent.attempts, second_executor.spent.attempts_without_usage) == (3, 1)


@given(st.lists(st.tuples(st.floats(-5, 50), st.floats(0, 50)), max_size=8), st.floats(0, 20))
def test_no_bar_leaves_its_lane(times: list[tuple[float, float]], duration_s: float) -> None:
    """Holds for any clocks, and each bar is wide enough to be visible."""
    calls = [
        call("run-1", n, started_at=1000.0 + at, duration_s=length_of_call)
        for n, (at, length_of_call) in enumerate(times)
    ]
    timed_run = run("run-1", calls=calls, duration_s=duration_s)
    bars = [bar for lane in lanes(timed_run) for bar in lane.bars]
    assert len(bars) == len(calls)
    assert all(
        bar.start >= 0 and bar.width >= 2.9 and bar.start + bar.width <= SCALE + 0.2 for bar in bars
    )
    assert length_s(timed_run) >= duration_s


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
def test_a_citation_is_marked_in_its_passage(
    text: str, quote: str, parts: tuple[str, str, str]
) -> None:
    """White space may differ. A passage without the quote is not marked."""
    passage = Passage("p1", "T", text)
    marked_source = source(citation(passage, quote), passage)
    assert (marked_source.before, marked_source.quote, marked_source.after) == parts
    assert source(citation(passage, quote), None).quote == quote


def test_a_run_without_its_texts_keeps_its_lanes() -> None:
    redacted_lanes = lanes(redacted(RUNS["run-right"]))
    full_lanes = lanes(RUNS["run-right"])
    assert [(lane.name, lane.bars) for lane in redacted_lanes] == [
        (lane.name, lane.bars) for lane in full_lanes
    ]
    assert {lane.sub_query for lane in redacted_lanes} == {""}


def test_every_executor_of_a_table_has_a_lane() -> None:
    assert len(lanes(table("run-1"))) == 9


def managed() -> Run:
    """Return a run with a step that a manager gave to two workers, after another manager had
    escalated it, and a step without a manager.
    """
    conversation = Conversation((Message("user", "step"),), (Completion("…", "stop"),))
    first_worker, second_worker = (
        Execution(f"fact {number}", Report(answer, ("so",)), "reported", (), conversation, "v1")
        for number, answer in enumerate(("Tarn", "Kestrel"))
    )
    work = Trajectory("", "answered", (first_worker, second_worker), (2,), delegation=conversation)
    escalated = Execution(
        "step",
        NO_EVIDENCE,
        "escalated",
        (),
        Conversation(()),
        manager="files",
        work=replace(work, executions=()),
    )
    managed_step = Execution(
        "step",
        Report("Kestrel", ()),
        "reported",
        (),
        Conversation(()),
        "",
        (),
        "web",
        work,
        escalated,
    )
    plain_step = Execution("other", Report("no", ()), "reported", (), conversation, "v2")
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
        "Kestrel",
        "answered",
        (managed_step, plain_step),
        (2,),
        delegation=conversation,
        answering=conversation,
    )
    return run("run-1", calls=calls, result=result, events=())


def test_managers_stand_before_their_workers() -> None:
    """Each manager has its own calls and conversation."""
    manager_lanes = lanes(managed())
    assert [(lane.name, lane.agent.path, len(lane.bars)) for lane in manager_lanes] == [
        ("Delegator", "delegation", 1),
        ("Manager 1, files", "delegation-0-files", 1),
        ("Manager 1, web", "delegation-0-web", 1),
        ("Worker 1.1, web", "execution-0-web-0", 1),
        ("Worker 1.2, web", "execution-0-web-1", 1),
        ("Executor 2", "execution-1", 1),
        ("Answerer", "answer", 0),
    ]
    assert all(lane.conversation for lane in manager_lanes)


def test_an_answer_that_a_manager_lost_is_attributed_to_it() -> None:
    attribution = attribute(managed(), ["Tarn"])
    assert attribution is not None
    assert (
        attribution.lost_by,
        [sighting.agent and sighting.agent.path for sighting in attribution.sightings],
    ) == (
        "management",
        ["execution-0-web-0"],
    )
    assert attribution.failed == ()
