"""A held-out world with its pages and first questions, and the system prompts of the mini
models.
"""

import pytest

from executor_sft.miniworld.dialogues import RolePrompts
from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.questions import Examiner, MiniQuestion
from executor_sft.miniworld.world import World


@pytest.fixture(scope="session")
def world() -> World:
    return World(11, "test")


@pytest.fixture(scope="session")
def library(world: World) -> Library:
    return Library(world)


@pytest.fixture(scope="session")
def questions(world: World, library: Library) -> list[MiniQuestion]:
    """The first 1,000 questions of the world."""
    examiner = Examiner(world, library)
    return [examiner.draw() for _ in range(1000)]


@pytest.fixture(scope="session")
def system() -> RolePrompts:
    return RolePrompts.served()
