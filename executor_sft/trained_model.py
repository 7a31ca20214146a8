"""What a training leaves: an adapter, or whole weights, in bf16, as vLLM loads them."""

import shutil
from pathlib import Path
from typing import Any

from serving.files import flush


def save_trained(trainer: Any, base: Path, folder: Path) -> None:
    """Write the folder whole or not at all. All processes of a training must call it; the main one writes."""
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if not trainer.is_world_process_zero():
        return
    unfinished = folder.with_name(f".{folder.name}")
    for left in (unfinished, folder):
        shutil.rmtree(left, ignore_errors=True)
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    if hasattr(model, "peft_config"):
        _save_adapter(model, _halved(weights), base, unfinished)
    else:
        _save_weights(model, _halved(weights), base, unfinished)
    for path in (*unfinished.iterdir(), unfinished):
        flush(path)
    unfinished.rename(folder)


def _save_adapter(model: Any, weights: dict[str, Any], base: Path, folder: Path) -> None:
    model.peft_config["default"].base_model_name_or_path = base.resolve().name  # not where it lies on this machine
    model.save_pretrained(folder, state_dict=weights, save_embedding_layers=False)
    (folder / "README.md").unlink()  # a form that nobody filled in


def _save_weights(model: Any, weights: dict[str, Any], base: Path, folder: Path) -> None:
    """All but the weights is the base model's own: training changes no architecture and no tokenizer."""
    model.save_pretrained(folder, state_dict=weights)
    for path in base.iterdir():
        if path.is_file() and ".safetensors" not in path.name:
            shutil.copyfile(path, folder / path.name)


def _halved(weights: dict[str, Any]) -> dict[str, Any]:
    """The same in bf16; what was one tensor under two names stays one."""
    import torch

    halves: dict[int, torch.Tensor] = {}
    return {
        name: halves.setdefault(tensor.data_ptr(), tensor.detach().to(torch.bfloat16))
        for name, tensor in weights.items()
    }
