"""Training data for models that learn several roles: endless mixtures of conversations.

The *student* is the demo's executor before distillation. As an executor, it learns to search once;
as a single agent, it learns to search as often as needed. So, like a pretrained model, the student
can make second searches before the distillation. It only has to learn when a second search is
needed. A student that has never seen a second search would memorize its training examples instead
(docs/LOG.md).

A *generalist*, used in the study of model sizes, learns every role, and also to answer alone as a
single agent. So it can play any role in a comparison.
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
"""How the student works on a sub-query, in these shares of its conversations: as an executor, or as
a single agent. In all other conversations, the student is a single agent that answers a whole
question.
"""
_MIXTURES = {
    "generalist": {"backbone": 0.35, "executor": 0.45},
    "compositional": {"backbone": 0.70, "executor": 0.20},
}
"""For each kind of world: shares of a generalist's conversations in which it works as backbone and
as executor. In all other conversations, the generalist is a single agent that answers a whole
question. They are long, and have 39 % of the tokens.
"""
_PASSED_OVER = 0.6
"""Probability of skipping a single agent's conversation with one search, so that conversations with
two searches become more frequent.
"""
_UP_TO_FIRST_RESULT = 4
"""Number of messages up to the passages of the first search."""


def single_search(dialogue: Dialogue) -> Dialogue:
    """Return an executor's conversation, cut off after its first search. If the answer needs a
    second search, the report becomes "not found". Its evidence is then the sentence that names the
    next search.
    """
    if not _searches_again(dialogue):
        return dialogue
    leading = dialogue[-1].text.split("<evidence>")[1].split("\n")[0]
    report = f"{element('answer', NOT_FOUND)}{element('evidence', leading)}"
    return [*dialogue[:_UP_TO_FIRST_RESULT], DialogueTurn("report", report)]


def single_agent(dialogue: Dialogue, system: RolePrompts) -> Dialogue:
    """Return an executor's conversation as a conversation of a single agent: with the agent's
    system prompt, and with a final answer without evidence.
    """
    answer = dialogue[-1].text.split("<evidence>")[0]
    return [DialogueTurn("system", system.agent), *dialogue[1:-1], DialogueTurn("answer", answer)]


def student_lessons(
    writer: DialogueWriter, system: RolePrompts, rng: random.Random
) -> Iterator[Dialogue]:
    """Yield the student's conversations, endlessly: as an executor and as a single agent."""
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
    """Yield a generalist's conversations, in all roles, endlessly.

    `passages`: passages per search. `mixture`: name of the mixture, in `_MIXTURES`.
    """
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
    """Return True if a conversation has more than one search."""
    return sum(turn.kind == "search" for turn in dialogue) > 1
