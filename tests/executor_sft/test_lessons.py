"""Lessons of the student and of the generalists."""

import itertools
import random
from collections import Counter
from pathlib import Path

import pytest

from executor_sft.minimodel.model import load_tokenizer
from executor_sft.minimodel.stream import BATCH_TOKENS, batches, conversations, encode
from executor_sft.miniworld.dialogues import NOT_FOUND, Dialogue, DialogueWriter, RolePrompts
from executor_sft.miniworld.lessons import student_lessons
from executor_sft.miniworld.world import World
from router.protocol import parse_turn
from router.protocol.tags import unescape
from router.protocol.turns import ReportTurn, SearchTurn, parse_answer

BACKBONE = Path(__file__).parents[2] / "serving" / "models" / "mini-backbone"


@pytest.fixture(scope="module")
def taught(system: RolePrompts) -> list[Dialogue]:
    """500 lessons."""
    writer = DialogueWriter(World(11, "train"), system)
    return list(itertools.islice(student_lessons(writer, system, random.Random(1)), 500))


def searches(dialogue: Dialogue) -> int:
    return sum(turn.kind == "search" for turn in dialogue)


def test_an_executor_searches_once(taught: list[Dialogue], system: RolePrompts) -> None:
    """Then it reports.

    If that search was not enough, it reports that nothing was found, quoting from its result.
    """
    executing = [dialogue for dialogue in taught if dialogue[0].text == system.execution]
    missed = 0
    for _, user_turn, search, result, report in executing:
        assert (user_turn.kind, search.kind, result.kind) == ("user", "search", "user")
        assert isinstance(parse_turn(search.text), SearchTurn)
        turn = parse_turn(report.text)
        assert isinstance(turn, ReportTurn)
        assert all(point in unescape(result.text) for point in turn.report.evidence)
        missed += turn.report.answer == NOT_FOUND
    assert 0.2 < missed / len(executing) < 0.6


def test_a_single_agent_searches_as_often_as_needed(
    taught: list[Dialogue], system: RolePrompts
) -> None:
    """It answers, and does not report."""
    alone = [dialogue for dialogue in taught if dialogue[0].text == system.agent]
    assert sum(searches(dialogue) > 1 for dialogue in alone) > len(alone) / 2
    for dialogue in alone:
        assert dialogue[-1].kind == "answer"
        assert parse_answer(dialogue[-1].text)
        assert "<evidence>" not in dialogue[-1].text


def test_lessons_are_of_two_kinds(taught: list[Dialogue], system: RolePrompts) -> None:
    """Their shares are those of the shipped student."""
    executing = sum(dialogue[0].text == system.execution for dialogue in taught)
    assert {dialogue[0].text for dialogue in taught} == {system.execution, system.agent}
    assert 0.3 < executing / len(taught) < 0.5


@pytest.fixture(scope="module")
def mixed(system: RolePrompts) -> list[Dialogue]:
    """400 lessons, with as many passages as in service."""
    return list(itertools.islice(conversations("generalist", system, 5_000, passages=3), 400))


def test_every_role_is_taught(mixed: list[Dialogue], system: RolePrompts) -> None:
    """Roles are delegator, executor with one search and with two, answerer, and single agent."""
    of = {
        prompt: [dialogue for dialogue in mixed if dialogue[0].text == prompt]
        for prompt in (system.delegation, system.execution, system.answer, system.agent)
    }
    assert min(map(len, of.values())) > 40
    searches = {
        sum(turn.kind == "search" for turn in dialogue) for dialogue in of[system.execution]
    }
    assert searches == {1, 2}


def test_nearly_all_conversations_fit_a_long_row(
    mixed: list[Dialogue], system: RolePrompts
) -> None:
    """A single agent's conversation has the results of all its searches."""
    tokenizer = load_tokenizer(BACKBONE)
    lengths = [len(encode(dialogue, tokenizer)[0]) for dialogue in mixed]
    assert sum(length > 1024 for length in lengths) < 0.02 * len(lengths)
    assert sum(length > 512 for length in lengths) > 0.05 * len(lengths)
    batch = next(batches(iter(mixed), tokenizer, (1024,)))
    assert batch.attention().shape == (4, 1, 1024, 1024)


def test_most_conversations_are_in_short_rows(mixed: list[Dialogue]) -> None:
    """A batch has rows of one length; a long row begins with a conversation that no short row can
    hold.
    """
    tokenizer = load_tokenizer(BACKBONE)
    packed = list(itertools.islice(batches(itertools.cycle(mixed), tokenizer, (512, 1024)), 40))
    shapes = Counter(tuple(batch.tokens.shape) for batch in packed)
    assert set(shapes) == {(BATCH_TOKENS // 512, 512), (BATCH_TOKENS // 1024, 1024)}
    assert shapes[8, 512] > shapes[4, 1024]
    for batch in packed:
        longest = [int(row.max()) + 1 for row in batch.positions]
        assert batch.tokens.shape[1] == 512 or min(longest) > 512
