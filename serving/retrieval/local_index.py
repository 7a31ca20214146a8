"""An index in this process: opened, and built first where it is missing or of another corpus."""

import asyncio
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from router.errors import BadConfig, BadIndex
from serving.config import EmbedderConfig, RetrievalConfig
from serving.retrieval.digest import sha256_of
from serving.retrieval.embedder import Embedder, MiniLM
from serving.retrieval.endpoint_embedder import EndpointEmbedder
from serving.retrieval.index import Index, build_index
from serving.retrieval.manifest import Manifest, read_manifest
from serving.retrieval.searcher import IndexSearcher


def new_embedder(config: EmbedderConfig) -> Embedder:
    """The embedder that a config names; its model is loaded by its first call. Raises `BadConfig`."""
    if config.kind == "minilm":
        return MiniLM()
    if config.base_url is None or config.model is None or config.dimension is None:
        raise BadConfig("retrieval.embedder: kind `endpoint` needs base_url, model and dimension.")
    key = os.environ.get(config.api_key_env) if config.api_key_env else None
    if config.api_key_env and not key:
        raise BadConfig(f"retrieval.embedder.api_key_env: the variable {config.api_key_env} is not set; export it.")
    return EndpointEmbedder(config.base_url, config.model, dimension=config.dimension, api_key=key)


def open_index(config: RetrievalConfig, tell: Callable[[str], None]) -> tuple[IndexSearcher, Embedder]:
    """A searcher over the config's index, warm. Blocks. Raises `BadConfig` or `BadIndex`."""
    assert config.index is not None
    folder, embedder = Path(config.index), new_embedder(config.embedder)
    if config.corpus is not None and not _fits(_manifest(folder), config, embedder):
        _build(folder, config, embedder, tell)
    index = Index.open(folder, embedder)
    if index.manifest.lexical != config.lexical:
        raise BadIndex(
            f"{folder}: built {'with' if index.manifest.lexical else 'without'} word statistics, but retrieval.lexical "
            f"is {str(config.lexical).lower()}; change the key, or build the index again."
        )
    embedder.embed(["warm up"], queries=True)
    tell(f"retrieval: {index.manifest.passages} passages, {index.manifest.embedder}")
    return IndexSearcher(index, embedder), embedder


async def close_index(searcher: IndexSearcher, embedder: Embedder) -> None:
    """Finish what was asked, and close the embedder's connections if it has any."""
    await searcher.close()
    if isinstance(embedder, EndpointEmbedder):
        await asyncio.to_thread(embedder.close)


def _manifest(folder: Path) -> Manifest | None:
    """The manifest of a finished index; None where there is none."""
    try:
        return read_manifest(folder)
    except BadIndex:
        return None


def _fits(manifest: Manifest | None, config: RetrievalConfig, embedder: Embedder) -> bool:
    if manifest is None or config.corpus is None:
        return False
    wanted = (sha256_of(Path(config.corpus)), embedder.identity, config.lexical)
    return (manifest.corpus_sha256, manifest.embedder, manifest.lexical) == wanted


def _build(folder: Path, config: RetrievalConfig, embedder: Embedder, tell: Callable[[str], None]) -> None:
    """Build beside `folder`, then take its place. An index makes room, and anything else is left alone."""
    assert config.corpus is not None
    corpus = Path(config.corpus)
    if _manifest(folder) is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadIndex(f"{folder}: is in the way and is no index; move it, or name another folder in retrieval.index.")

    def told(done: int, total: int) -> None:
        tell(f"retrieval: embedding {corpus.name}, {done} of {total} passages")

    fresh = folder.with_name(f".{folder.name}.fresh-{secrets.token_hex(4)}")
    build_index(corpus, fresh, embedder, lexical=config.lexical, progress=told)
    if _fits(_manifest(folder), config, embedder):  # another process was quicker
        shutil.rmtree(fresh)
        return
    if folder.exists():
        old = folder.with_name(f".{folder.name}.old-{secrets.token_hex(4)}")
        folder.rename(old)
        shutil.rmtree(old)
    fresh.rename(folder)
