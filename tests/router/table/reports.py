"""Executions with a report, and the passages in the executor's prompt."""

from collections.abc import Sequence

from router.protocol import NO_EVIDENCE, Passage, Report
from router.trace import Conversation, Execution
from router.trace.table import Ask, Column, Schema
from router.trace.values import ExecutionOutcome, SearchRecord

SCHEMA = Schema((Column("city", key=True), Column("founder"), Column("founded", "integer")))


def discovery(number: int = 1, attempt: int = 1) -> Ask:
    """Return a discovery of all columns."""
    return Ask(
        "discover",
        tuple(column.name for column in SCHEMA.columns),
        discovery=number,
        attempt=attempt,
    )


def fill(city: str, *columns: str, attempt: int = 1) -> Ask:
    """Return a fill of some columns."""
    return Ask("fill", columns, (city,), attempt=attempt)


def executed(answer: str, *passages: str, outcome: ExecutionOutcome = "reported") -> Execution:
    """Return an execution that reported `answer` from passages, written as `title: text`."""
    report = Report(answer, ()) if outcome == "reported" else NO_EVIDENCE
    return Execution("?", report, outcome, (SearchRecord("?", shown(passages)),), Conversation(()))


def listed(names: str) -> Execution:
    """Return an execution that reported `names` from a passage with the same text."""
    return executed(names, f"Register: {names}")


def shown(passages: Sequence[str]) -> tuple[Passage, ...]:
    """Return passages, each of a document with its title."""
    parted = [passage.partition(": ") for passage in passages]
    return tuple(
        Passage(f"{title}#{text}", title, text, document=title) for title, _, text in parted
    )
