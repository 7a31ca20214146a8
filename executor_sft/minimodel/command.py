"""`rolegate sft mini-model`: train the mini models: the backbone; the executor, and the student
that it becomes (`--start`), which is the demo's executor untuned; the teacher, an executor that
searches twice; and the generalists of the study, which speak every role, in three sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from executor_sft.command import POSITIONAL
from executor_sft.minimodel.model import (
    BACKBONE,
    EXECUTOR,
    LADDER,
    load_tokenizer,
    new_model,
    train_tokenizer,
)
from executor_sft.minimodel.stream import ROW_TOKENS, batches, conversations
from executor_sft.miniworld.compositional import Kind
from executor_sft.miniworld.dialogues import Dialogue, RolePrompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SHAPES = {"backbone": BACKBONE, "executor": EXECUTOR, "student": EXECUTOR, "teacher": EXECUTOR}
STEPS = {"backbone": 3200, "executor": 4300, "student": 4100, "teacher": 6300, "generalist": 2500}
FIRST_WORLD = {
    "backbone": 1_000,
    "executor": 2_000,
    "student": 4_000,
    "teacher": 3_000,
    "generalist": 5_000,
}
_LONG_ROWS = (ROW_TOKENS, 1024)
"""The long ones are for single agents, whose conversations hold what all their searches found."""
_TABLE_ROWS = (*_LONG_ROWS, 2048)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command."""

    role: Annotated[
        Literal["backbone", "executor", "student", "teacher", "generalist"],
        POSITIONAL,
        Meta(description="which model to train"),
    ]
    world: Annotated[Kind, Meta(description="whose language a generalist learns")] = "mini"
    size: Annotated[Literal["small", "medium", "large"], Meta(description="of a generalist")] = (
        "large"
    )
    out: Annotated[Path, Meta(description="where the finished model goes")]
    work: Annotated[
        Path, Meta(description="where checkpoints and the loss log go; reuse it to resume")
    ]
    steps: (
        Annotated[
            int,
            Meta(ge=1, description="batches of 4,096 tokens; without it, as of the shipped models"),
        ]
        | None
    ) = None
    threads: Annotated[int, Meta(ge=1, description="CPU threads")] = 2
    rate: Annotated[float, Meta(gt=0, description="peak learning rate")] = 3e-3
    first_weight: Annotated[
        float, Meta(ge=0, description="loss weight of tokens that others write, at first")
    ] = 0.5
    last_weight: Annotated[float, Meta(ge=0, description="the same, at last")] = 0.1
    tables: Annotated[
        bool, Meta(description="teach tables, too: the lead's plan, or lists of names")
    ] = False
    start: (
        Annotated[Path, Meta(description="begin with the weights of a finished model")] | None
    ) = None
    tokenizer: (
        Annotated[Path, Meta(description="that of a finished model; without it, learn one")] | None
    ) = None
    seed: Annotated[int, Meta(description="of the weights and of the training worlds")] = 1


def run(options: Options) -> int:
    """Train one role's model and save it; the exit status."""
    import torch
    from transformers import Qwen3ForCausalLM

    from executor_sft.minimodel.training import Schedule, save, train

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    role = options.role
    system = RolePrompts.served()
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer else mini_tokenizer(system)
    if options.start:
        model = Qwen3ForCausalLM.from_pretrained(options.start, dtype=torch.float32)
    else:
        model = new_model(LADDER[options.size] if role == "generalist" else SHAPES[role], tokenizer)
    lessons = _conversations(options, system, FIRST_WORLD[role] * options.seed)
    rows = _TABLE_ROWS if options.tables else _LONG_ROWS if role == "generalist" else (ROW_TOKENS,)
    source = batches(lessons, tokenizer, rows)
    weights = options.first_weight, options.last_weight
    train(
        model, source, Schedule(options.steps or STEPS[role], options.rate, weights), options.work
    )
    save(model, tokenizer, options.out)
    return 0


def mini_tokenizer(system: RolePrompts) -> PreTrainedTokenizerFast:
    """One tokenizer for all models, from a sample of every kind of conversation."""
    sample = itertools.chain(
        itertools.islice(conversations("backbone", system, 0), 2_400),
        itertools.islice(
            conversations("executor", system, 10, two_searches=True, passages=3), 2_400
        ),
    )
    return train_tokenizer(turn.text for dialogue in sample for turn in dialogue)


def _conversations(options: Options, system: RolePrompts, first_world: int) -> Iterator[Dialogue]:
    """Conversations to learn from. A model that is not begun anew can copy already, so a generalist
    finds three passages from the start.
    """
    if options.role == "teacher":
        return conversations(
            "executor", system, first_world, two_searches=True, passages=3, tables=options.tables
        )
    passages = 3 if options.role == "generalist" and options.start else None
    kind = options.role if options.world == "mini" else options.world
    return conversations(kind, system, first_world, passages=passages, tables=options.tables)
