"""Runs as rows of a table."""

import json
from typing import Any

import msgspec

from router.models import Completion, Message, Usage
from router.trace import Conversation, Run
from router.trace.export import ExportRow, export_row
from router.trace.run import Feedback
from tests.router.store.stored import EXECUTIONS, call, run

NO_RESULT: dict[str, Any] = {"result": None, "events": ()}


def test_an_answer_is_a_row_with_its_spending() -> None:
    """Cached tokens are a part of the prompt."""
    calls = [call("run-1", usage=Usage(10, 2, 4)), call("run-1", 1, usage=Usage(5, 1), nano_usd=30)]
    feedback = [Feedback("run-1", True, comment="so it is"), Feedback("run-1", score=0.5)]
    row = export_row(run("run-1", 3.5, calls, request_id="mine", tenant="acme"), feedback)

    assert row == ExportRow(
        run_id="run-1",
        tenant="acme",
        kind="answer",
        status="finished",
        request="Who directed Heat?",
        question="Who directed Heat?",
        request_id="mine",
        outcome="answered",
        output="Michael Mann",
        redacted=False,
        started_at=3.5,
        duration_s=2.5,
        calls=2,
        prompt_tokens=15,
        completion_tokens=3,
        tokens_known=True,
        cost_nano_usd=37,
        cost_known=True,
        feedback=row.feedback,
        trace=row.trace,
    )
    assert msgspec.json.decode(row.feedback, type=list[Feedback]) == feedback


def test_unknown_spending_is_null() -> None:
    """The number of unknown calls stands next to the known sums, so that no unknown is taken for
    zero.
    """
    blind = call("run-1", 1, usage=None, nano_usd=None, outcome="failed")

    rows = [
        export_row(run("run-1", calls=calls))
        for calls in ([], [call("run-1")], [call("run-1"), blind], [blind])
    ]

    assert [(row.calls, row.prompt_tokens, row.tokens_known) for row in rows] == [
        (0, 0, True),
        (1, 10, True),
        (2, 10, False),
        (1, None, False),
    ]
    assert [row.completion_tokens for row in rows] == [0, 2, 2, None]
    assert [(row.cost_nano_usd, row.cost_known) for row in rows] == [
        (0, True),
        (7, True),
        (7, False),
        (None, False),
    ]


def test_each_kind_of_run_has_its_outputs() -> None:
    """A run without a result has no outputs and no outcome."""
    reply = Conversation(
        (Message("user", "?"),), (Completion("one", "stop"), Completion("two", "stop"))
    )
    kinds: list[Run] = [
        run("run-1"),
        run("run-2", kind="execute", result=EXECUTIONS[0], events=()),
        run("run-3", kind="complete", result=reply, events=()),
        run("run-4", kind="complete", result=Conversation(()), status="cancelled", events=()),
        run("run-5", status="failed", **NO_RESULT),
        run("run-6", status="interrupted", **NO_RESULT),
        run("run-7", status="failed", events=()),
    ]

    rows = [export_row(kind) for kind in kinds]

    assert [row.output for row in rows] == [
        "Michael Mann",
        "Michael Mann",
        "two",
        "",
        "",
        "",
        "Michael Mann",
    ]
    assert [row.outcome for row in rows] == ["answered", "", "", "", "", "", ""]


def test_the_trace_holds_everything_and_each_execution_once() -> None:
    trace = export_row(run("run-1", calls=[call("run-1")])).trace

    decoded = json.loads(trace)
    assert [execution["sub_query"] for execution in decoded["result"]["executions"]] == [
        "Who directed Heat?",
        "What is Heat?",
    ]
    assert [event["type"] for event in decoded["events"]].count("Reported") == 2
    assert trace.count("Heat is a film by Michael Mann.") == 2 * len(EXECUTIONS)
    assert decoded["calls"][0]["usage"]["prompt_tokens"] == 10


def test_only_unknown_counts_are_null() -> None:
    """Every type is one of the four that all tables know."""
    types = {field.name: field.type for field in msgspec.structs.fields(ExportRow)}
    counts = [types.pop(name) for name in ("prompt_tokens", "completion_tokens", "cost_nano_usd")]
    assert counts == [int | None] * 3
    assert set(types.values()) == {str, int, float, bool}
