"""`rolegate sft mini-model`: train one of the mini models from scratch, on generated worlds.

backbone    delegates and answers
executor    searches once and reports
student     the demo's executor before distillation; trained from a finished executor (--start)
teacher     an executor that searches a second time if needed
generalist  plays every role; has one of three sizes, for the study of model sizes
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
"""Size of each model. The size of a generalist is an option."""
STEPS = {"backbone": 3200, "executor": 4300, "student": 4100, "teacher": 6300, "generalist": 2500}
"""Training steps of each model, by default."""
FIRST_WORLD = {
    "backbone": 1_000,
    "executor": 2_000,
    "student": 4_000,
    "teacher": 3_000,
    "generalist": 5_000,
}
"""Number of each model's first training world if the seed is 1. The next worlds have the next
higher numbers.
"""
_LONG_ROWS = (ROW_TOKENS, 1024)
"""Lengths of training rows, in tokens, for models that learn to work as a single agent. A single
agent's conversations are long, because they contain the passages of all searches.
"""
_TABLE_ROWS = (*_LONG_ROWS, 2048)
"""Lengths of training rows, in tokens, for models that learn tables."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `rolegate sft mini-model`."""

    role: Annotated[Literal["backbone", "executor", "student", "teacher", "generalist"], POSITIONAL]
    """model to train"""
    world: Kind = "mini"
    """for a generalist: kind of the generated worlds to train on: mini, or compositional (with
    questions that nest more deeply)
    """
    size: Literal["small", "medium", "large"] = "large"
    """for a generalist: size of the model"""
    out: Path
    """folder to write the finished model to"""
    work: Path
    """folder for checkpoints and the log of losses; with the same folder, an interrupted training
    resumes
    """
    steps: Count | None = None
    """number of training steps of 4,096 tokens (default: as many as for the shipped models)"""
    threads: Count = 2
    """number of CPU threads"""
    rate: Annotated[float, Meta(gt=0)] = 3e-3
    """peak learning rate"""
    first_weight: Annotated[float, Meta(ge=0)] = 0.5
    """loss weight, at the first step, of tokens that the model does not write itself, such as
    passages; the weight changes linearly to --last-weight
    """
    last_weight: Annotated[float, Meta(ge=0)] = 0.1
    """loss weight, at the last step, of tokens that the model does not write itself"""
    tables: bool = False
    """also train on tables: the backbone learns to plan a table, executors to report lists of names
    """
    talks: bool = False
    """also train on follow-up questions: the backbone learns to rewrite each as a question that can
    be understood alone
    """
    start: Path | None = None
    """start the training from the weights of the finished model in this folder (default: random
    weights)
    """
    tokenizer: Path | None = None
    """use the tokenizer of the finished model in this folder (default: train a tokenizer)"""
    seed: int = 1
    """seed of the initial weights and of the training worlds"""


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
    """Train a tokenizer on sample conversations of backbone and executor, and return it. All mini
    models use the same tokenizer.
    """
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
    """Return the endless conversations that the model of `options` learns from.

    The searches of most models first return one passage, later three. A generalist with start
    weights can already copy names, so its searches return three passages from the beginning.
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
        talks=options.talks,
    )
