"""Logged runs that can be rolled out again: a real store with feedback, opt-outs and redaction."""

from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import update

from executor_sft.mine import Selection, estimate, select
from executor_sft.questions import HeldOut, Question
from router.access import Tenant
from router.errors import StoreFailed
from router.models import Usage
from router.runs import RunFilter
from router.store import Database, SQLArchive
from router.store.schema import RUNS
from router.trace import Price, Run, Trajectory
from router.trace.run import Feedback
from router.trace.values import NOT_FOUND, AnswerOutcome
from tests.router.store.stored import EXECUTIONS, call, put, run

WANTED = RunFilter(kind="answer", training=True)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = await Database.open(f"sqlite:///{tmp_path / 'runs.db'}")
    yield database
    await database.close()


def asked(run_id: str, request: str, started_at: float = 1000.0, **fields: Any) -> Run:
    """Return a run with unique sub-queries."""
    execution = msgspec.structs.replace(EXECUTIONS[0], sub_query=f"Sub-query of {run_id}?")
    result = Trajectory(f"answer of {run_id}", "answered", (execution,), (1,))
    return run(run_id, started_at, **{"request": request, "result": result, **fields})


async def say(database: Database, run_id: str, **fields: Any) -> None:
    await SQLArchive(database).add_feedback(Feedback(run_id, **fields))


async def selected(
    database: Database, evaluation: Collection[str] = (), **options: Any
) -> Selection:
    selection, _ = await select(
        SQLArchive(database), WANTED, HeldOut(evaluation), **{"judge": False, **options}
    )
    return selection


def counts(**numbers: int) -> dict[str, int]:
    """Return the counts of a selection."""
    return {"over_share": 0, **numbers}


async def test_feedback_gives_right_answers(database: Database) -> None:
    """A good rating does not make an answer right, and the last feedback may call it wrong."""
    feedback_by_run: dict[str, list[dict[str, Any]]] = {
        "gold": [{"right_answer": "A"}, {"right_answer": "B", "accepted": False}],
        "accepted": [{"accepted": True}],
        "score": [{"score": 0.5}],
        "both": [{"right_answer": "A", "score": 0.9}],
        "changed": [{"accepted": False}, {"accepted": True}],
        "rejected": [{"accepted": False}],
        "low": [{"score": 0.49}],
        "withdrawn": [{"accepted": True}, {"accepted": False}],
        "comment": [{"comment": "hm"}],
        "nothing": [],
    }
    await put(
        database,
        *(
            asked(name, f"About {name}?", 1000.0 - position)
            for position, name in enumerate(feedback_by_run)
        ),
    )
    for name, feedback in feedback_by_run.items():
        for judgement in feedback:
            await say(database, name, **judgement)
    selection = await selected(database)
    assert selection.questions == [
        Question("gold", "About gold?", ("A", "B"), "logged", ("answer of gold",)),
        Question("both", "About both?", ("A",), "logged"),
    ]
    assert selection.counts == counts(read=10, right_answer_unknown=8, selected=2)
    judged = (await selected(database, judge=True)).questions
    assert judged[1] == Question("accepted", "About accepted?", (), "logged")
    assert judged[5:7] == [
        Question("rejected", "About rejected?", (), "logged", ("answer of rejected",)),
        Question("low", "About low?", (), "logged", ("answer of low",)),
    ]
    assert judged[-1] == Question("nothing", "About nothing?", (), "logged"), "a judge can judge it"


@pytest.mark.parametrize("outcome", ["not_found", "no_search", "out_of_scope"])
@pytest.mark.parametrize("accepted", [True, False])
async def test_a_refusal_is_no_right_answer(
    outcome: AnswerOutcome, accepted: bool, database: Database
) -> None:
    """A good rating does not make it right; it is no wrong answer either.

    A right answer from feedback counts.
    """
    refused = Trajectory(
        "not in the demo world" if outcome == "out_of_scope" else NOT_FOUND, outcome
    )
    await put(
        database,
        asked("told", "T?", 2.0, result=refused),
        asked("liked", "L?", 1.0, result=refused),
    )
    for name, gold in (("told", "A"), ("liked", "")):
        await say(database, name, accepted=accepted, right_answer=gold)
    selection = await selected(database)
    assert selection.questions == [Question("told", "T?", ("A",), "logged")]
    assert selection.counts == counts(read=2, right_answer_unknown=1, selected=1)


async def test_the_share_of_one_tenant_s_feedback_is_limited(database: Database) -> None:
    """At most a quarter of the questions depend on one tenant, the newest first.

    The operator's feedback belongs to no tenant, and replaces theirs. Naming a tenant lifts the
    limit.
    """
    runs = [
        asked(f"{tenant}{position}", f"Of {tenant}{position}?", float(position), tenant=tenant)
        for tenant in "ab"
        for position in range(9)
    ]
    own_runs = [
        asked(f"own{position}", f"Own {position}?", float(position), tenant="a")
        for position in range(6)
    ]
    await put(database, *runs, *own_runs)
    for given_run in runs:
        await say(database, given_run.id, right_answer="zzz", tenant=given_run.tenant)
    for given_run in own_runs:
        await say(database, given_run.id, right_answer="zzz", tenant="a")
        await say(database, given_run.id, right_answer="A")
    selection = await selected(database)
    chosen = {question.id for question in selection.questions}
    assert chosen == {"a8", "a7", "a6", "b8", "b7", "b6", *(run.id for run in own_runs)}
    assert {
        question.golds for question in selection.questions if question.id.startswith("own")
    } == {("A",)}
    assert (selection.counts["selected"], selection.counts["over_share"]) == (12, 12)
    named, _ = await select(
        SQLArchive(database), msgspec.structs.replace(WANTED, tenant="b"), HeldOut(), judge=False
    )
    assert named.counts["selected"] == 9


async def test_failures_are_included(database: Database) -> None:
    """A naive executor's logs have no second search, so there is most to learn from failures."""
    await put(
        database,
        asked("failed", "F?", status="failed", error="boom", result=None),
        asked("cut", "C?", status="interrupted", result=None),
        asked("running", "R?", status="running"),
    )
    for name in ("failed", "cut"):
        await say(database, name, right_answer="right")
    selection = await selected(database)
    assert {question.id for question in selection.questions} == {"failed", "cut"}
    assert selection.counts == counts(read=2, selected=2)


async def test_runs_that_must_not_be_used_are_never_read(database: Database) -> None:
    """They are of a tenant that has opted out, of other kinds than answers, or stored without their
    texts.
    """
    await put(
        database,
        asked("private", "P?", tenant="private"),
        asked("redacted", "R?", tenant="quiet", redacted=True),
        asked("execute", "E?", kind="execute"),
        asked("shadow", "S?", kind="shadow"),
        asked("open", "O?", tenant="open"),
        tenants=[Tenant("private", training=False), Tenant("quiet", redact=True), Tenant("open")],
    )
    for name in ("private", "redacted", "execute", "open"):
        await say(database, name, right_answer="A")
    selection = await selected(database)
    assert [question.id for question in selection.questions] == ["open"]
    assert selection.counts == counts(read=2, redacted=1, selected=1)


async def test_duplicates_and_held_out_questions_are_counted(database: Database) -> None:
    """The newest of equal questions is kept. Held-out questions are counted first."""
    await put(
        database,
        asked("old", "Who directed the film Heat?", 1.0),
        asked("new", "who directed film Heat", 9.0),
        asked("none", "Without a sub-query?", 6.0, result=Trajectory("x", "no_search")),
        asked("held-out", "Held out?", 4.0),
        asked("nearly", "Was it held out of all training from the very beginning?", 3.0),
    )
    for name in ("old", "new", "none", "held-out", "nearly"):
        await say(database, name, right_answer="A")
    held_out = {"held out", "Was it held out of any training from the very beginning?"}
    selection = await selected(database, held_out)
    assert [question.id for question in selection.questions] == ["new", "none"]
    left_out = {"evaluation": 1, "nearly_evaluation": 1, "same_question": 1}
    assert selection.counts == counts(read=5, **left_out, selected=2)
    limited = await selected(database, held_out, limit=1)
    assert [question.id for question in limited.questions] == ["new"]
    assert limited.counts["over_limit"] == 1


async def test_an_unanswered_question_makes_no_other_run_a_duplicate(database: Database) -> None:
    """An older run of the same question with a known right answer is used in its place."""
    await put(database, asked("old", "Who?", 1.0), asked("new", "Who?", 9.0))
    await say(database, "old", right_answer="A")
    assert [question.id for question in (await selected(database)).questions] == ["old"]


async def test_all_pages_of_runs_are_read(database: Database) -> None:
    await put(
        database,
        *(asked(f"r{number:03}", f"Question {number}?", float(number)) for number in range(105)),
    )
    selection = await selected(database, judge=True)
    assert selection.counts == counts(read=105, selected=105)
    assert [question.id for question in selection.questions] == [
        f"r{number:03}" for number in reversed(range(105))
    ]


@pytest.mark.parametrize(
    "strange", [msgspec.msgpack.encode({"id": "b", "request": 7}), b"x\x01cut"]
)
async def test_unreadable_traces_are_counted(database: Database, strange: bytes) -> None:
    """The others are read; a store that does not work is an error."""
    await put(database, asked("a", "A?"), asked("b", "B?"))
    damage = update(RUNS).where(RUNS.c.run_id == "b").values(trace=strange)
    await database.write(lambda connection: connection.execute(damage) and None)
    selection = await selected(database, judge=True)
    assert selection.counts == counts(read=2, unreadable=1, selected=1)
    await database.write(lambda connection: connection.exec_driver_sql("DROP TABLE runs") and None)
    with pytest.raises(StoreFailed):
        await selected(database)


async def test_costs_are_estimated_from_logged_tokens(database: Database) -> None:
    """Teacher and student each work once, the teacher repeats some of it, and the backbone and the
    answerer continue from other reports. Unknown tokens count like the others, unknown prices do
    not.
    """
    calls = [
        call("a", 0, role="delegation", model="big", usage=Usage(1000, 100)),
        call("a", 1, usage=Usage(500, 50)),
        call("a", 2, usage=None),
        call("a", 3, role="answer", model="fixed", usage=Usage(200, 10)),
    ]
    await put(database, asked("a", "A?", calls=calls))
    _, logged = await select(SQLArchive(database), WANTED, HeldOut(), judge=True)
    price = Price(prompt=1.0, completion=10.0)
    prices = {"delegation": price, "teacher": price, "student": None, "answer": price}
    needed = {name: tuple(share.values()) for name, share in estimate(logged, prices).items()}
    assert needed == {
        "delegation": (2000, 200, 0.004),
        "teacher": (2200, 220, 0.0044),
        "student": (1000, 100, None),
        "answer": (400, 20, 0.0006),
    }
