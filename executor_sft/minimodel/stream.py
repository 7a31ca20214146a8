"""An endless stream of packed training batches: fresh worlds all the time, every conversation
used once.
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
"""What is learnt; `compositional`: a generalist's lessons in such worlds."""
CONVERSATIONS_PER_WORLD = 800
WORLDS_PER_STAGE = 25
GENERALIST_WORLDS_PER_STAGE = 10
"""Fewer, as their training is shorter."""
ROW_TOKENS = 512
BATCH_TOKENS = 4096
_WAITING = 64
Encoded = tuple[list[int], list[bool]]
"""Token ids of a conversation, and which of them the model writes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of equal length; several conversations stand in a row and do not see each other."""

    tokens: torch.Tensor
    """(rows, row_tokens) int64"""
    written: torch.Tensor
    """(rows, row_tokens) bool: whether the model itself writes this token"""
    positions: torch.Tensor
    """(rows, row_tokens) int64, from 0 in each conversation"""
    conversation: torch.Tensor
    """(rows, row_tokens) int64: the number of the conversation, 0 for padding"""

    def attention(self) -> torch.Tensor:
        """(rows, 1, row_tokens, row_tokens) bool: causal, within one conversation."""
        import torch

        same = self.conversation[:, :, None] == self.conversation[:, None, :]
        length = self.tokens.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        return (same & causal)[:, None]


def encode(dialogue: Dialogue, tokenizer: PreTrainedTokenizerFast) -> Encoded:
    """Token ids as the serving engine sees them, and which of them the model writes (its turns
    with their end).
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
    """Conversations of training worlds `first_world`, `first_world + 1`, … Unless told how many
    `passages` a search finds, executors and generalists begin with one and go on to two, then
    three: in a short context copying is learnt sooner. Students can copy already. `tables`: a third
    of the tokens are of lessons in tables, of the demo's world.
    """
    stage = GENERALIST_WORLDS_PER_STAGE if role == "generalist" else WORLDS_PER_STAGE
    for number in itertools.count():
        world = (CompositionalWorld if role == "compositional" else World)(
            first_world + number, "train"
        )
        writer = DialogueWriter(world, system)
        shown = passages or min(3, 1 + number // stage)
        match role:
            case "backbone":
                source = writer.backbone()
            case "student":
                source = student_lessons(
                    writer, system, random.Random(f"{first_world + number}/student")
                )
            case "executor":
                source = writer.executor(two_searches, shown)
            case "generalist" | "compositional":
                source = generalist_lessons(
                    writer, random.Random(f"{first_world + number}/generalist"), shown, role
                )
        if tables:
            taught = TableLessons(first_world + number, system)
            lists = taught.executor(
                two_searches or role == "generalist", 3 if role == "student" else shown
            )
            source = (
                taught.among(source, taught.lead(), 0.1)
                if role == "backbone"
                else taught.among(source, lists, 0.35)
            )
        yield from itertools.islice(source, CONVERSATIONS_PER_WORLD)


def batches(
    source: Iterator[Dialogue],
    tokenizer: PreTrainedTokenizerFast,
    row_tokens: Sequence[int] = (ROW_TOKENS,),
) -> Iterator[Batch]:
    """Pack `source` into full rows, `BATCH_TOKENS` in all. A row begins with the middle one of the
    waiting conversations by length, has the first of the lengths `row_tokens` (ascending) that
    holds it, and takes the longest that still fits, until none does: attention costs the square of
    a row, so most should be short. Conversations longer than all rows are left out.
    """
    waiting: list[Encoded] = []
    rows: dict[int, list[list[Encoded]]] = {length: [] for length in row_tokens}
    while True:
        while len(waiting) < _WAITING:
            encoded = encode(next(source), tokenizer)
            if len(encoded[0]) <= row_tokens[-1]:
                bisect.insort(waiting, encoded, key=lambda member: len(member[0]))
        # Long ones gather until they are in the middle, so all get used
        first = waiting.pop(len(waiting) // 2)
        length = row_tokens[bisect.bisect_left(row_tokens, len(first[0]))]
        rows[length].append(_fill(first, waiting, length))
        if len(rows[length]) == BATCH_TOKENS // length:
            yield _pack(rows[length], length)
            rows[length] = []


def _fill(first: Encoded, waiting: list[Encoded], row_tokens: int) -> list[Encoded]:
    """A row that begins with `first`; the others are taken out of `waiting`, sorted by length."""
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
        row = [
            (token, mark, position, number)
            for number, (ids, marks) in enumerate(members, 1)
            for position, (token, mark) in enumerate(zip(ids, marks, strict=True))
        ]
        packed.append(row + [(0, False, 0, 0)] * (row_tokens - len(row)))
    tokens, written, positions, conversation = torch.tensor(packed).unbind(2)
    return Batch(tokens, written.bool(), positions, conversation)
