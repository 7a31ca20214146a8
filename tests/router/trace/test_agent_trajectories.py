"""Runs exported as the samples of each of their agents, with the reward."""

from pathlib import Path

import msgspec
import pytest

from router.models import Completion, Message, Usage
from router.models.model import TokenIds
from router.protocol import Report
from router.trace import Conversation, Execution, Run, Trajectory
from router.trace.export import AgentTrajectory, Reward, agent_trajectories, reward_of
from router.trace.run import Feedback, RoleSetting, right_answers
from router.trace.table import Ask, Column, Schema
from router.trace.values import TableRun
from tests.router.deployment import STOP, block
from tests.router.store.stored import call, run

DOCS = Path(__file__).parents[3] / "docs" / "training.md"
QUESTION = "Who directed Heat?"


def sampled(
    text: str, prompt: tuple[int, ...] = (), completion: tuple[int, ...] = ()
) -> Completion:
    """Return an output whose tokens the engine reported."""
    logprobs = tuple(-float(token) for token in completion)
    return Completion(text, "stop", tokens=TokenIds(prompt, completion, logprobs))


def conversation(*texts: str, outputs: tuple[Completion, ...]) -> Conversation:
    """Return messages of the user and the assistant in turns."""
    messages = (
        Message("assistant" if place % 2 else "user", text) for place, text in enumerate(texts)
    )
    return Conversation(tuple(messages), outputs)


DECIDED = (sampled(block("a"), (1, 2), (3, 4)), sampled(STOP, (1, 2, 3, 4, 5, 6), (7,)))
TURNS = (
    sampled("<think>hm</think>found", (1, 2), (3, 4)),
    sampled("report", (1, 9, 3, 4, 5), (7,)),
)
WORK = Execution(
    "a",
    Report("Mann", ()),
    "reported",
    (),
    conversation("a", "found", outputs=TURNS),
    "executor-000001",
)
OTHER = msgspec.structs.replace(
    WORK, sub_query="b", executor="", conversation=Conversation((Message("user", "b"),))
)
FOUND = Trajectory(
    "Michael Mann",
    "answered",
    (OTHER, WORK),
    (2,),
    delegation=conversation(QUESTION, block("a"), "told", STOP, outputs=DECIDED),
    answering=Conversation(
        (Message("user", "pairs"),), (sampled("<think>so</think> <answer>Michael Mann</answer>"),)
    ),
)
SETTINGS = {"delegation": RoleSetting("big", "0"), "execution": RoleSetting("small", "0")}


def lines(of: Run, *golds: str) -> list[AgentTrajectory]:
    return list(agent_trajectories(of, golds))


def test_every_agent_that_wrote_has_a_line() -> None:
    """The line has its place in the tree, its model and all its samples."""
    led, worked, answered = lines(
        run("run-1", calls=[call("run-1")], result=FOUND, settings=SETTINGS), "Mann"
    )
    assert [
        (line.agent, line.parent, line.role, line.sub_query_index)
        for line in (led, worked, answered)
    ] == [
        ("delegation", None, "delegation", None),
        ("execution-1", "delegation", "execution", 1),
        ("answer", None, "answer", None),
    ]
    assert [line.model for line in (led, worked, answered)] == ["big", "executor-000001", ""]
    assert (led.turns, worked.turns) == (DECIDED, TURNS)
    assert FOUND.delegation is not None and led.messages == FOUND.delegation.messages
    assert answered.messages[-1] == Message("assistant", "<answer>Michael Mann</answer>")
    for line in (led, worked, answered):
        assert (line.run_id, line.question, line.answer, line.right_answers) == (
            "run-1",
            QUESTION,
            "Michael Mann",
            ("Mann",),
        )
        assert line.reward == Reward(False, 2 / 3, 12)


def test_runs_of_one_question_are_a_group() -> None:
    """Questions are compared word for word."""
    runs = [
        run("run-1", result=FOUND),
        run("run-2", result=FOUND),
        run("run-3", result=FOUND, request="Who made Heat?"),
    ]
    first, second, third = ({line.group for line in lines(run)} for run in runs)
    assert first == second != third
    assert len(first) == len(third) == 1


def test_agents_of_a_table_have_lines() -> None:
    """A table is no text, and its reward is its item F1. Its group has the same columns."""
    schema = Schema((Column("film", key=True), Column("director")))
    asks = (Ask("discover", ("film",), discovery=1),)
    table = TableRun(schema, (), asks, (WORK,), FOUND.delegation)
    filled = run("run-1", kind="table", result=table)
    led, worked = agent_trajectories(filled, (), 0.25)
    assert [(line.agent, line.parent, line.layer) for line in (led, worked)] == [
        ("delegation", None, 0),
        ("execution-0", "delegation", 1),
    ]
    assert (led.answer, led.reward, worked.turns) == ("", Reward(None, None, 0, 0.25), TURNS)
    wider = Schema((*schema.columns, Column("year")))
    other = run("run-2", kind="table", result=msgspec.structs.replace(table, schema=wider))
    assert {line.group for line in lines(other)}.isdisjoint({led.group})


def test_workers_of_managers_are_in_the_third_layer() -> None:
    """The manager itself is a delegator in the second."""
    work = msgspec.structs.replace(FOUND, answering=None)
    managed = Execution("a", WORK.report, "reported", manager="browser", work=work)
    found = msgspec.structs.replace(FOUND, executions=(managed,), rounds=(1,))
    tree = [(line.agent, line.parent, line.layer) for line in lines(run("run-1", result=found))]
    assert tree == [
        ("delegation", None, 0),
        ("delegation-0-browser", "delegation", 1),
        ("execution-0-browser-1", "delegation-0-browser", 2),
        ("answer", None, 0),
    ]


@pytest.mark.parametrize(
    ("usages", "golds", "reward"),
    [
        ([Usage(10, 2), Usage(5, 1)], ["x", "the michael mann"], Reward(True, 1.0, 18)),
        ([Usage(10, 2), None], ["x"], Reward(False, 0.0, None)),
        ([], [], Reward(None, None, 0)),
    ],
)
def test_unknown_counts_and_rewards_are_not_zero(
    usages: list[Usage | None], golds: list[str], reward: Reward
) -> None:
    """Tokens are summed only if all calls have a count, and an answer is right or wrong only if
    it was judged.
    """
    calls = [call("run-1", number, usage=usage) for number, usage in enumerate(usages)]
    assert reward_of(run("run-1", calls=calls, result=FOUND), golds, None) == reward


def test_runs_without_an_answer_or_texts_have_no_lines() -> None:
    """They are useless for training."""
    failed = run("run-1", status="failed", result=FOUND)
    other = run("run-1", kind="execute", result=WORK)
    shadow = run("run-1", kind="shadow", result=FOUND)
    assert not [*lines(failed), *lines(other), *lines(shadow)]
    assert not lines(run("run-1", result=FOUND, redacted=True))


def test_right_answers_of_the_operator_come_before_those_of_clients() -> None:
    """Each is listed once. A liked answer is none."""
    client = [Feedback("run-1", right_answer=gold, tenant="acme") for gold in ("a", "b", "a", " ")]
    assert right_answers([Feedback("run-1", accepted=True), *client]) == ("a", "b")
    assert right_answers([*client, Feedback("run-1", right_answer="c")]) == ("c",)


def test_lines_become_sequences_as_the_manual_describes() -> None:
    """Sampled tokens have the mask and their log-probabilities.

    A prompt that does not continue the last turn begins another sequence.
    """
    code = DOCS.read_text("utf-8").partition("def sequences(line):")
    names: dict[str, object] = {}
    exec(code[1] + code[2].partition("```")[0], names)
    read = names["sequences"]
    assert callable(read)
    led, worked, _ = (
        msgspec.json.decode(msgspec.json.encode(line)) for line in lines(run("run-1", result=FOUND))
    )
    assert read(led) == [
        {
            "prompt_ids": [1, 2],
            "completion_ids": [3, 4, 5, 6, 7],
            "logprobs": [-3.0, -4.0, 0.0, 0.0, -7.0],
            "env_mask": [1, 1, 0, 0, 1],
        }
    ]
    assert [(reading["prompt_ids"], reading["completion_ids"]) for reading in read(worked)] == [
        ([1, 2], [3, 4]),
        ([1, 9, 3, 4, 5], [7]),
    ]
