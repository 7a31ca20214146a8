"""Lessons in tables: the lead's turns follow the table's status, lists have the names that their
passages state, and all fit.
"""

import itertools
import re
from pathlib import Path

import pytest

from executor_sft.minimodel.command import _TABLE_ROWS
from executor_sft.minimodel.model import load_tokenizer
from executor_sft.minimodel.stream import Role, conversations, encode
from executor_sft.miniworld.dialogues import Dialogue, RolePrompts
from executor_sft.miniworld.relations import BY_SUBJECT
from executor_sft.miniworld.wide import Knobs, WideWorld, column_name
from executor_sft.miniworld.wide_lessons import TableLessons, turn_text
from router.protocol import parse_decision, parse_turn
from router.protocol.decision import Dispatch, Stop
from router.protocol.tags import unescape
from router.protocol.turns import MAX_POINTS, ReportTurn, SearchTurn
from router.table.conditions import is_met
from router.table.table_delegation import planned
from serving.config.file import load_config, preset

BACKBONE = Path(__file__).parents[2] / "serving" / "models" / "mini-backbone"
MINI = load_config(preset("mini"))
EXECUTION = MINI.roles.execution
_DOCUMENT = re.compile(r"<title>(.*?)</title><text>(.*?)</text>")


@pytest.fixture(scope="module")
def leads(system: RolePrompts) -> list[Dialogue]:
    """50 lead conversations of each of three worlds."""
    return [
        dialogue
        for seed in (1, 2, 3)
        for dialogue in itertools.islice(TableLessons(seed, system).lead(), 50)
    ]


@pytest.fixture(scope="module")
def executions(system: RolePrompts) -> list[Dialogue]:
    """100 executor conversations of each of three worlds."""
    return [
        dialogue
        for seed in (1, 2, 3)
        for dialogue in itertools.islice(TableLessons(seed, system).executor(True), 100)
    ]


def columns_of(dialogue: Dialogue) -> list[str]:
    """Return the names of columns, key first, without types."""
    (columns,) = re.findall("<columns>(.*)</columns>", dialogue[1].text)
    return [column.partition(":")[0].rstrip("*") for column in columns.split(", ")]


def rows_of(dialogue: Dialogue) -> list[int]:
    """Return the number of rows in each status."""
    return [int(re.findall(r'<table rows="(\d+)"', turn.text)[0]) for turn in dialogue[3::2]]


def names(report: str) -> list[str]:
    return unescape(report.removeprefix("<answer>").partition("</answer>")[0]).split("\n")


def test_a_plan_discovers_and_has_a_question_per_column(leads: list[Dialogue]) -> None:
    """The key has none, and is a placeholder in the questions.

    They are of the set that the request names.
    """
    for dialogue in leads:
        key, *value_columns = columns_of(dialogue)
        plan = dialogue[2].text
        asks = re.findall('<ask column="([a-z ]+)">([^<]+)</ask>', plan)
        assert [name for name, _ in asks] == value_columns
        assert all(text.count(f"{{{key}}}") == 1 and text.endswith("?") for _, text in asks)
        decision = parse_decision(plan, limit=20)
        assert isinstance(decision, Dispatch)
        assert len(decision.sub_queries) in (4, 8)
        for question in decision.sub_queries:
            noun = re.sub(
                r"^Which | were [a-z ]+ about \d+\?$| are in register [A-Z]\?$", "", question
            )
            assert noun in unescape(dialogue[1].text)


def test_a_lead_continues_while_a_turn_brings_rows(leads: list[Dialogue]) -> None:
    """It asks for rows that it did not ask for yet, without questions for columns; then it
    stops.
    """
    lengths = set()
    for dialogue in leads:
        rows = rows_of(dialogue)
        lengths.add(len(rows))
        assert all(later > earlier for earlier, later in itertools.pairwise([0, *rows[:-1]]))
        assert rows[-1] == ([0, *rows])[-2]
        assert parse_decision(dialogue[-1].text, limit=20) == Stop()
        decisions = [parse_decision(turn.text, limit=20) for turn in dialogue[2:-1:2]]
        asks = [
            question
            for decision in decisions
            if isinstance(decision, Dispatch)
            for question in decision.sub_queries
        ]
        assert len(set(asks)) == len(asks)
        assert not any("<ask" in turn.text for turn in dialogue[3:])
    assert len(lengths) > 1


def test_a_status_counts_its_rows(leads: list[Dialogue]) -> None:
    """At most 20 keys and 5 holes are listed."""
    for turn in (turn for dialogue in leads for turn in dialogue[3::2]):
        counts = {name: int(count) for name, count in re.findall(r'(\w+)="(\d+)"', turn.text)}
        keys, holes = (
            re.findall(f"(?s)<{tag}>(.+?)</{tag}>", turn.text) for tag in ("rows", "holes")
        )
        shown, missing = (block[0].split("\n") if block else [] for block in (keys, holes))
        assert len(shown) <= min(20, counts["rows"])
        assert len(missing) == min(5, counts["missing"])
        assert counts["rows"] - counts["missing"] <= counts["complete"] <= counts["rows"]
        assert counts["rows"] <= counts.get("estimate", counts["rows"])


def test_a_list_has_the_names_that_its_passages_state(executions: list[Dialogue]) -> None:
    """It has one name a line, six at most and none twice, all from the requested register or from
    pages that state the membership; the evidence is quoted.
    """
    lists = [
        dialogue
        for dialogue in executions
        if dialogue[1].text.startswith("Which ") and len(dialogue) == 5
    ]
    lists = [
        lesson for lesson in lists if re.search(r"register [A-Z]\?$| about \d+\?$", lesson[1].text)
    ]
    supported = 0
    assert len(lists) > 0.6 * len(executions)
    for _, user_turn, search, shown, report in lists:
        assert parse_turn(search.text) == SearchTurn(user_turn.text, 0)
        turn = parse_turn(report.text)
        assert isinstance(turn, ReportTurn)
        pages = [(unescape(title), unescape(text)) for title, text in _DOCUMENT.findall(shown.text)]
        assert len(pages) == 3
        assert 0 < len(turn.report.evidence) <= MAX_POINTS
        assert all(any(point in text for _, text in pages) for point in turn.report.evidence)
        if turn.report.answer == "not found":
            continue
        supported += 1
        listed = names(report.text)
        assert len(set(listed)) == len(listed) <= 6
        register = re.search(r"^Which (.*) are in (register [A-Z])\?$", user_turn.text)
        if register:
            title = f"{'R' + register[2][1:]} of the {register[1]}"
            pages = [page for page in pages if page[0] == title]
        assert all(any(name in f"{title} {text}" for title, text in pages) for name in listed)
    assert supported > 0.5 * len(lists)


def test_a_missing_register_is_not_found(executions: list[Dialogue]) -> None:
    """An existing register is read."""
    outcomes = set()
    for dialogue in executions:
        register_query = re.search(r"^Which (.*) are in (register [A-Z])\?$", dialogue[1].text)
        if register_query:
            shown = (
                f"<title>{'R' + register_query[2][1:]} of the {register_query[1]}</title>"
                in dialogue[3].text
            )
            assert (names(dialogue[-1].text) == ["not found"]) == (not shown)
            outcomes.add(shown)
    assert outcomes == {True, False}


def test_a_cell_that_no_page_states_is_not_found(executions: list[Dialogue]) -> None:
    """Fills like those without tables, some with two searches, are among them."""
    fills = [
        dialogue
        for dialogue in executions
        if not re.search(r"register [A-Z]\?$| about \d+\?$", dialogue[1].text)
    ]
    blank = [dialogue for dialogue in fills if names(dialogue[-1].text) == ["not found"]]
    assert 0.15 < len(blank) / len(fills) < 0.6
    assert all(len(dialogue) == 5 for dialogue in blank)
    assert any(len(dialogue) == 7 for dialogue in fills)


def test_a_plan_has_the_conditions_of_its_set() -> None:
    """A program reads them without loss. They are met by all right rows, and by no other entity."""
    world = WideWorld(3, "train", Knobs(unstated=0))
    operators = set[str]()
    for task in world.tasks:
        schema, ignored = planned(task.schema, turn_text(task, 0), task.question)
        assert not ignored
        assert [(c.column.name, c.operator, c.values) for c in schema.conditions] == [
            (c.column.name, c.operator, c.values) for c in task.conditions
        ]
        relations = {column_name(relation): relation for relation in BY_SUBJECT[task.sets[0].kind]}
        rows = {
            entity.mention
            for entity in world.world.entities
            if entity.kind == task.sets[0].kind
            and all(
                is_met(condition, world.gold(entity, relations[condition.column.name]))
                for condition in schema.conditions
            )
        }
        assert rows == {entity.mention for entity in task.rows}
        operators.update(condition.operator for condition in schema.conditions)
    assert operators == {"equals", "one_of", "before"}


def test_turns_and_conversations_fit(
    leads: list[Dialogue], executions: list[Dialogue], system: RolePrompts
) -> None:
    """Six names fit into an executor's 128 tokens, a lead's turn into the tokens of a plan, and all
    into the rows of a training.
    """
    tokenizer = load_tokenizer(BACKBONE)
    longest = {"report": 0, "delegate": 0}
    for dialogue in (*leads, *executions):
        assert len(encode(dialogue, tokenizer)[0]) <= _TABLE_ROWS[-1]
        for turn in dialogue:
            if turn.role == "assistant":
                length = len(tokenizer(turn.text, add_special_tokens=False).input_ids)
                longest[turn.kind] = max(longest.get(turn.kind, 0), length)
    assert max(len(names(lesson[-1].text)) for lesson in executions) == 6
    assert longest["report"] < EXECUTION.max_tokens == 128
    assert longest["search"] < EXECUTION.max_tokens
    lead = MINI.roles.table_delegation
    assert lead
    assert lead.max_tokens
    assert longest["delegate"] < lead.max_tokens


def test_a_third_of_the_tokens_are_of_tables(system: RolePrompts) -> None:
    """This holds if tables are requested; the others are those of a training without tables."""
    tokenizer = load_tokenizer(BACKBONE)
    roles: tuple[Role, ...] = ("backbone", "executor", "student")
    for role in roles:
        mixed = list(
            itertools.islice(conversations(role, system, 1000, passages=3, tables=True), 400)
        )
        plain = list(itertools.islice(conversations(role, system, 1000, passages=3), 400))
        others = [dialogue for dialogue in mixed if dialogue in plain]
        lengths = [(len(encode(dialogue, tokenizer)[0]), dialogue in plain) for dialogue in mixed]
        share = sum(length for length, without_table in lengths if not without_table) / sum(
            length for length, _ in lengths
        )
        assert others == plain[: len(others)]
        assert 0.2 < share < 0.5, role
