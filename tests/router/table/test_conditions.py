"""Conditions: a row that contradicts one is excluded, with the sentence that says so."""

import random
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from router.errors import BadRequest
from router.models import Prompt
from router.protocol import Passage
from router.runs import RequestOptions
from router.table import TableLimits, TableRequest, table_cost, table_of
from router.table.assembly import Assembly, assemble
from router.table.conditions import with_conditions
from router.table.table_delegation import opening, planned
from router.trace import Execution, Run
from router.trace.table import Ask, Column, Condition, Operator, Row, Schema
from tests.router.table.reports import SCHEMA, discovery, executed, fill, listed
from tests.router.table.small_world import (
    COLUMNS,
    QUESTION,
    Reader,
    World,
    gateway,
    lead,
    lead_turn,
    written,
)
from tests.router.table.test_assembly import GIVEN, reports
from tests.router.table.test_filling import asked, filled, result, values
from tests.router.table.test_table_going_on import killed, models
from tests.router.table.test_table_going_on import table as resumed_table
from tests.scripted_model import ScriptedModel

AFTER = Condition(Column("founded"), "after", ("1005",))
FOUNDED = '<where column="founded" is="after" ask="When was {city} founded?">1005</where>'


def planning(world: World, conditions: str, a_turn: int = 4) -> ScriptedModel:
    """Return a delegator whose plan has these conditions."""

    def turn(prompt: Prompt) -> str:
        plan = conditions if len(prompt.messages) == 2 else ""
        return lead_turn(world, len(prompt.messages), a_turn) + plan

    return ScriptedModel(turn, "backbone")


def excluded(run: Run) -> dict[str, list[str]]:
    """Return the excluded rows with the sentences that exclude them."""
    return {
        row.cells[0].value: [
            at.quote
            for check in row.checks
            if check.state == "contradicted"
            for at in check.citations
        ]
        for row in table_of(result(run)).excluded
    }


async def test_rows_that_contradict_a_condition_are_excluded_with_the_sentence(
    tmp_path: Path,
) -> None:
    """They stay in the run, and executors are not asked for their other cells."""
    world = World(12)
    run = await filled(tmp_path, world, delegator=planning(world, FOUNDED))
    assert values(run) == world.rows()[6:]
    assert excluded(run) == {
        city: [f"{city} was founded in {world.founded[city]}."] for city in world.cities[:6]
    }
    fills = asked(run, "fill")
    assert {row[0] for row in fills if "founded" in row} == {city.lower() for city in world.cities}
    assert {row[0] for row in fills if "founder" in row} == {
        city.lower() for city in world.cities[6:]
    }


async def test_a_hidden_column_is_looked_up_but_not_in_the_table(tmp_path: Path) -> None:
    """The delegator and the client may ask for one."""
    world = World(12)
    request = TableRequest(QUESTION, COLUMNS[:2])
    run = await filled(
        tmp_path / "plan", world, delegator=planning(world, FOUNDED), request=request
    )
    table = table_of(result(run))
    assert [column.name for column in table.schema.columns] == ["city", "founder"]
    assert values(run) == [row[:2] for row in world.rows()[6:]]
    assert list(excluded(run)) == world.cities[:6]
    given_condition = replace(request, conditions=(AFTER,))
    delegator = planning(world, '<ask column="founded">When was {city} founded?</ask>')
    again = await filled(tmp_path / "given", world, delegator=delegator, request=given_condition)
    assert (values(again), excluded(again)) == (values(run), excluded(run))
    assert "founded" in delegator.prompts[0].messages[1].content, "it needs a question template"


async def test_given_rows_are_checked_too(tmp_path: Path) -> None:
    """A given value needs no sentence."""
    rows = (("Kruba", "Somebody"), ("Kruga", ""), ("Kruha", ""))
    conditions = (
        Condition(Column("founded", ask="When was {city} founded?"), "after", ("1005",)),
        Condition(Column("founder"), "contains", ("Krugason",)),
    )
    founder = Column("founder", ask="Who founded {city}?")
    request = TableRequest(QUESTION, (COLUMNS[0], founder), rows, True, 0, conditions)
    run = await filled(tmp_path, World(12), request=request)
    assert values(run) == [("Kruga", "Ana Krugason")]
    assert excluded(run) == {
        "Kruba": [],
        "Kruha": ["Kruha was founded by Ana Kruhason."],
    }


async def test_a_yes_no_question_is_asked_of_each_row(tmp_path: Path) -> None:
    """The evidence of a report is the grounds of its yes or no, so it is asked for alone."""

    class Judging(Reader):
        def report(self, asked: str, shown: str) -> str:
            if not asked.startswith("Is "):
                return super().report(asked, shown)
            city = asked.split()[1]
            if city == "Kruba":
                return written("no", "I do not think so.")
            return written("no" if city == "Kruca" else "yes", f"{city} is a city.")

    world = World(4)
    delegator = planning(world, '<where ask="Is {city} in Veshoux?"/>' + FOUNDED.replace("5", "0"))
    run = await filled(tmp_path, world, Judging(), delegator)
    assert excluded(run) == {"Kruaa": ["Kruaa was founded in 1000."], "Kruca": ["Kruca is a city."]}
    assert [row[0] for row in values(run)] == ["Kruba", "Kruda"]
    kruba, kruda = table_of(result(run)).rows
    assert [check.state for check in kruba.checks] == ["not_checked", "met"]
    assert [check.state for check in kruda.checks] == ["met", "met"]
    texts = [execution.sub_query for execution in result(run).executions]
    assert "Is Kruda in Veshoux?" in texts
    assert "Look up again: Is Kruba in Veshoux?" in texts


async def test_a_row_without_evidence_stays_and_is_not_checked(tmp_path: Path) -> None:
    world = World(8, unstated=2)
    condition = Condition(Column("founder"), "contains", ("Ana",))
    request = TableRequest(QUESTION, COLUMNS, conditions=(condition,))
    run = await filled(tmp_path, world, request=request)
    assert values(run) == world.rows()
    states = [row.checks[0].state for row in table_of(result(run)).rows]
    assert states == ["not_checked"] * 2 + ["met"] * 6


async def test_excluded_rows_do_not_depend_on_the_order_of_arrival(tmp_path: Path) -> None:
    """Old names, conflicts and facts that no page states are included."""
    world = World(22, unstated=2, renamed=3)
    conditions = FOUNDED + '<where column="founder" is="contains">a</where>'
    tables = set()
    asks = set()
    for seed in range(8):
        run = await filled(
            tmp_path / f"{seed}",
            world,
            Reader(seed=seed),
            planning(world, conditions),
            limits=TableLimits(width=(10, 3, 1, 20)[seed % 4], cells_per_ask=seed % 2),
            early=seed < 6,
        )
        table = table_of(result(run))
        asks.add((seed % 2, frozenset(result(run).asks)))
        tables.add(msgspec.json.encode(values(run) if seed % 2 else table))
    assert (len(tables), len(asks)) == (2, 2)
    assert list(excluded(run)) == world.cities[:6]


@pytest.mark.parametrize(
    ("held", "free"), [("delegator", 1), *(("executor", free) for free in (1, 5, 9, 14, 19, 24))]
)
async def test_a_table_with_conditions_is_resumed_after_a_kill(
    tmp_path: Path, held: str, free: int
) -> None:
    """It equals an undisturbed one."""
    world = World(10, unstated=1, renamed=1)
    request = TableRequest(QUESTION, COLUMNS, conditions=(AFTER,))
    limits = TableLimits(width=3)
    async with gateway(tmp_path / "whole", world, **models(), limits=limits) as (undisturbed, _):
        whole = await undisturbed.fill_table(request, RequestOptions())
    left, run_id = await killed(tmp_path, held, models(held, free), request)
    async with gateway(left, world, **models(seed=8), limits=limits) as (second, archive):
        run = await second.fill_table(TableRequest("", ()), RequestOptions(resume=run_id))
        interrupted = await archive.load(run_id)
    assert resumed_table(run) == resumed_table(whole)
    assert list(excluded(run)) == world.cities[:6]
    ended = sum(call.outcome == "completed" for call in interrupted.calls)
    assert ended + len(run.calls) == len(whole.calls)


async def test_costs_of_excluded_rows_are_their_own(tmp_path: Path) -> None:
    world = World(12)
    run = await filled(tmp_path, world, delegator=planning(world, FOUNDED))
    table = table_of(result(run))
    cost = table_cost(table, result(run).asks, run.calls)
    spent = sum(call.usage.total_tokens for call in run.calls if call.usage)
    assert sum(amount.tokens for amount in (*cost.rows, cost.overhead)) == spent
    assert len(cost.rows) == 12
    assert all(amount.tokens for amount in cost.rows)


# What a plan may contain


def conditions_of(text: str) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return column, operator and values of the conditions in a plan."""
    schema, _ = planned(SCHEMA, text, f"Bo & Co {text}")
    return [
        (condition.column.name, condition.operator, condition.values)
        for condition in schema.conditions
    ]


@pytest.mark.parametrize(
    ("text", "conditions"),
    [
        (FOUNDED, [("founded", "after", ("1005",))]),
        (
            "<where column='Founded' is='At Least'>1990</where>",
            [("founded", "at_least", ("1990",))],
        ),
        (
            '<where column="founder" is="one of"> Ana | Bo &amp; Co </where>',
            [("founder", "one_of", ("Ana", "Bo & Co"))],
        ),
        ("<where column=“country”>Veshoux</where>", [("country", "equals", ("Veshoux",))]),
        (
            '<where ask="Is {city} in Veshoux?"/> <where ask="Is {city} in Veshoux?" />',
            [("Is {city} in Veshoux?", "equals", ("yes",))],
        ),
        ('<where ask="Is {city} new?"/> as it demands', [("Is {city} new?", "equals", ("yes",))]),
        (f"<think>{FOUNDED}</think>", []),
        (f'<search>["x?"]</search>\n{FOUNDED}<ask column="founder">Who?</ask>', 1),
        (f'{FOUNDED}<where column="founder" is="one of">Ana Ruiz|Bo', 1),
        ("<where", []),
        ("<where>", []),
    ],
)
def test_conditions_are_read_from_a_plan(text: str, conditions: Any) -> None:
    read = conditions_of(text)
    assert (read if isinstance(conditions, list) else len(read)) == conditions


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            '<where column="founded" is="near">1990</where>',
            "the condition on 'founded' has the unknown operator 'near'; use equals",
        ),
        (
            '<where column="founded" is="after">long ago</where>',
            "cannot be compared with 'long ago'",
        ),
        ('<where column="founded" is="after"></where>', "needs a value, and takes up to 1"),
        ('<where column="founded" is="after">1|2</where>', "needs a value, and takes up to 1"),
        ("<where>1990</where>", "has neither a column nor a yes/no question"),
        ('<where ask="Is it in Veshoux?"/>', "name the row in it with {city}"),
        ('<where ask="Is {town} in Veshoux?"/>', "{town}, which is not a key column"),
        (f'<where column="founded" is="after">{"(a+)+$" * 40_000}</where>', "at most 2,000"),
        (f'<where ask="{"Is {city} {city}" * 15_000}?"/>', "has neither a column"),
        (f'<where ask="{"Is {city} {city}" * 150}?"/>', "at most 2,000"),
    ],
)
async def test_a_malformed_condition_is_ignored_and_noted(
    tmp_path: Path, text: str, why: str
) -> None:
    """The rest of the plan counts."""
    world = World(4)
    delegator = planning(world, text + FOUNDED.replace("1005", "1001"))
    run = await filled(tmp_path, world, delegator=delegator)
    assert values(run) == world.rows()[2:]
    (note,) = result(run).ignored
    assert note.startswith("<where")
    assert why in note
    assert len(note) < 400


async def test_thousands_of_conditions_in_a_plan_cost_little(tmp_path: Path) -> None:
    """The first sixteen count."""
    world = World(4)
    many = "".join(f'<where column="founded" is="after">{900 + at}</where>' for at in range(5000))
    run = await filled(tmp_path, world, delegator=planning(world, many))
    assert values(run) == world.rows()
    schema = result(run).schema
    assert len(schema.conditions) == 16
    assert 0 < len(result(run).ignored) <= 64
    assert "at most 16 are allowed" in result(run).ignored[0]


@pytest.mark.parametrize("request_text", ["Cities of Anna", "", "The cities that ana ruiz founded"])
@pytest.mark.parametrize("operator", ["equals", "contains"])
def test_a_condition_on_a_name_that_the_request_does_not_have_is_ignored(
    request_text: str, operator: str
) -> None:
    """A model that misspells a name would exclude right rows."""
    plan = f'<where column="founder" is="{operator}">Ana Ruiz</where>'
    schema, ignored = planned(SCHEMA, plan, request_text)
    if "ruiz" in request_text:
        assert ([condition.values for condition in schema.conditions], ignored) == (
            [("Ana Ruiz",)],
            (),
        )
    else:
        assert schema == SCHEMA
        assert [text.partition(": ")[2] for text in ignored] == [
            "the request lacks the name 'Ana Ruiz'; use a name in the request."
        ]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ("Ana Ruiz|Bo Lund", ""),
        ("Ana Ruiz|Ben Lund", "the request lacks the name 'Ben Lund'; use a name in the request."),
        ("Ana Ruiz|", "one_of has only one value; use equals, or give all values."),
    ],
)
def test_of_several_names_all_must_be_in_the_request(values: str, reason: str) -> None:
    plan = f'<where column="founder" is="one_of">{values}</where>'
    schema, ignored = planned(SCHEMA, plan, "Cities founded by Ana Ruiz or Bo Lund")
    assert len(schema.conditions) == (not reason)
    assert [text.partition(": ")[2] for text in ignored] == [reason] * bool(reason)


@pytest.mark.parametrize(
    ("request_text", "written", "values"),
    [
        ("Firms of Moalkrekros, and of Lobrev", "Floalkrekros|Lobrev", ("Moalkrekros", "Lobrev")),
        ("Films by Stishaest Doukrousk?", "Shishaest Doukrousk", ("Stishaest Doukrousk",)),
        ("Novels of Austrian writers", "Austria", None),
        ("Cars of Formula Four 4", "Formula Four 3", None),
        ("Towns of South Vorland", "South Vorland|North Vorland", None),
        ("Kings who were Unmarried", "Married", None),
        ("stations that are not inactive", "active", None),
        ("Cities of Ana Ruiz or Bo Lund", "Ana Ruiz|ana ruiz", None),
    ],
)
def test_a_misspelled_name_is_spelled_as_in_the_request(
    request_text: str, written: str, values: tuple[str, ...] | None
) -> None:
    """Other words that are alike, numbers, and names that would become equal are not changed."""
    operator = "one_of" if "|" in written else "equals"
    plan = f'<where column="founder" is="{operator}">{written}</where>'
    schema, ignored = planned(SCHEMA, plan, request_text)
    assert [condition.values for condition in schema.conditions] == [values] * bool(values)
    assert len(ignored) == (not values)


QUESTIONS = (
    '<search>["Which films by Ana Ruiz are in register A?", "Which films by Bo Lund are in '
    'register A?", "Which films by Cy Gray are in register A?", "Who is Dee Hart?"]</search>'
)


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("Ana Ruiz|Towne Road", ("Ana Ruiz", "Bo Lund")),
        ("Ana Ruiz|Xna Ruiz|Xna Ruiz", ("Ana Ruiz", "Bo Lund")),
        ("Ana Ruiz|Bo Lund|Towne Road", None),
        ("Bo Lund|", ("Bo Lund", "Ana Ruiz")),
        ("Dee Hart|Towne Road", None),
        ("Eve Towne|Towne Road", None),
    ],
)
@pytest.mark.parametrize("operator", ["one_of", "equals"])
def test_wrong_names_of_a_condition_are_replaced_by_those_of_the_questions(
    written: str, values: tuple[str, ...] | None, operator: str
) -> None:
    """The questions name Cy Gray, too, but the request does not."""
    plan = f'{QUESTIONS}<where column="founder" is="{operator}">{written}</where>'
    schema, ignored = planned(SCHEMA, plan, "Films by Ana Ruiz and Bo Lund, not by Dee Hart")
    if operator == "equals" and written == "Bo Lund|":
        values = ("Bo Lund",)
    assert [sorted(condition.values) for condition in schema.conditions] == [
        sorted(values or ())
    ] * bool(values)
    assert len(ignored) == (not values)


def test_names_of_questions_for_managers_are_read() -> None:
    plan = QUESTIONS.replace("<search>", '<search manager="files">')
    plan += '<where column="founder" is="one of">Ana Ruiz|Towne Road</where>'
    schema, _ = planned(SCHEMA, plan, "Films by Ana Ruiz and Bo Lund")
    assert [condition.values for condition in schema.conditions] == [("Ana Ruiz", "Bo Lund")]


def test_only_texts_are_corrected() -> None:
    """The request contains Yeyes, which is nearly yes."""
    columns = Schema((Column("city", key=True), Column("eyed", "boolean")))
    schema, ignored = planned(
        columns, '<where column="eyed" is="equals">Yeses</where>', "Cities of Yeyses"
    )
    assert (schema.conditions, len(ignored)) == ((), 1)
    assert "'Yeses'" in ignored[0]


def test_few_names_are_compared_with_few_phrases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison takes quadratic time in the length of a name."""
    compared = []

    def compare(name: str, phrases: list[str], *_: object) -> list[str]:
        compared.append((len(name), len(phrases)))
        return []

    monkeypatch.setattr("router.table.table_delegation.get_close_matches", compare)
    names = [f"Ana{chr(97 + number % 26) * (number % 60)}son" for number in range(2000)]
    plan = f'<where column="founder" is="one of">{"|".join(names)}</where>' * 64
    planned(SCHEMA, plan, " ".join(f"Bo{chr(97 + at % 26) * (at % 9)}son" for at in range(999)))
    assert 0 < len(compared) <= 8
    assert max(size for size, _ in compared) <= 50
    assert max(phrases for _, phrases in compared) <= 20


def test_words_next_to_a_number_are_ignored() -> None:
    plan = '<where column="founded" is="before">1920|Nights Shadows|</where>'
    schema, ignored = planned(SCHEMA, plan, "Cities founded before 1920")
    assert ([condition.values for condition in schema.conditions], ignored) == ([("1920",)], ())


@given(st.text(alphabet='<>/where column="founder" is="at_least"ask{city}?|\n', max_size=200))
def test_any_plan_is_read(text: str) -> None:
    """Columns of the table stay unchanged."""
    schema, _ = planned(SCHEMA, text, text)
    assert schema.shown == SCHEMA.columns


# What a client may give


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ([AFTER] * 15 + [Condition(Column("size"), "after", (f"{at}",)) for at in range(3000)],
         r"conditions\[30\]: too many conditions, at most 16"),
        ([Condition(Column("founded"), "after", ("(a|a)*" * 170_000,))],
         r"conditions\[0\]: column, ask and values have 1,020,0\d\d characters together"),
        ([Condition(Column("founded"), "one_of", ("1990",) * 65)], "takes up to 64; none"),
        ([Condition(Column("founded"), "equals", ("1", "2"))], r"up to 1; .* correct \['1', '2'\]"),
        ([Condition(Column("founded"), "after", ("n/a",))], r"none may be empty.* \['n/a'\]"),
        ([AFTER, Condition(Column("founded"), "after", ("Ana",))],
         r"conditions\[1\]: 'founded' of type integer cannot be compared with 'Ana'; give"),
        ([Condition(Column("", ask=""))], r"conditions\[0\]: has neither a column nor a yes/no"),
        ([Condition(Column("", ask="Is it?"))], "name the row in it with {city}"),
    ],
)  # fmt: skip
async def test_an_invalid_condition_costs_nothing(
    tmp_path: Path, conditions: list[Condition], message: str
) -> None:
    request = TableRequest(QUESTION, COLUMNS, conditions=tuple(conditions))
    async with gateway(tmp_path, World(2)) as (first, _):
        with pytest.raises(BadRequest, match=message):
            await first.fill_table(request, RequestOptions())


# How values are compared


def state(column: Column, operator: Operator, values: str, value: str) -> str:
    """Return whether a given value meets a condition. `values` have bars between them."""
    schema = with_conditions(
        Schema((Column("city", key=True), column)),
        [Condition(column, operator, tuple(values.split("|")))],
    )
    table = assemble(schema, [["Krurou", value]], [])
    (row,) = table.every_row
    assert row.excluded == (row in table.excluded)
    return row.checks[0].state


DATE = Column("founded", "date")
NUMBER = Column("people", "number")
TEXT = Column("note")


@pytest.mark.parametrize(
    ("column", "operator", "values", "value", "met"),
    [
        (DATE, "after", "1990", "5 May 1991", "met"),
        (DATE, "after", "1990", "1990年12月3日", "contradicted"),
        (DATE, "at_least", "1990", "1990年12月3日", "met"),
        (DATE, "before", "1990年", "1989-12", "met"),
        (DATE, "after", "1990-06-01", "1990", "not_checked"),
        (DATE, "at_most", "May 1990", "1990-05-31", "met"),
        (DATE, "before", "1990", "long ago", "not_checked"),
        (DATE, "equals", "1990", "3 June 1990", "met"),
        (DATE, "after", "1000", "900", "contradicted"),
        (NUMBER, "at_least", "3 million", "350万", "met"),
        (NUMBER, "at_least", "300万人", "二百九十九万人", "contradicted"),
        (NUMBER, "before", "1,000", "999.5", "met"),
        (NUMBER, "before", "2 km", "1500 m", "not_checked"),
        (NUMBER, "before", "2 km", "1.5 km", "met"),
        (NUMBER, "equals", "12", "12.0", "met"),
        (Column("area", "number", unit="million km2"), "after", "2", "3,000,000", "met"),
        (Column("area", "number", unit="km2"), "after", "2", "3,000,000 km2", "met"),
        (Column("n", "integer"), "at_most", "5", "6", "contradicted"),
        (TEXT, "after", "1990", "founded on 5 May 1991", "met"),
        (TEXT, "at_least", "5000", "12,345 people", "met"),
        (TEXT, "equals", "Veshoux", "VESHOUX.", "met"),
        (TEXT, "equals", "Veshoux", "Republic of Veshoux", "not_checked"),
        (TEXT, "equals", "Veshoux", "Norland", "contradicted"),
        (TEXT, "equals", "北京", "北京市", "not_checked"),
        (TEXT, "one_of", "北京|上海", "上海", "met"),
        (TEXT, "one_of", "北京|上海", "广州", "contradicted"),
        (TEXT, "contains", "大学", "北京大学", "met"),
        (TEXT, "contains", "burg", "Annaburg", "contradicted"),
        (Column("coastal", "boolean"), "equals", "yes", "是", "met"),
        (Column("coastal", "boolean"), "equals", "yes", "否", "contradicted"),
        (Column("size", "choice", choices=("S", "L")), "one_of", "S|L", "s", "met"),
        (Column("home", "url"), "equals", "https://a.example/", "http://www.a.example", "met"),
    ],
)  # fmt: skip
def test_values_are_compared_by_the_type_of_their_column(
    column: Column, operator: Operator, values: str, value: str, met: str
) -> None:
    """What cannot be compared for certain is not checked."""
    assert state(column, operator, values, value) == met


def test_a_condition_on_a_key_is_about_the_name_of_the_row() -> None:
    schema = with_conditions(SCHEMA, [Condition(Column("city"), "contains", ("New",))])
    table = assemble(schema, [], [(discovery(), listed("- Krurou\n- New Bel"))])
    assert [row.key for row in table.rows] == [("new bel",)]
    assert [row.checks[0].citations[0].quote for row in table.excluded] == ["- Krurou - New Bel"]


@pytest.mark.parametrize(
    ("passage", "state_of_row"),
    [
        ("Krurou: Founded in 900.", "contradicted"),
        ("Annals: Bel was founded in 900.", "not_checked"),
        ("Annals: Nobody knows.", "not_checked"),
    ],
)
def test_only_a_value_that_is_stated_of_the_row_excludes_it(
    passage: str, state_of_row: str
) -> None:
    """A value next to another name does not, and one that no passage contains does not either."""
    schema = with_conditions(SCHEMA, [AFTER])
    report = fill("krurou", "founded"), executed("900", passage)
    table = assemble(schema, [["Krurou", "", ""]], [report])
    assert [row.checks[0].state for row in table.every_row] == [state_of_row]


def test_a_value_that_no_sentence_states_excludes_a_row_if_two_executors_report_it() -> None:
    schema = with_conditions(SCHEMA, [AFTER])
    reports = [
        (fill("krurou", "founded", attempt=at), executed("900", "Annals: Bel was founded in 900."))
        for at in (1, 2)
    ]
    table = assemble(schema, [["Krurou", "", ""]], reports)
    assert [row.checks[0].state for row in table.excluded] == ["contradicted"]
    assert [at.quote for at in table.excluded[0].checks[0].citations] == ["Bel was founded in 900."]


async def test_a_value_without_a_sentence_that_contradicts_a_condition_is_asked_for_again(
    tmp_path: Path,
) -> None:
    """Values that meet the condition are not."""

    class Vague(World):
        def page(self, city: str) -> Passage:
            """The pages of two cities state the year of another."""
            if city not in ("Kruba", "Kruca"):
                return super().page(city)
            text = f"Bel was founded in {self.founded[city]}."
            return Passage("Annals", "Annals", text, document="Annals")

    class Misreading(Reader):
        def report(self, asked: str, shown: str) -> str:
            year = re.search(r"Bel was founded in (\d+)", shown)
            return written(year[1]) if year else super().report(asked, shown)

    condition = replace(AFTER, values=("1001",))
    request = TableRequest(QUESTION, COLUMNS[::2], conditions=(condition,))
    run = await filled(tmp_path, Vague(4), Misreading(), request=request)
    table = table_of(result(run))
    assert [row.key for row in table.rows] == [("kruca",), ("kruda",)]
    assert excluded(run)["Kruba"] == ["Bel was founded in 1001."]
    fills = [ask.row for ask in result(run).asks if "founded" in ask.columns]
    assert [fills.count((f"kru{letter}a",)) for letter in "abcd"] == [1, 2, 1, 1]


def test_a_value_that_no_passage_has_is_not_the_word_of_a_second_executor() -> None:
    schema = with_conditions(SCHEMA, [AFTER])
    reports = [
        (fill("krurou", "founded", attempt=1), executed("900", "Annals: Bel was founded in 900.")),
        (fill("krurou", "founded", attempt=2), executed("900", "Annals: Nobody knows.")),
    ]
    table = assemble(schema, [["Krurou", "", ""]], reports)
    assert [row.checks[0].state for row in table.rows] == ["not_checked"]


def test_a_name_may_have_characters_that_are_escaped_in_prompts() -> None:
    plan = '<where column="founder" is="equals">AT&amp;T &lt;Bell&gt;</where>'
    schema, ignored = planned(SCHEMA, plan, opening("Cities founded by AT&T <Bell>", SCHEMA))
    assert ([condition.values for condition in schema.conditions], ignored) == (
        [("AT&T <Bell>",)],
        (),
    )


def test_a_value_that_is_stated_of_another_name_can_meet_a_condition() -> None:
    schema = with_conditions(SCHEMA, [AFTER])
    report = fill("krurou", "founded"), executed("1100", "Annals: Bel was founded in 1100.")
    table = assemble(schema, [["Krurou", "", ""]], [report])
    assert [row.checks[0].state for row in table.rows] == ["met"]


def test_a_conflict_excludes_nothing() -> None:
    schema = with_conditions(SCHEMA, [AFTER])
    years = [
        (fill("krurou", "founded", attempt=at), executed(year, f"Page {at}: Krurou is of {year}."))
        for at, year in enumerate(("900", "1100"), 1)
    ]
    table = assemble(schema, [["Krurou", "", ""]], years)
    assert [row.checks[0].state for row in table.rows] == ["not_checked"]
    assert len(assemble(schema, [["Krurou", "", ""]], years[:1]).excluded) == 1


CONDITIONS = st.lists(
    st.sampled_from(
        [
            Condition(Column("founded"), "after", ("1350",)),
            Condition(Column("founder"), "one_of", ("Ana Ruiz", "Cy")),
            Condition(Column("city"), "contains", ("Bel",)),
            Condition(Column("era"), "equals", ("old",)),
        ]
    ),
    max_size=3,
)


@given(GIVEN, reports(), CONDITIONS, st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_neither_rows_nor_exclusions(
    rows: list[tuple[str, ...]],
    reported: list[tuple[Ask, Execution]],
    conditions: list[Condition],
    max_rows: int,
    chance: random.Random,
) -> None:
    """Without conditions, the same rows have the same cells; none is lost."""
    schema = with_conditions(SCHEMA, conditions)
    assembly = Assembly(schema, rows, max_rows=max_rows)
    seen = dict[tuple[str, ...], Row]()
    for ask, execution in chance.sample(reported, len(reported)):
        assembly.add(ask, execution)
        seen |= {row.key: row for row in assembly.take_changed()}
    table = assembly.table()
    assert table == assemble(schema, rows, reported, max_rows=max_rows)
    plain = assemble(SCHEMA, rows, reported, max_rows=max_rows)
    assert (
        sorted((row.key, row.cells) for row in table.every_row)
        == sorted((row.key, row.cells) for row in plain.rows)
        or not plain.rows
    )
    assert not any(row.excluded for row in table.rows)


# The form of the table in the question


WIDE = "\n\nPlease organize the results in one Markdown table with the following columns:\n{}\n"
END = "The output format is \n```markdown\n{data_content}\n```."
ASK_NOTHING = "Don't ask me any questions, just output the results according to the columns. "
CHINESE = (
    "请以一整个Markdown表格的格式输出整理后的数据，不要拆分成多个markdown表格，每个单元格都需要按列名要求输出，"
    "不得无故省略，输出采用中文。\n表格中的列名依次为：\n城市、建城者、年份。不要问我任何问题，只需输出结果，"
    "输出格式为```markdown{数据内容}```"
)


@pytest.mark.parametrize(
    ("names", "question", "shown"),
    [
        (
            ("city", "founder", "founded"),
            "List the cities of Vorland."
            + WIDE.format("City, Founder,  Founded")
            + ASK_NOTHING
            + END,
            "List the cities of Vorland.",
        ),
        (
            ("city", "founded"),
            "Cities of Vorland?" + WIDE.format("City\nFounded") + "Use 4 digits.\n" + END,
            "Cities of Vorland?\n\nUse 4 digits.",
        ),
        (("城市", "建城者", "年份"), "列出沃兰的城市。" + CHINESE, "列出沃兰的城市。"),
        # What is no mere form stays as it is.
        (("city", "mayor"), "Cities?" + WIDE.format("City, Founder") + END, None),
        (("city", "founded"), "Cities of Vorland with city and founded.", None),
        (("city",), "City" + END, None),
    ],
)
def test_the_delegator_is_not_shown_the_form_that_the_columns_give(
    names: tuple[str, ...], question: str, shown: str | None
) -> None:
    schema = Schema(tuple(Column(name, key=at == 0) for at, name in enumerate(names)))
    text = re.match("<question>(.*?)</question>", opening(question, schema), re.DOTALL)
    assert text
    assert text[1].replace("&#x27;", "'") == (question if shown is None else shown)


async def test_the_run_keeps_the_question_as_asked(tmp_path: Path) -> None:
    question = "List all cities." + WIDE.format("city, founder, founded") + END
    world = World(4)
    delegator = lead(world)
    request = TableRequest(question, COLUMNS)
    run = await filled(tmp_path, world, delegator=delegator, request=request)
    assert (run.request, run.question) == (question, question)
    assert "<question>List all cities.</question>" in delegator.prompts[0].messages[1].content
