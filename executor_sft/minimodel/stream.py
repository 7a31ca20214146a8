"""An endless stream of packed training batches. Worlds change all the time, and every conversation
is used once.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from executor_sft.miniworld.compositional import CompositionalWorld
from executor_sft.miniworld.dialogues import Dialogue, DialogueWriter, RolePrompts
from executor_sft.miniworld.lessons import generalist_lessons, student_lessons
from executor_sft.miniworld.wide_lessons import TableLessons
from executor_sft.miniworld.world import World

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

Role = Literal["backbone", "executor", "student", "generalist", "compositional"]
"""Role that is learnt; `compositional`: a generalist in compositional worlds."""
CONVERSATIONS_PER_WORLD = 800
WORLDS_PER_STAGE = 25
GENERALIST_WORLDS_PER_STAGE = 10
"""Fewer than for others, as their training is shorter."""
ROW_TOKENS = 512
BATCH_TOKENS = 4096
_WAITING = 64
Encoded = tuple[list[int], list[bool]]
"""Token ids of a conversation, and whether the model writes each of them."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of equal length. A row has several conversations, which do not attend to each other."""

    tokens: torch.Tensor
    """(rows, row_tokens) int64"""
    written: torch.Tensor
    """(rows, row_tokens) bool: whether the model writes the token"""
    positions: torch.Tensor
    """(rows, row_tokens) int64: position in the conversation, from 0"""
    conversation: torch.Tensor
    """(rows, row_tokens) int64: number of the conversation in its row, 0 for padding"""

    def attention(self) -> torch.Tensor:
        """Return (rows, 1, row_tokens, row_tokens) bool: causal within each conversation."""
        import torch

        same = self.conversation[:, :, None] == self.conversation[:, None, :]
        length = self.tokens.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        return (same & causal)[:, None]


def encode(dialogue: Dialogue, tokenizer: PreTrainedTokenizerFast) -> Encoded:
    """Return the token ids as the serving engine sees them, and whether the model writes each (its
    turns with their end).
    """
    ids: list[int] = []
    written: list[bool] = []
    for turn in dialogue:
        text = f"<|{turn.role}|>{turn.text}{tokenizer.eos_token}"
        piece: list[int] = tokenizer(text, add_special_tokens=False).input_ids
        ids += piece
        written += [False] + [turn.role == "assistant"] * (len(piece) - 1)
    return ids, written


def conversations(
    role: Role,
    system: RolePrompts,
    first_world: int,
    *,
    two_searches: bool = False,
    passages: int | None = None,
    tables: bool = False,
) -> Iterator[Dialogue]:
    """Yield conversations of the training worlds `first_world`, `first_world + 1`, …

    `passages`: passages per search. By default, executors and generalists begin with one and
    advance to two, then three, as copying is learnt faster in a short context; students can copy
    already. `tables`: a third of the tokens come from lessons in tables of the demo's world.
    """
    stage = GENERALIST_WORLDS_PER_STAGE if role == "generalist" else WORLDS_PER_STAGE
    world_type: type[World | CompositionalWorld] = (
        CompositionalWorld if role == "compositional" else World
    )
    for number in itertools.count(first_world):
        writer = DialogueWriter(world_type(number, "train"), system)
        shown = passages or min(3, 1 + (number - first_world) // stage)
        match role:
            case "backbone":
                source = writer.backbone()
            case "student":
                source = student_lessons(writer, system, random.Random(f"{number}/student"))
            case "executor":
                source = writer.executor(two_searches, shown)
            case "generalist" | "compositional":
                rng = random.Random(f"{number}/generalist")
                source = generalist_lessons(writer, rng, shown, role)
        if tables:
            lessons = TableLessons(number, system)
            if role == "backbone":
                source = lessons.among(source, lessons.lead(), 0.1)
            else:
                twice = two_searches or role == "generalist"
                lists = lessons.executor(twice, 3 if role == "student" else shown)
                source = lessons.among(source, lists, 0.35)
        yield from itertools.islice(source, CONVERSATIONS_PER_WORLD)


def batches(
    source: Iterator[Dialogue],
    tokenizer: PreTrainedTokenizerFast,
    row_tokens: Sequence[int] = (ROW_TOKENS,),
) -> Iterator[Batch]:
    """Pack conversations into batches of full rows, `BATCH_TOKENS` each.

    Attention costs the square of a row's length, so most rows should be short. Conversations wait,
    sorted by length. A row begins with the median one, gets the shortest length in `row_tokens`
    (ascending) that fits it, and is filled with the longest ones that still fit. Long conversations
    collect until they are the median, so all are used; those longer than every row are left out.
    """
    waiting: list[Encoded] = []
    rows: dict[int, list[list[Encoded]]] = {length: [] for length in row_tokens}
    while True:
        while len(waiting) < _WAITING:
            encoded = encode(next(source), tokenizer)
            if len(encoded[0]) <= row_tokens[-1]:
                bisect.insort(waiting, encoded, key=lambda member: len(member[0]))
        first = waiting.pop(len(waiting) // 2)
        length = row_tokens[bisect.bisect_left(row_tokens, len(first[0]))]
        rows[length].append(_fill(first, waiting, length))
        if len(rows[length]) == BATCH_TOKENS // length:
            yield _pack(rows[length], length)
            rows[length] = []


def _fill(first: Encoded, waiting: list[Encoded], row_tokens: int) -> list[Encoded]:
    """Return a row that begins with `first`; take the others out of `waiting`, sorted by length."""
    row = [first]
    room = row_tokens - len(first[0])
    while at := bisect.bisect_right(waiting, room, key=lambda member: len(member[0])):
        row.append(waiting.pop(at - 1))
        room -= len(row[-1][0])
    return row


def _pack(rows: list[list[Encoded]], row_tokens: int) -> Batch:
    import torch

    packed = []
    for members in rows:
        row: list[tuple[int, bool, int, int]] = []
        for number, (ids, marks) in enumerate(members, 1):
            numbers = itertools.repeat(number)
            row += zip(
                ids,
                marks,
                range(len(ids)),
                numbers,
                strict=False,
            )
        packed.append(row + [(0, False, 0, 0)] * (row_tokens - len(row)))
    tokens, written, positions, conversation = torch.tensor(packed).unbind(2)
    return Batch(tokens, written.bool(), positions, conversation)
