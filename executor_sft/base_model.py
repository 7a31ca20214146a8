"""The model that a training begins with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from executor_sft.dataset import tokenizer_files
from executor_sft.recipe import Recipe
from executor_sft.row import Row
from executor_sft.step import digest_of, read_manifest
from router.errors import BadConfig
from serving.engines.versions import WEIGHTS


def base_files(model: Path, dataset: Path) -> dict[str, Path]:
    """The files that decide what the training begins with. Raises `BadConfig` where they are not there, or where the
    data set was made for another tokenizer.
    """
    weights = next((model / name for name in WEIGHTS if (model / name).is_file()), None)
    if weights is None or not (model / "config.json").is_file():
        raise BadConfig(f"{model}: is no model; name a folder with config.json and {' or '.join(WEIGHTS)}.")
    made_for = read_manifest(dataset).origin.inputs
    for name, path in tokenizer_files(model).items():
        if made_for.get(name) != digest_of(path):
            raise BadConfig(
                f"{dataset}: was made for another tokenizer ({path} differs); make it again with --model {model}."
            )
    return {"config": model / "config.json", "weights": weights}


def load_base(model: Path, rows: Sequence[Row], recipe: Recipe) -> Any:
    """The model in fp32. Raises `BadConfig` where it cannot be loaded whole, or cannot hold the rows."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        base, loaded = AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise BadConfig(f"{model}: cannot be loaded ({error}); copy the model again.") from None
    if missing := loaded["missing_keys"]:
        raise BadConfig(f"{model}: has no weights for {min(missing)} and {len(missing) - 1} others; copy it again.")
    longest = max(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
    most = min(recipe.max_length, base.config.max_position_embeddings)
    if longest > most:
        raise BadConfig(
            f"{model}: the longest row has {longest} tokens, and {most} are allowed, by the recipe's max_length = "
            f"{recipe.max_length} and by the model; make a data set of shorter rows, or raise max_length."
        )
    highest = max(max(row.prompt_ids + row.completion_ids) for row in rows)
    if highest >= base.config.vocab_size:
        raise BadConfig(f"{model}: knows {base.config.vocab_size} tokens, and the data set has token {highest}.")
    return base
