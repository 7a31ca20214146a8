"""A version that is worse than the one that it was made from."""

import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from serving.engines.versions import MANIFEST, verified, write_version

_WEIGHTS = "adapter_model.safetensors"
_TIMES = 2
"""Noise over the weights themselves, by their standard deviations. Once, the mini executor is as good as before; twice,
three quarters of its turns are right; three times, none is.
"""


def publish_spoiled(versions: Path, version: str, seed: int = 0) -> str:
    """Publish a copy of `version` with noise in its weights; its name."""
    manifest = verified(versions / version)
    chance = torch.Generator().manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        content = Path(folder) / "model"
        shutil.copytree(versions / version, content, ignore=shutil.ignore_patterns(MANIFEST))
        weights = load_file(content / _WEIGHTS)
        noisy = {name: weight + _noise(weight, chance) for name, weight in weights.items()}
        save_file(noisy, content / _WEIGHTS)
        return write_version(versions, content, manifest).name


def _noise(weight: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    return (_TIMES * weight.float().std() * torch.randn(weight.shape, generator=chance)).to(weight.dtype)
