"""`rolegate sft mini-model`: train the mini models: the backbone; the executor, and the student that it becomes
(`--start`), which is the demo's executor untuned; the teacher, an executor that searches twice; and the generalists of
the study, which speak every role, in three sizes.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from executor_sft.minimodel.architecture import BACKBONE, EXECUTOR, LADDER, Shape, new_model
from executor_sft.minimodel.mini_prompts import mini_prompts
from executor_sft.minimodel.stream import ROW_TOKENS, batches, conversations
from executor_sft.minimodel.tokenizer import load_tokenizer, train_tokenizer
from executor_sft.minimodel.training import Schedule, save, train
from executor_sft.miniworld.dialogues import Dialogue, RolePrompts

SHAPES = {"backbone": BACKBONE, "executor": EXECUTOR, "student": EXECUTOR, "teacher": EXECUTOR}
STEPS = {"backbone": 3200, "executor": 4300, "student": 4100, "teacher": 6300, "generalist": 2500}
FIRST_WORLD = {"backbone": 1_000, "executor": 2_000, "student": 4_000, "teacher": 3_000, "generalist": 5_000}
_GENERALIST_ROWS = (ROW_TOKENS, 1024)
"""The long ones are for single agents, whose conversations hold what all their searches found."""


def mini_tokenizer(system: RolePrompts) -> PreTrainedTokenizerFast:
    """One tokenizer for both models, from a sample of every kind of conversation."""
    sample = itertools.chain(
        itertools.islice(conversations("backbone", system, 0), 2_400),
        itertools.islice(conversations("executor", system, 10, two_searches=True, passages=3), 2_400),
    )
    return train_tokenizer(turn.text for dialogue in sample for turn in dialogue)


def main(given: Sequence[str] | None = None) -> int:
    """Train one role's model and save it; the exit status."""
    parser = argparse.ArgumentParser(prog="rolegate sft mini-model", description=__doc__)
    parser.add_argument("role", choices=list(STEPS), help="which model to train")
    parser.add_argument("--size", choices=list(LADDER), default="large", help="of a generalist (default: large)")
    parser.add_argument("--out", type=Path, required=True, help="where the finished model goes")
    parser.add_argument(
        "--work", type=Path, required=True, help="where checkpoints and the loss log go; reuse it to resume"
    )
    parser.add_argument(
        "--steps", type=int, help="batches of 4,096 tokens (default: what the shipped models took from scratch)"
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate (default: 3e-3)")
    parser.add_argument(
        "--context-weight",
        type=float,
        nargs=2,
        default=(0.5, 0.1),
        metavar=("FIRST", "LAST"),
        help="loss weight of tokens that the model does not write (default: 0.5 0.1)",
    )
    parser.add_argument("--start", type=Path, metavar="DIR", help="begin with the weights of a finished model")
    parser.add_argument("--tokenizer", type=Path, metavar="DIR", help="that of a finished model (default: learn one)")
    parser.add_argument("--seed", type=int, default=1, help="of the weights and of the training worlds (default: 1)")
    arguments = parser.parse_args(given)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    system = mini_prompts()
    tokenizer = load_tokenizer(arguments.tokenizer) if arguments.tokenizer else mini_tokenizer(system)
    model = (
        Qwen3ForCausalLM.from_pretrained(arguments.start, dtype=torch.float32)
        if arguments.start
        else new_model(_shape(arguments.role, arguments.size), tokenizer)
    )
    first_world = FIRST_WORLD[arguments.role] * arguments.seed
    lessons = _conversations(arguments.role, system, first_world, copies=arguments.start is not None)
    source = batches(lessons, tokenizer, _GENERALIST_ROWS if arguments.role == "generalist" else (ROW_TOKENS,))
    schedule = Schedule(arguments.steps or STEPS[arguments.role], arguments.rate, tuple(arguments.context_weight))
    train(model, source, schedule, arguments.work)
    save(model, tokenizer, arguments.out)
    return 0


def _shape(role: str, size: str) -> Shape:
    return LADDER[size] if role == "generalist" else SHAPES[role]


def _conversations(role: str, system: RolePrompts, first_world: int, *, copies: bool) -> Iterator[Dialogue]:
    """What a model learns from. `copies`: it can copy already, so a generalist finds three passages from the start."""
    match role:
        case "teacher":
            return conversations("executor", system, first_world, two_searches=True, passages=3)
        case "generalist" if copies:
            return conversations("generalist", system, first_world, passages=3)
        case "backbone" | "executor" | "student" | "generalist":
            return conversations(role, system, first_world)
    raise AssertionError(role)


if __name__ == "__main__":
    sys.exit(main())
