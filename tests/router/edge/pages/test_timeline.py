"""A run as lanes of bars, agents as turns, citations in their passages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.edge.pages.timeline import SCALE, lanes, source, ticks, turns
from router.models import Completion, Message
from router.protocol import Passage
from router.trace import Call, Conversation
from router.trace.call import Outcome
from router.trace.citation import citation
from router.trace.redaction import redacted
from tests.router.edge.pages.demo import runs, table
from tests.router.store.stored import call, run

RUNS = {each.id: each for each in runs()}


def test_lanes_in_the_order_of_the_work() -> None:
    """The delegator, executors by number, the answerer; executors without a call of their own, too."""
    shared = run("run-1", calls=(call("run-1", 0, role="delegation", sub_query=None),))
    assert [lane.name for lane in lanes(shared)] == ["Delegator", "Executor 1", "Executor 2"]
    assert [lane.agent.path for lane in lanes(RUNS["run-right"])] == [
        "delegation", "execution-0", "execution-1", "execution-2", "answer",
    ]  # fmt: skip
    first, second = lanes(RUNS["run-right"])[1:3]
    assert (first.round, first.sub_query, first.execution and first.execution.report.answer) == (
        1, "Who first climbed Mount Orrin?", "Ada Brenn",
    )  # fmt: skip
    assert (second.retries, second.spent.attempts, second.spent.attempts_without_usage) == (1, 3, 1)


def test_what_was_begun_before_the_delegator_had_ended_is_early() -> None:
    """Of an answer; a table's delegator works beside its executors."""
    early = [(lane.agent.path, bar.early) for lane in lanes(RUNS["run-right"]) for bar in lane.bars if bar.early]
    assert early == [("execution-0", True), ("execution-2", True)]
    assert not any(bar.early for lane in lanes(RUNS["run-table"]) for bar in lane.bars)


def test_kinds_of_bars() -> None:
    kinds = {bar.call.outcome: bar.kind for lane in lanes(RUNS["run-right"]) for bar in lane.bars}
    assert kinds == {"completed": "completed", "wasted": "wasted", "unavailable": "failed"}


@given(st.lists(st.tuples(st.floats(-5, 50), st.floats(0, 50)), max_size=8), st.floats(0, 20))
def test_no_bar_leaves_its_lane(times: list[tuple[float, float]], duration_s: float) -> None:
    """Whatever clocks say, and each is wide enough to be seen."""
    calls = [call("run-1", n, started_at=1000.0 + at, duration_s=took) for n, (at, took) in enumerate(times)]
    shown = run("run-1", calls=calls, duration_s=duration_s)
    bars = [bar for lane in lanes(shown) for bar in lane.bars]
    assert len(bars) == len(calls)
    assert all(bar.start >= 0 and bar.width >= 2.9 and bar.start + bar.width <= SCALE + 0.2 for bar in bars)
    assert ticks(shown)[-1] >= duration_s


OUTCOMES = st.sampled_from(("completed", "wasted", "unavailable", "cancelled"))


@given(st.lists(OUTCOMES, max_size=8), st.integers(0, 6))
def test_each_call_and_each_output_stands_once(outcomes: list[Outcome], outputs: int) -> None:
    """In order, the last outputs beside the last completed calls: the first ones another run has paid for."""
    calls = [call("run-1", number, outcome=outcome) for number, outcome in enumerate(outcomes)]
    said = [Completion(f"turn {number}", "stop") for number in range(outputs)]
    messages = [Message("user", "0")]
    for number, output in enumerate(said, 1):
        messages += [Message("assistant", output.text), Message("user", str(number))]
    found = turns(Conversation(tuple(messages), tuple(said)), calls)
    assert [turn.call for turn in found if turn.call] == calls
    assert [turn.output for turn in found if turn.output] == said
    assert [message.content for turn in found for message in turn.shown] == [str(n) for n in range(outputs + 1)]
    paired = [turn for turn in found if turn.call and turn.output]
    assert len(paired) == min(outputs, outcomes.count("completed"))
    assert all(turn.call is not None and turn.call.outcome == "completed" for turn in paired)


def test_turns_of_what_is_not_told() -> None:
    """Calls alone."""
    calls: list[Call] = [call("run-1", 0), call("run-1", 1)]
    assert [(turn.call, turn.output) for turn in turns(None, calls)] == [(one, None) for one in calls]


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
    kept, whole = lanes(redacted(RUNS["run-right"])), lanes(RUNS["run-right"])
    assert [(lane.name, lane.bars) for lane in kept] == [(lane.name, lane.bars) for lane in whole]
    assert {lane.sub_query for lane in kept} == {""}


def test_a_table_s_executors() -> None:
    assert len(lanes(table("run-1"))) == 9
