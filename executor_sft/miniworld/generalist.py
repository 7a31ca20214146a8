"""What a rung of the study's ladder learns: every role, and to answer alone, so that one model can be put anywhere."""

import random
from collections.abc import Iterator

from executor_sft.miniworld.dialogues import Dialogue, DialogueWriter

_BACKBONE, _EXECUTING = 0.35, 0.45
"""Of conversations; a single agent's are long: 39 % of the tokens."""


def lessons(writer: DialogueWriter, rng: random.Random, passages: int) -> Iterator[Dialogue]:
    """Conversations of all roles, mixed, endlessly; the rest of the shares are whole questions to a single agent. Each
    search finds so many `passages`.
    """
    backbone, executing = writer.backbone(), writer.executor(two_searches=True, passages=passages)
    while True:
        draw = rng.random()
        if draw < _BACKBONE:
            yield next(backbone)
        elif draw < _BACKBONE + _EXECUTING:
            yield next(executing)
        else:
            yield writer.alone(passages)
