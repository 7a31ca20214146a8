"""`rolegate sft mini-evaluate`: how well a mini model writes its turns on a held-out world.

A turn is right where every token of it is, given the gold history.
"""

import argparse
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from executor_sft.minimodel.mini_prompts import mini_prompts
from executor_sft.minimodel.tokenizer import load_tokenizer
from executor_sft.miniworld import student
from executor_sft.miniworld.dialogues import Dialogue, DialogueWriter, RolePrompts
from executor_sft.miniworld.world import World


def main(given: Sequence[str] | None = None) -> int:
    """Print the share of right turns by kind; the exit status."""
    parser = argparse.ArgumentParser(prog="rolegate sft mini-evaluate", description=__doc__)
    parser.add_argument("role", choices=["backbone", "executor", "student", "teacher"], help="what the model does")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="a finished model")
    parser.add_argument("--world", type=int, default=99, metavar="SEED", help="the held-out world (default: 99)")
    parser.add_argument("--conversations", type=int, default=300, metavar="N", help="how many (default: 300)")
    arguments = parser.parse_args(given)
    system = mini_prompts()
    writer = DialogueWriter(World(arguments.world, "test"), system)
    source = _gold(arguments.role, writer, system)
    model = Qwen3ForCausalLM.from_pretrained(arguments.model).float().eval()
    dialogues = itertools.islice(source, arguments.conversations)
    table = Table("turn", "right", "of")
    for name, (right, turns) in turn_accuracy(model, load_tokenizer(arguments.model), dialogues).items():
        table.add_row(name, f"{right / turns:.3f}", str(turns))
    Console().print(table)
    return 0


def _gold(role: str, writer: DialogueWriter, system: RolePrompts) -> Iterator[Dialogue]:
    match role:
        case "backbone":
            return writer.backbone()
        case "student":
            return student.lessons(writer, system, random.Random(1))
    return writer.executor(two_searches=role == "teacher")


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
    pieces = [
        tokenizer(f"<|{turn.role}|>{turn.text}{tokenizer.eos_token}", add_special_tokens=False).input_ids
        for turn in dialogue
    ]
    ids = torch.tensor([list(itertools.chain.from_iterable(pieces))])
    written = model(input_ids=ids).logits[0].argmax(-1)
    places: Counter[str] = Counter()
    results: list[tuple[str, bool]] = []
    start = 0
    for turn, piece in zip(dialogue, pieces, strict=True):
        end = start + len(piece)
        if turn.role == "assistant":
            places[turn.kind] += 1
            name = f"{turn.kind} {places[turn.kind]}"
            results.append((name, bool((written[start : end - 1] == ids[0, start + 1 : end]).all())))
        start = end
    return results
