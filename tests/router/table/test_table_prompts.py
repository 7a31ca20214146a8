"""Examples in the shipped prompts are read as intended."""

import re
from pathlib import Path

from benchmarks.baselines.single_agent import PROMPTS as WRITTEN
from router.protocol.decision import Dispatch, Stop, parse_decision
from router.protocol.turns import ReportTurn, SearchTurn
from router.table.assembly import assemble
from router.table.schema import question
from router.table.table_delegation import described, opening, planned, status
from router.table.table_text import parse_table_turn, read_rows, read_values
from router.trace.table import Column, Schema
from serving.config.file import preset

PROMPTS = preset("mini").parents[1] / "prompts" / "full"
LIGHTS = Schema(
    (
        Column("lighthouse", key=True),
        Column("island"),
        Column("first lit", "integer"),
        Column("height", "number", unit="m"),
        Column("keeper"),
    )
)
KEEPERS = Schema(
    (
        Column("lighthouse", key=True),
        Column("keeper", key=True),
        Column("from", "integer", about="first year"),
    )
)


def turns(path: Path) -> list[str]:
    """Return the model's turns in the examples of a prompt."""
    examples = path.read_text("utf-8").partition("\nExample")[2]
    return re.findall(
        r"^You: (.*?)(?=^\w+: |^It would|^Example|\Z)", examples, re.MULTILINE | re.DOTALL
    )


def test_examples_of_the_delegator_are_read_as_intended() -> None:
    """They plan a wording for each column, ask more questions, and stop.

    Their requests equal the real ones.
    """
    path = PROMPTS / "table_delegation.txt"
    lights = Schema(LIGHTS.columns[:4])
    prompt = path.read_text("utf-8")
    plan, more, stop, other = turns(path)
    decisions = [parse_decision(text, limit=20) for text in (plan, more, stop, other)]
    assert [type(decision) for decision in decisions] == [Dispatch, Dispatch, Stop, Dispatch]
    assert [
        len(decision.sub_queries) for decision in decisions if isinstance(decision, Dispatch)
    ] == [4, 3, 2]
    schema, ignored = planned(lights, plan, prompt)
    assert all("{lighthouse}" in column.ask for column in schema.columns[1:])
    assert ([condition.text for condition in schema.conditions], ignored) == (
        ["first lit before 1900", "island one of Aldsay, Kermor"],
        (),
    )
    explained, ignored = planned(
        lights, prompt.partition("Conditions: ")[2].partition("Write only")[0], prompt
    )
    assert ([condition.text for condition in explained.conditions], ignored) == (
        [
            "first lit before 1900",
            "owner equals Aldsay Harbour Board",
            "Does the lighthouse {lighthouse} stand on an island?",
        ],
        (),
    )
    assert planned(KEEPERS, other, prompt)[0].columns[2].ask.count("{") == 2
    known = assemble(KEEPERS, [("Skerry Lamp", "Ana Torrin", "1880")], [])
    assert opening("", lights).partition("</question>")[2] in prompt
    assert (opening("", KEEPERS) + status(known, ())).partition("</question>")[2] in prompt


def test_examples_of_the_baselines_are_read_as_intended() -> None:
    """They show rounds and a stop, and tables. Their requests equal the real ones."""
    columns = LIGHTS.columns[0], LIGHTS.columns[2], LIGHTS.columns[4]
    decisions = [
        parse_decision(text, limit=20) for text in turns(WRITTEN / "wide_written_delegation.txt")
    ]
    assert [type(decision) for decision in decisions] == [Dispatch, Dispatch, Stop]
    for name, rows, shown in (
        ("wide_written_answer", (("Aldsay Beacon", "1864", ""), ("Skerry Lamp", "", "")), columns),
        ("wide_single", (("Aldsay Beacon", "1864"), ("Skerry Lamp", "")), columns[:2]),
    ):
        *searches, table = map(parse_table_turn, turns(WRITTEN / f"{name}.txt"))
        assert all(isinstance(search, SearchTurn) for search in searches)
        assert isinstance(table, ReportTurn)
        assert read_rows(table.report.answer, shown) == (rows, 0)
        asked = f"Columns, keys with a star: {', '.join(map(described, shown))}"
        assert asked in (WRITTEN / f"{name}.txt").read_text("utf-8")


def test_examples_of_the_executor_are_read_as_intended() -> None:
    """They show a list of names, rows of several columns, and values of one row.

    Their requests equal the real ones.
    """
    path = PROMPTS / "table_execution.txt"
    lights, row, value = (parse_table_turn(text) for text in turns(path)[1::2])
    assert all(isinstance(parse_table_turn(text), SearchTurn) for text in turns(path)[::2])
    assert (
        isinstance(lights, ReportTurn)
        and isinstance(row, ReportTurn)
        and isinstance(value, ReportTurn)
    )
    assert read_rows(lights.report.answer, LIGHTS.columns[:1]).rows == (
        ("Old Mole Light",),
        ("Aldsay Beacon",),
    )
    assert len(lights.report.evidence) == 2
    cells = read_rows(row.report.answer, KEEPERS.columns[:2])
    assert cells == ((("Skerry Lamp", "Ivo Brandt"), ("Aldsay Beacon", "Joan Ferris")), 0)
    wanted = LIGHTS.columns[2], LIGHTS.columns[4]
    assert read_values(value.report.answer, LIGHTS, wanted, ("skerry lamp",)) == ("1891", "")
    wordings = re.findall(
        r"^- .*: (.*)$", path.read_text("utf-8").partition("Example 3.")[2], re.MULTILINE
    )
    asked = [Column(column.name, ask=ask) for column, ask in zip(wanted, wordings, strict=True)]
    sub_query = question(
        Schema((LIGHTS.columns[0], *asked)), ("Skerry Lamp",), [column.name for column in asked]
    )
    assert f"Request: {sub_query}\n" in path.read_text("utf-8")
