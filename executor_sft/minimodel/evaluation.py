"""How well a mini model writes its turns: right in every token, given the gold history."""

import itertools
from collections import Counter
from collections.abc import Iterable

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from executor_sft.miniworld.dialogues import Dialogue


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
