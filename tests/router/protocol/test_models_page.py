"""The examples of docs/models.md are what the program shows models, and what its parsers read."""

import re
from pathlib import Path

import pytest

from router.ledger import Ledger
from router.models import Message
from router.protocol import Passage, Report, parse_decision, parse_turn, prompts
from router.protocol.decision import Dispatch, Stop
from router.protocol.tags import Malformed
from router.protocol.turns import ReportTurn, SearchTurn, read_answer
from router.search.condenser import Condenser
from router.table import table_delegation
from router.table.schema import checked_schema
from router.table.table_text import parse_table_turn
from router.trace.table import Column, Schema
from tests.router.deployment import Deployment
from tests.scripted_model import ScriptedModel

PAGE = (Path(__file__).parents[3] / "docs" / "models.md").read_text("utf-8")
BEACON = "When was Aldsay Beacon first lit?"
LIT = Report("1864", ("Aldsay Beacon followed in 1864.",))
COLUMNS = checked_schema([Column("lighthouse", key=True), Column("first lit", type="integer")], ())


def examples(section: str, kind: str) -> list[str]:
    """Return the examples of a section of the page. `kind`: prompt, output or malformed."""
    (body,) = re.findall(rf"^## {section}$(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return [text.strip() for text in re.findall(rf"```{kind}\n(.*?)```", body, re.DOTALL)]


def test_a_delegator_asks_or_stops() -> None:
    one, listed, stop = (parse_decision(text, limit=4) for text in examples("Delegator", "output"))
    assert one == Dispatch(("Where was Ilse Varnholt born?",), (), ())
    assert listed == Dispatch(("When was Kermor Point Light first lit?", BEACON), (), ())
    assert stop == Stop()


def test_an_executor_searches_and_reports() -> None:
    search, report = map(parse_turn, examples("Executor", "output"))
    assert search == SearchTurn("Aldsay Beacon first lit", 0)
    assert report == ReportTurn(LIT)


def test_an_answerer_answers() -> None:
    assert [read_answer(text) for text in examples("Answerer", "output")] == ["1864"]


async def test_a_condenser_completes_the_question_or_asks_back() -> None:
    written = examples("Condenser", "output")
    condenser = Condenser(Deployment(answerer=ScriptedModel(written)).roles()["answer"])
    history = (Message("user", "Who?"), Message("assistant", "Ana"))
    results = [await condenser.condense(history, "And there?", Ledger()) for _ in written]
    assert [(condensing.question, back) for condensing, back in results] == [
        (BEACON, ""),
        ("", "Which beacon do you mean?"),
    ]


def test_a_table_delegator_plans() -> None:
    """All its tags are read: the questions for rows, for a column, and two conditions."""
    (plan,) = examples("Table delegator", "output")
    schema, ignored = table_delegation.planned(COLUMNS, plan, opened(COLUMNS))
    decision = parse_decision(plan, limit=4)
    assert isinstance(decision, Dispatch)
    assert len(decision.sub_queries) == 2
    assert schema.columns[1].ask == "In which year was the lighthouse {lighthouse} first lit?"
    assert (len(schema.conditions), ignored) == (2, ())


def test_a_table_executor_lists_names() -> None:
    (text,) = examples("Table executor", "output")
    assert parse_table_turn(text) == ReportTurn(
        Report("Old Mole Light\nAldsay Beacon", LIT.evidence)
    )


@pytest.mark.parametrize("parse", [lambda text: parse_decision(text, limit=4), parse_turn])
def test_other_text_is_malformed(parse: object) -> None:
    (text,) = examples("Malformed output", "malformed")
    assert isinstance(parse(text), Malformed)  # type: ignore[operator]


def opened(schema: Schema) -> str:
    return table_delegation.opening(
        "List the lighthouses of Aldsay that were lit before 1900.", schema
    )


def test_models_are_shown_what_the_page_says() -> None:
    composer = Report("Ilse Varnholt", ("The Salt Road is an opera by Ilse Varnholt.",))
    beacon = Passage("1", "Lights of Aldsay", LIT.evidence[0], 1)
    history = [
        Message("user", "When was Kermor Point Light first lit?"),
        Message("assistant", "1871"),
    ]
    shown = {
        "Delegator": prompts.search_results([("Who composed The Salt Road?", composer)]),
        "Executor": prompts.documents([beacon], last=False),
        "Answerer": prompts.answer_request(BEACON, [(BEACON, LIT)]),
        "Condenser": prompts.condense_request(history, "What about Aldsay Beacon?"),
        "Table delegator": opened(COLUMNS),
    }
    assert {section: examples(section, "prompt") for section in shown} == {
        section: [text] for section, text in shown.items()
    }
