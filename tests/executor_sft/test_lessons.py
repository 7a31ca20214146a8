"""What the untuned mini executor learns from."""

import itertools
import random

import pytest

from executor_sft.miniworld.dialogues import NOT_FOUND, Dialogue, DialogueWriter, RolePrompts
from executor_sft.miniworld.lessons import student_lessons
from executor_sft.miniworld.world import World
from router.protocol.tags import unescape
from router.protocol.turns import ReportTurn, Search, parse_answer, parse_turn


@pytest.fixture(scope="module")
def taught(system: RolePrompts) -> list[Dialogue]:
    """500 lessons."""
    writer = DialogueWriter(World(11, "train"), system)
    return list(itertools.islice(student_lessons(writer, system, random.Random(1)), 500))


def searches(dialogue: Dialogue) -> int:
    return sum(turn.kind == "search" for turn in dialogue)


def test_an_executor_searches_once(taught: list[Dialogue], system: RolePrompts) -> None:
    """And then it reports; where that search was not enough, that nothing was found, quoting from its result."""
    executing = [dialogue for dialogue in taught if dialogue[0].text == system.execution]
    missed = 0
    for _, asked, search, found, report in executing:
        assert (asked.kind, search.kind, found.kind) == ("user", "search", "user")
        assert isinstance(parse_turn(search.text), Search)
        turn = parse_turn(report.text)
        assert isinstance(turn, ReportTurn)
        assert all(point in unescape(found.text) for point in turn.report.evidence)
        missed += turn.report.answer == NOT_FOUND
    assert 0.2 < missed / len(executing) < 0.6


def test_a_single_agent_searches_for_as_long_as_it_takes(taught: list[Dialogue], system: RolePrompts) -> None:
    """It answers, and does not report."""
    alone = [dialogue for dialogue in taught if dialogue[0].text == system.agent]
    assert sum(searches(dialogue) > 1 for dialogue in alone) > len(alone) / 2
    for dialogue in alone:
        assert dialogue[-1].kind == "answer"
        assert parse_answer(dialogue[-1].text)
        assert "<evidence>" not in dialogue[-1].text


def test_every_lesson_is_of_one_of_the_two_kinds(taught: list[Dialogue], system: RolePrompts) -> None:
    """In the shares that the shipped student had."""
    executing = sum(dialogue[0].text == system.execution for dialogue in taught)
    assert {dialogue[0].text for dialogue in taught} == {system.execution, system.agent}
    assert 0.3 < executing / len(taught) < 0.5
