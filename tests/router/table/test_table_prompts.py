"""The examples in the shipped prompts are read as they are meant."""

import re
from pathlib import Path

from router.protocol.decision import Dispatch, Stop, parse_decision
from router.protocol.turns import ReportTurn, SearchTurn
from router.table.table_delegation import described, opening, planned
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


def turns(path: Path) -> list[str]:
    """The model's turns in the examples of a prompt."""
    examples = path.read_text("utf-8").partition("Example")[2]
    return re.findall(r"^You: (.*?)(?=^\w+: |^It would|^Example|\Z)", examples, re.MULTILINE | re.DOTALL)


def test_the_delegators() -> None:
    """A plan with a wording for each column, more questions, and a stop; the request is as it will be."""
    path = PROMPTS / "table_delegation.txt"
    schema = Schema(LIGHTS.columns[:4])
    plan, more, stop = turns(path)
    decisions = [parse_decision(text, limit=20) for text in (plan, more, stop)]
    assert [type(each) for each in decisions] == [Dispatch, Dispatch, Stop]
    assert [len(each.sub_queries) for each in decisions if isinstance(each, Dispatch)] == [4, 3]
    assert all("{lighthouse}" in column.ask for column in planned(schema, plan).columns[1:])
    assert opening("", schema).partition("</question>")[2] in path.read_text("utf-8")


def test_those_of_baselines() -> None:
    """Rounds and a stop; tables, read as they are meant; the request is as it will be."""
    columns = LIGHTS.columns[0], LIGHTS.columns[2], LIGHTS.columns[4]
    decisions = [parse_decision(text, limit=20) for text in turns(PROMPTS / "wide_written_delegation.txt")]
    assert [type(each) for each in decisions] == [Dispatch, Dispatch, Stop]
    for name, rows, shown in (
        ("wide_written_answer", (("Aldsay Beacon", "1864", ""), ("Skerry Lamp", "", "")), columns),
        ("wide_single", (("Aldsay Beacon", "1864"), ("Skerry Lamp", "")), columns[:2]),
    ):
        *searches, table = map(parse_table_turn, turns(PROMPTS / f"{name}.txt"))
        assert all(isinstance(each, SearchTurn) for each in searches)
        assert isinstance(table, ReportTurn)
        assert read_rows(table.report.answer, shown) == (rows, 0)
        asked = f"Columns, keys with a star: {', '.join(map(described, shown))}"
        assert asked in (PROMPTS / f"{name}.txt").read_text("utf-8")


def test_the_executors() -> None:
    """A list of names, and values of one row."""
    searches, lists, asks, values = map(parse_table_turn, turns(PROMPTS / "table_execution.txt"))
    assert isinstance(searches, SearchTurn)
    assert isinstance(asks, SearchTurn)
    assert isinstance(lists, ReportTurn)
    assert isinstance(values, ReportTurn)
    assert read_rows(lists.report.answer, LIGHTS.columns[:1]).rows == (("Old Mole Light",), ("Aldsay Beacon",))
    assert len(lists.report.evidence) == 2
    wanted = LIGHTS.columns[2], LIGHTS.columns[4]
    assert read_values(values.report.answer, LIGHTS, wanted, ("skerry lamp",)) == ("1891", "")
