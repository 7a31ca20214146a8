"""`rolegate sft mini-model`: train the mini models.

These are the backbone; the executor, and the student that it becomes (`--start`), which is the
demo's untuned executor; the teacher, an executor that searches twice; and the study's generalists
of three sizes, which play every role.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from executor_sft.command import Count
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
from serving.cli.command import POSITIONAL

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
"""Row lengths. The long ones are for single agents, whose conversations hold the passages of all
their searches.
"""
_TABLE_ROWS = (*_LONG_ROWS, 2048)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command."""

    role: Annotated[Literal["backbone", "executor", "student", "teacher", "generalist"], POSITIONAL]
    """model to train"""
    world: Kind = "mini"
    """world whose language a generalist learns"""
    size: Literal["small", "medium", "large"] = "large"
    """size of a generalist"""
    out: Path
    """folder of the finished model"""
    work: Path
    """folder of checkpoints and loss log; reuse it to resume"""
    steps: Count | None = None
    """batches of 4,096 tokens (default: those of the shipped models)"""
    threads: Count = 2
    """CPU threads"""
    rate: Annotated[float, Meta(gt=0)] = 3e-3
    """peak learning rate"""
    first_weight: Annotated[float, Meta(ge=0)] = 0.5
    """loss weight of tokens that others write, at the first step"""
    last_weight: Annotated[float, Meta(ge=0)] = 0.1
    """loss weight of tokens that others write, at the last step"""
    tables: bool = False
    """teach tables, too: plans to the backbone, lists of names to executors"""
    start: Path | None = None
    """finished model whose weights to start with"""
    tokenizer: Path | None = None
    """finished model whose tokenizer to use (default: learn one)"""
    seed: int = 1
    """seed of the weights and of the training worlds"""


def run(options: Options) -> int:
    """Train one model, save it and return the exit status."""
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
    rows: tuple[int, ...] = (ROW_TOKENS,)
    if options.tables:
        rows = _TABLE_ROWS
    elif role == "generalist":
        rows = _LONG_ROWS
    source = batches(lessons, tokenizer, rows)
    weights = options.first_weight, options.last_weight
    schedule = Schedule(options.steps or STEPS[role], options.rate, weights)
    train(model, source, schedule, options.work)
    save(model, tokenizer, options.out)
    return 0


def mini_tokenizer(system: RolePrompts) -> PreTrainedTokenizerFast:
    """Train the tokenizer of all models on a sample of every kind of conversation."""
    backbone = conversations("backbone", system, 0)
    executor = conversations(
        "executor",
        system,
        10,
        two_searches=True,
        passages=3,
    )
    sample = itertools.chain(itertools.islice(backbone, 2_400), itertools.islice(executor, 2_400))
    turns = itertools.chain.from_iterable(sample)
    return train_tokenizer(turn.text for turn in turns)


def _conversations(options: Options, system: RolePrompts, first_world: int) -> Iterator[Dialogue]:
    """Return the conversations to learn from. A model with start weights can copy already, so a
    generalist then finds three passages from the beginning.
    """
    if options.role == "teacher":
        return conversations(
            "executor",
            system,
            first_world,
            two_searches=True,
            passages=3,
            tables=options.tables,
        )
    passages = 3 if options.role == "generalist" and options.start else None
    kind = options.role if options.world == "mini" else options.world
    return conversations(
        kind,
        system,
        first_world,
        passages=passages,
        tables=options.tables,
    )
