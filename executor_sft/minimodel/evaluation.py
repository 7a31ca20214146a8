"""`rolegate sft mini-evaluate`: how well a mini model writes its turns on a held-out world.

A turn is right where every token of it is, given the gold history.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import torch
from msgspec import Meta
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from executor_sft.command import POSITIONAL, show
from executor_sft.minimodel.model import load_tokenizer
from executor_sft.minimodel.stream import encode
from executor_sft.miniworld.dialogues import Dialogue, DialogueWriter, RolePrompts
from executor_sft.miniworld.lessons import student_lessons
from executor_sft.miniworld.world import World


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command."""

    role: Annotated[
        Literal["backbone", "executor", "student", "teacher"], POSITIONAL, Meta(description="the model's role")
    ]
    model: Annotated[Path, Meta(description="the folder of a finished model")]
    world: Annotated[int, Meta(description="seed of the held-out world")] = 99
    conversations: Annotated[int, Meta(ge=1, description="how many")] = 300


def run(options: Options) -> int:
    """Print the share of right turns by kind; the exit status."""
    system = RolePrompts.served()
    writer = DialogueWriter(World(options.world, "test"), system)
    match options.role:
        case "backbone":
            source = writer.backbone()
        case "student":
            source = student_lessons(writer, system, random.Random(1))
        case _:
            source = writer.executor(two_searches=options.role == "teacher")
    model = Qwen3ForCausalLM.from_pretrained(options.model).float().eval()
    dialogues = itertools.islice(source, options.conversations)
    accuracy = turn_accuracy(model, load_tokenizer(options.model), dialogues)
    show({"turn": {name: {"right": right / turns, "of": turns} for name, (right, turns) in accuracy.items()}})
    return 0


def turn_accuracy(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, dialogues: Iterable[Dialogue]
) -> dict[str, tuple[int, int]]:
    """Right turns and all turns by kind; turns of one kind are told apart by their place, as in `search 1`."""
    right: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for dialogue in dialogues:
        for name, is_right in _turns(model, tokenizer, dialogue):
            seen[name] += 1
            right[name] += is_right
    return {name: (right[name], seen[name]) for name in sorted(seen)}


@torch.inference_mode()
def _turns(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, dialogue: Dialogue) -> list[tuple[str, bool]]:
    """The model's own turns by name, each with True where every token of it is right."""
    ids = torch.tensor([encode(dialogue, tokenizer)[0]])
    written = model(input_ids=ids).logits[0].argmax(-1)
    places: Counter[str] = Counter()
    results: list[tuple[str, bool]] = []
    start = 0
    for turn in dialogue:
        end = start + len(encode([turn], tokenizer)[0])
        if turn.role == "assistant":
            places[turn.kind] += 1
            right = written[start : end - 1] == ids[0, start + 1 : end]
            results.append((f"{turn.kind} {places[turn.kind]}", bool(right.all())))
        start = end
    return results
