"""From the retrieval section of a config to a retriever."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from router.errors import BadConfig, BadIndex
from router.retrieval import Retriever
from serving.config import EmbedderConfig, RetrievalConfig
from serving.retrieval.digest import sha256_of
from serving.retrieval.embedder import Embedder, MiniLM
from serving.retrieval.endpoint_embedder import EndpointEmbedder
from serving.retrieval.index import Index, build_index
from serving.retrieval.manifest import Manifest, read_manifest
from serving.retrieval.remote import RemoteRetriever
from serving.retrieval.searcher import IndexSearcher

Tell = Callable[[str], None]


@asynccontextmanager
async def open_retriever(config: RetrievalConfig, tell: Tell) -> AsyncIterator[Retriever]:
    """The retriever that a config names, ready to search. Raises `BadConfig` or `BadIndex`."""
    retriever: RemoteRetriever | IndexSearcher
    if config.address is not None:
        retriever = RemoteRetriever(config.address)
    else:
        retriever = await asyncio.to_thread(_open_index, config, tell)
    try:
        yield retriever
    finally:
        await retriever.close()


def new_embedder(config: EmbedderConfig) -> Embedder:
    """The embedder that a config names; its model is loaded by its first call. Raises `BadConfig`."""
    if config.kind == "minilm":
        return MiniLM()
    if config.base_url is None or config.model is None or config.dimension is None:
        raise BadConfig("retrieval.embedder: kind `endpoint` needs base_url, model and dimension.")
    key = os.environ.get(config.api_key_env) if config.api_key_env else None
    return EndpointEmbedder(config.base_url, config.model, dimension=config.dimension, api_key=key)


def _open_index(config: RetrievalConfig, tell: Tell) -> IndexSearcher:
    assert config.index is not None
    folder, embedder = Path(config.index), new_embedder(config.embedder)
    if config.corpus is not None and not _is_of(folder, Path(config.corpus), embedder):
        _build(folder, Path(config.corpus), embedder, config.lexical, tell)
    index = Index.open(folder, embedder)
    embedder.embed(["warm up"], queries=True)
    tell(f"retrieval: {index.manifest.passages} passages, {index.manifest.embedder}")
    return IndexSearcher(index, embedder)


def _manifest(folder: Path) -> Manifest | None:
    """The manifest of a finished index; None where there is none."""
    try:
        return read_manifest(folder)
    except BadIndex:
        return None


def _is_of(folder: Path, corpus: Path, embedder: Embedder) -> bool:
    manifest = _manifest(folder)
    return manifest is not None and (manifest.corpus_sha256, manifest.embedder) == (
        sha256_of(corpus),
        embedder.identity,
    )


def _build(folder: Path, corpus: Path, embedder: Embedder, lexical: bool, tell: Tell) -> None:
    """Build the index of `corpus`. An index of another corpus makes room; anything else in its place is left alone."""
    if _manifest(folder) is not None:
        shutil.rmtree(folder)

    def told(done: int, total: int) -> None:
        tell(f"retrieval: embedding {corpus.name}, {done} of {total} passages")

    build_index(corpus, folder, embedder, lexical=lexical, progress=told)
