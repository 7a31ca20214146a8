"""What a published version of the executor is, beside its files; written last, so that no half of one is ever read."""

from typing import Any, Literal

import msgspec

MANIFEST = "manifest.json"


class VersionManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The manifest of a version's folder."""

    format: Literal[1] = 1
    version: str
    """`executor-000001`, …; also the folder's name."""
    kind: Literal["adapter", "weights"]
    """Whether it is loaded beside its base model, or in its place."""
    base_model: str
    """The name under which the base model is served, or was trained from."""
    base_sha256: str
    """Of the base model's `model.safetensors`, or of its index; empty where it was not at hand as a folder."""
    rank: int | None = None
    """Of an adapter."""
    recipe: dict[str, Any]
    """Everything that the training was told."""
    data: dict[str, Any]
    """What it was trained on: the figures and digests of the data set and of what that was made of."""
    evaluation: dict[str, Any] | None = None
    """How it did beside the executor before it; None where it was not evaluated."""
    git_revision: str
    """Of the code that trained it; empty where that is not known."""
    created_at: str
    """ISO 8601, UTC."""
    files: dict[str, str]
    """SHA-256 of every other file, by its path in the folder."""
