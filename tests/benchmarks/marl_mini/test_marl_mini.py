"""The miniature of multi-agent reinforcement learning: its worlds, and that reward rises."""

from pathlib import Path
from random import Random

import pytest

from benchmarks.marl_mini import command
from benchmarks.marl_mini.world import MAX_TOKENS, PROMPT_TOKENS, STOP, Run, World, careless
from router.errors import BadRequest


def test_prompts_have_one_length_and_turns_end() -> None:
    lessons = careless(Random(1))
    turns = [next(lessons) for _ in range(200)]
    assert {len(turn.prompt) for turn in turns} == {PROMPT_TOKENS}
    assert {turn.tokens[-1] for turn in turns} == {STOP}
    assert max(len(turn.tokens) for turn in turns) <= MAX_TOKENS


def test_a_lead_is_not_shown_the_topics_of_pages_with_readers() -> None:
    world = World.made(Random(2))
    assert world.lead_prompt([]) != world.lead_prompt([0])
    assert world.lead_prompt([0])[4:] == world.lead_prompt([])[4:]


def test_f1_counts_the_reported_items_of_the_topic_once() -> None:
    world = World.made(Random(3))
    assert world.gold
    assert Run(world, [], []).f1 == 0


def test_reward_rises_and_the_curves_are_drawn(tmp_path: Path) -> None:
    """In ten steps, F1 rises by half at least."""
    picture = tmp_path / "curves.png"
    options = command.Options(seeds=1, steps=10, only=("Eq. 1",), picture=picture)
    figures = command.measure(options)
    assert figures.runs == 640
    assert 50_000 < figures.parameters < 70_000
    assert figures.scores["Eq. 1"].f1 > 1.5 * figures.scores["start"].f1
    assert picture.stat().st_size > 10_000


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"unknown variant; the variants are: Eq\. 1"):
        command.measure(command.Options(only=("Eq. 9",)))
