"""The page of a large run is there soon."""

import statistics
import time
from itertools import count
from pathlib import Path

import pytest

from router.models import Completion, Message, Usage
from router.protocol import Passage, Report
from router.store import SQLArchive
from router.trace import Conversation, Execution, Run, Trajectory
from router.trace.run import Feedback
from router.trace.values import Event, RoundStarted, SearchRecord, SubQueryDispatched
from tests.router.edge.pages.world import browsing, pages
from tests.router.store.stored import call, put, run

ROUNDS = 4
OF_EACH = 24
MAX_S = 0.5
SENTENCE = (
    "In the year {} the town of Kestrel on the river Sel had a school, whose teacher was "
    "number {} of many. "
)


def passage(number: int) -> Passage:
    """About 1,000 characters."""
    text = "".join(SENTENCE.format(1800 + each, number * 10 + each) for each in range(10))
    return Passage(f"p{number}", f"Document {number}", text, 0.9, "towns.pdf", number)


def execution(number: int) -> Execution:
    """Two searches of five passages each, and a report on three sentences."""
    searches = tuple(
        SearchRecord(
            f"query {number} {each}", tuple(passage(number * 10 + each * 5 + at) for at in range(5))
        )
        for each in range(2)
    )
    shown = [" ".join(one.text for one in search.passages) for search in searches]
    outputs = tuple(
        Completion(f"<search>query {number} {each}</search>", "stop", "So.") for each in range(3)
    )
    talk = [Message("system", "Search. " * 100), Message("user", f"sub-query {number}")]
    for output, text in zip(outputs, (*shown, ""), strict=True):
        talk += [Message("assistant", output.text), Message("user", text)]
    evidence = tuple(SENTENCE.format(1800 + each, number * 100 + each).strip() for each in range(3))
    report = Report(f"teacher {number}", evidence)
    return Execution(
        f"sub-query {number}",
        report,
        "reported",
        searches,
        Conversation(tuple(talk), outputs),
        "v1",
    )


def large() -> Run:
    """300 calls: 96 executors of three each, five of the delegator, some retried, and the
    answerer's.
    """
    executions = tuple(map(execution, range(ROUNDS * OF_EACH)))
    numbers = count()
    calls = []
    events: list[Event] = []
    for number in range(len(executions)):
        at = 1000 + 10 * (number // OF_EACH)
        if number % OF_EACH == 0:
            events.append(RoundStarted(number // OF_EACH + 1))
            calls.append(
                call("run-1", next(numbers), role="delegation", sub_query_index=None, started_at=at)
            )
        events.append(SubQueryDispatched(number, number // OF_EACH + 1, f"sub-query {number}"))
        calls += [
            call(
                "run-1",
                next(numbers),
                sub_query_index=number,
                started_at=at + 1 + 2 * each,
                usage=Usage(1800, 60, 900),
            )
            for each in range(3)
        ]
    while len(calls) < 300:
        calls.append(
            call("run-1", next(numbers), role="answer", sub_query_index=None, started_at=1040.0)
        )
    talk = Conversation((Message("user", "Which teacher?" * 500),), (Completion("…", "stop"),))
    result = Trajectory(
        "Number 7", "answered", executions, (OF_EACH,) * ROUNDS, (1,) * ROUNDS, talk, talk
    )
    return run("run-1", 1000.0, calls, result=result, events=tuple(events), duration_s=45.0)


@pytest.mark.slow
@pytest.mark.timing
async def test_a_run_of_300_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Within 500 ms from the store, with the trace of a wrong answer, too; so is each of its
    agents.
    """
    whole = large()
    medians = dict[str, float]()
    assert len(whole.calls) == 300
    async with pages(tmp_path) as world, browsing(world) as session:
        await put(world.database, whole, run("run-2", calls=(call("run-2"),)))
        for path in (
            "/runs/run-1",
            "/runs/run-1?wrong",
            "/runs/run-1/agents/execution-95",
            "/runs/run-2",
        ):
            if path.endswith("wrong"):
                await SQLArchive(world.database).add_feedback(
                    Feedback("run-1", False, None, "number 958")
                )
            took = list[float]()
            size = 0
            spent = time.process_time()
            for _ in range(7):
                begun = time.perf_counter()
                async with session.get(path) as response:
                    size = len(await response.read())
                took.append(time.perf_counter() - begun)
                assert response.status == 200
            cpu_ms = (time.process_time() - spent) / 7 * 1000
            medians[f"{path}, {size:,} bytes, {cpu_ms:.0f} ms of CPU"] = statistics.median(took[1:])
    with capsys.disabled():
        print("\nmedian of six in ms:")
        for path, median_s in medians.items():
            print(f"  {median_s * 1000:6.1f}  {path}")
    assert max(medians.values()) < MAX_S
