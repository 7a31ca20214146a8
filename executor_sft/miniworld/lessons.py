"""Lessons of the models that learn several roles: endless mixtures of conversations.

The student, which is the untuned mini executor, learns to search once as an executor, and as often
as needed as a single agent. A student that never saw a second search memorizes its examples; this
one only has to learn a habit, as a pretrained model does (docs/LOG.md). A generalist, one of the
study's ladder, learns every role, and to answer alone, so that one model can play any role.
"""

import random
from collections.abc import Iterator

from executor_sft.miniworld.dialogues import (
    NOT_FOUND,
    Dialogue,
    DialogueTurn,
    DialogueWriter,
    RolePrompts,
)
from router.protocol.tags import element

_STUDENT = {"executor": 0.40, "agent": 0.45}
"""Shares of conversations; in the rest, a single agent answers a whole question."""
_MIXTURES = {
    "generalist": {"backbone": 0.35, "executor": 0.45},
    "compositional": {"backbone": 0.70, "executor": 0.20},
}
"""Shares of conversations; in the rest, a single agent answers. Those are long: 39 % of a
generalist's tokens.
"""
_PASSED_OVER = 0.6
_UP_TO_FIRST_RESULT = 4


def single_search(dialogue: Dialogue) -> Dialogue:
    """Return an executor's conversation with its first search only. If that does not suffice, the
    report says "not found" and quotes the sentence that leads on.
    """
    if not _searches_again(dialogue):
        return dialogue
    leading = dialogue[-1].text.split("<evidence>")[1].split("\n")[0]
    report = f"{element('answer', NOT_FOUND)}{element('evidence', leading)}"
    return [*dialogue[:_UP_TO_FIRST_RESULT], DialogueTurn("report", report)]


def single_agent(dialogue: Dialogue, system: RolePrompts) -> Dialogue:
    """Return an executor's conversation as a single agent's: answered, without evidence."""
    answer = dialogue[-1].text.split("<evidence>")[0]
    return [DialogueTurn("system", system.agent), *dialogue[1:-1], DialogueTurn("answer", answer)]


def student_lessons(
    writer: DialogueWriter, system: RolePrompts, rng: random.Random
) -> Iterator[Dialogue]:
    """Yield conversations of an executor and of a single agent, endlessly."""
    executing = writer.executor(two_searches=True)
    while True:
        draw = rng.random()
        if draw < _STUDENT["executor"]:
            yield single_search(next(executing))
        elif draw < _STUDENT["executor"] + _STUDENT["agent"]:
            dialogue = next(executing)
            if not _searches_again(dialogue) and rng.random() < _PASSED_OVER:
                dialogue = next(executing)
            yield single_agent(dialogue, system)
        else:
            yield writer.alone(passages=rng.choice((1, 1, 2)))


def generalist_lessons(
    writer: DialogueWriter,
    rng: random.Random,
    passages: int,
    mixture: str,
) -> Iterator[Dialogue]:
    """Yield conversations of all roles, endlessly. `passages`: passages per search."""
    backbone = writer.backbone()
    executing = writer.executor(two_searches=True, passages=passages)
    shares = _MIXTURES[mixture]
    while True:
        draw = rng.random()
        if draw < shares["backbone"]:
            yield next(backbone)
        elif draw < sum(shares.values()):
            yield next(executing)
        else:
            yield writer.alone(passages)


def _searches_again(dialogue: Dialogue) -> bool:
    return sum(turn.kind == "search" for turn in dialogue) > 1
