"""The page of a large run loads quickly."""

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
SUB_QUERIES_PER_ROUND = 24
MAX_S = 0.5
SENTENCE = (
    "In the year {} the town of Kestrel on the river Sel had a school, whose teacher was "
    "number {} of many. "
)


def passage(number: int) -> Passage:
    """Return a passage of about 1,000 characters."""
    text = "".join(SENTENCE.format(1800 + offset, number * 10 + offset) for offset in range(10))
    return Passage(f"p{number}", f"Document {number}", text, 0.9, "towns.pdf", number)


def execution(number: int) -> Execution:
    """Return an execution with two searches of five passages each, and a report of three
    sentences.
    """
    searches = tuple(
        SearchRecord(
            f"query {number} {search_index}",
            tuple(passage(number * 10 + search_index * 5 + at) for at in range(5)),
        )
        for search_index in range(2)
    )
    documents = [" ".join(hit.text for hit in search.passages) for search in searches]
    outputs = tuple(
        Completion(f"<search>query {number} {turn}</search>", "stop", "So.") for turn in range(3)
    )
    talk = [Message("system", "Search. " * 100), Message("user", f"sub-query {number}")]
    for output, text in zip(outputs, (*documents, ""), strict=True):
        talk += [Message("assistant", output.text), Message("user", text)]
    evidence = tuple(
        SENTENCE.format(1800 + offset, number * 100 + offset).strip() for offset in range(3)
    )
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
    """Return a run of 300 calls: 96 executors with three each, some of the delegator, and the
    answerer's.
    """
    executions = tuple(map(execution, range(ROUNDS * SUB_QUERIES_PER_ROUND)))
    numbers = count()
    calls = []
    events: list[Event] = []
    for number in range(len(executions)):
        at = 1000 + 10 * (number // SUB_QUERIES_PER_ROUND)
        if number % SUB_QUERIES_PER_ROUND == 0:
            events.append(RoundStarted(number // SUB_QUERIES_PER_ROUND + 1))
            calls.append(
                call("run-1", next(numbers), role="delegation", sub_query_index=None, started_at=at)
            )
        events.append(
            SubQueryDispatched(number, number // SUB_QUERIES_PER_ROUND + 1, f"sub-query {number}")
        )
        calls += [
            call(
                "run-1",
                next(numbers),
                sub_query_index=number,
                started_at=at + 1 + 2 * turn,
                usage=Usage(1800, 60, 900),
            )
            for turn in range(3)
        ]
    while len(calls) < 300:
        calls.append(
            call("run-1", next(numbers), role="answer", sub_query_index=None, started_at=1040.0)
        )
    talk = Conversation((Message("user", "Which teacher?" * 500),), (Completion("…", "stop"),))
    result = Trajectory(
        "Number 7",
        "answered",
        executions,
        (SUB_QUERIES_PER_ROUND,) * ROUNDS,
        (1,) * ROUNDS,
        talk,
        talk,
    )
    return run("run-1", 1000.0, calls, result=result, events=tuple(events), duration_s=45.0)


@pytest.mark.slow
@pytest.mark.timing
async def test_the_page_of_a_run_of_300_calls_loads_within_500_ms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Holds also with the trace of a wrong answer, and for each of its agents."""
    large_run = large()
    medians = dict[str, float]()
    assert len(large_run.calls) == 300
    async with pages(tmp_path) as world, browsing(world) as session:
        await put(world.database, large_run, run("run-2", calls=(call("run-2"),)))
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
            times_s = list[float]()
            size = 0
            cpu_start = time.process_time()
            for _ in range(7):
                start = time.perf_counter()
                async with session.get(path) as response:
                    size = len(await response.read())
                times_s.append(time.perf_counter() - start)
                assert response.status == 200
            cpu_ms = (time.process_time() - cpu_start) / 7 * 1000
            medians[f"{path}, {size:,} bytes, {cpu_ms:.0f} ms of CPU"] = statistics.median(
                times_s[1:]
            )
    with capsys.disabled():
        print("\nmedian of six in ms:")
        for path, median_s in medians.items():
            print(f"  {median_s * 1000:6.1f}  {path}")
    assert max(medians.values()) < MAX_S
