"""Recipes of a training: TOML files, shipped or one's own."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from router.errors import BadConfig

_SHIPPED = Path(__file__).resolve().parent / "recipes"
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides about the result, with the data and the base model."""

    method: Literal["full", "lora"]
    rank: _Count = 32
    """Of a LoRA adapter; the three below too."""
    alpha: _Positive = 64.0
    dropout: _Share = 0.0
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """The layers that are adapted, by the ends of their names."""
    epochs: _Positive = 3.0
    batch: _Count = 16
    """Rows of a step, over all devices."""
    device_batch: _Count = 16
    """Rows at once on one device; what is missing to `batch` is accumulated."""
    learning_rate: _Positive
    schedule: Literal["cosine", "linear"] = "cosine"
    warm_up_ratio: _Share = 0.03
    weight_decay: Annotated[float, msgspec.Meta(ge=0)] = 0.01
    precision: Literal["bf16", "fp32"] = "bf16"
    """Of computing; weights and the optimizer's state are kept in fp32 while training."""
    max_length: _Count = 4096
    """Tokens of a row; a longer one is an error, never cut."""
    gradient_checkpointing: bool = False
    """Less memory for more time."""
    seed: int = 1
    checkpoint_every: _Count = 100
    """Steps."""

    def accumulation(self, devices: int) -> int:
        """Passes of a step on each device. Raises `BadConfig` where the batch cannot be split so."""
        passes, rest = divmod(self.batch, self.device_batch * devices)
        if rest or not passes:
            raise BadConfig(
                f"batch = {self.batch} cannot be split over {devices} devices of device_batch = {self.device_batch}; "
                "make it a multiple of both."
            )
        return passes


def load_recipe(name: str) -> Recipe:
    """A shipped recipe by its name, or one in a file by its path (`….toml`). Raises `BadConfig`."""
    path = Path(name) if name.endswith(".toml") else _SHIPPED / f"{name}.toml"
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Recipe)
    except FileNotFoundError:
        known = ", ".join(sorted(file.stem for file in _SHIPPED.glob("*.toml")))
        raise BadConfig(f"recipe {name}: is not there; name a file (….toml), or one of: {known}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: {error}") from None
