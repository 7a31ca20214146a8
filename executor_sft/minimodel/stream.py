"""An endless stream of training batches, packed with conversations about new generated worlds. Each
conversation is used once.
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
from executor_sft.miniworld.talks import Talks, talk_lessons
from executor_sft.miniworld.wide_lessons import TableLessons
from executor_sft.miniworld.world import World

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

Role = Literal["backbone", "executor", "student", "generalist", "compositional"]
"""Role that a model learns. `compositional` is a generalist that is trained on compositional
worlds.
"""
CONVERSATIONS_PER_WORLD = 800
WORLDS_PER_STAGE = 25
"""Number of worlds in a stage of the training. In each stage, searches return one more passage than
before, up to three.
"""
GENERALIST_WORLDS_PER_STAGE = 10
"""`WORLDS_PER_STAGE` for generalists, whose training is shorter."""
ROW_TOKENS = 512
BATCH_TOKENS = 4096
_TALK_SHARE = 0.5
"""In the backbone's training with `talks`: share of conversations that are about follow-up
questions. These conversations are short.
"""
_WAITING = 64
"""Number of waiting conversations, from which rows are packed."""
Encoded = tuple[list[int], list[bool]]
"""A conversation: (token ids, for each token True if the model writes it)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of equal length, for one training step. A row contains several conversations, which do
    not attend to each other.
    """

    tokens: torch.Tensor
    """(rows, row_tokens) int64: token ids"""
    written: torch.Tensor
    """(rows, row_tokens) bool: True if the model writes the token"""
    positions: torch.Tensor
    """(rows, row_tokens) int64: position of the token in its conversation, from 0"""
    conversation: torch.Tensor
    """(rows, row_tokens) int64: number of the token's conversation in its row, from 1. Padding
    has 0.
    """

    def attention(self) -> torch.Tensor:
        """Return the attention mask, (rows, 1, row_tokens, row_tokens) bool. It is causal, and only
        within each conversation.
        """
        import torch

        same = self.conversation[:, :, None] == self.conversation[:, None, :]
        length = self.tokens.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        return (same & causal)[:, None]


def encode(dialogue: Dialogue, tokenizer: PreTrainedTokenizerFast) -> Encoded:
    """Return the token ids of a conversation, as the serving engine sees them, and for each token
    True if the model writes it. The model writes the assistant's turns and their end-of-turn
    tokens.
    """
    ids = list[int]()
    written = list[bool]()
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
    talks: bool = False,
) -> Iterator[Dialogue]:
    """Yield gold (entirely right) conversations about training worlds, endlessly. The first world
    has the number `first_world`, and each next world has the next number.

    `role`: role whose conversations to yield. `system`: system prompts. `two_searches`: let
    executors search a second time if needed. `passages`: passages per search. If None, searches
    return one passage in the first worlds, then two, then three, because a model learns copying
    faster in a short context. `tables`: add conversations about tables, about a third of all
    tokens. `talks`: for the backbone, add conversations about follow-up questions.
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
                if talks:
                    world = World(number, "train")
                    source = _among(source, talk_lessons(writer, Talks(world), system), number)
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


def _among(
    lessons: Iterator[Dialogue], talks: Iterator[Dialogue], world: int
) -> Iterator[Dialogue]:
    rng = random.Random(f"{world}/among")
    while True:
        yield next(talks if rng.random() < _TALK_SHARE else lessons)


def batches(
    source: Iterator[Dialogue],
    tokenizer: PreTrainedTokenizerFast,
    row_tokens: Sequence[int] = (ROW_TOKENS,),
) -> Iterator[Batch]:
    """Pack conversations into batches of nearly full rows. Each batch has `BATCH_TOKENS` tokens, in
    rows of one length. `row_tokens`: the possible lengths, ascending.

    The cost of attention grows with the square of a row's length, so most rows should be short.
    `_WAITING` conversations always wait, sorted by length. A new row begins with the waiting
    conversation of median length. The row gets the shortest possible length, and is then filled
    with the longest waiting conversations that still fit. Long conversations accumulate until one
    of them is the median. So every conversation is used, unless it is longer than the longest row.
    """
    waiting = list[Encoded]()
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
    """Return a row of at most `row_tokens` tokens: `first`, and conversations from `waiting` that
    still fit. The latter are removed from `waiting`, a list that is sorted by length.
    """
    row = [first]
    room = row_tokens - len(first[0])
    while at := bisect.bisect_right(waiting, room, key=lambda member: len(member[0])):
        row.append(waiting.pop(at - 1))
        room -= len(row[-1][0])
    return row


def _pack(rows: list[list[Encoded]], row_tokens: int) -> Batch:
    """Return the batch of these rows, each padded to `row_tokens` tokens."""
    import torch

    packed = []
    for members in rows:
        row = list[tuple[int, bool, int, int]]()
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
