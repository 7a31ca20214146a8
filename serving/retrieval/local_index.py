"""An index in this process: brought up to date, opened, and left for the next generation when there is one."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TypeVar

import structlog

from router.errors import BadIndex, RolegateError
from serving.config.config import RetrievalConfig
from serving.retrieval.build import build_index
from serving.retrieval.embedder import Embedder
from serving.retrieval.index import Index
from serving.retrieval.manifest import Manifest, read_manifest
from serving.retrieval.searcher import IndexSearcher

T = TypeVar("T")

Check = Callable[[], None]
"""Raises `Stopped` once the work is to end; to be called now and then."""


class Stopped(Exception):
    """The work was told to end."""


async def stoppable(work: Callable[[Check], T]) -> T:
    """What `work` returns or raises, run in a thread. Cancelled, it waits until `work` has ended."""
    stopped = Event()

    def check() -> None:
        if stopped.is_set():
            raise Stopped

    working = asyncio.ensure_future(asyncio.to_thread(work, check))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        stopped.set()
        await asyncio.gather(working, return_exceptions=True)
        raise


_LOOKS_EVERY_S, _TELLS_EVERY_S = 1.0, 2.0
_log = structlog.get_logger("retrieval")


def open_index(config: RetrievalConfig, embedder: Embedder, tell: Callable[[str], None], check: Check) -> Index:
    """The config's index, up to date, and its embedder warm. Blocks; `check` can end it while it builds.

    Raises `BadConfig` or `BadIndex`.
    """
    assert config.index is not None
    if config.documents:
        _refresh(Path(config.index), config, embedder, tell, check)
    index = _open(config, embedder)
    embedder.embed(["warm up"], queries=True)
    tell(f"retrieval: {index.manifest.passages} passages, {index.manifest.embedder}")
    return index


async def follow(config: RetrievalConfig, searcher: IndexSearcher, index: Index, embedder: Embedder) -> None:
    """Let `searcher` go over to each new generation of its index; one that cannot be opened is logged and passed over.

    Runs until it is cancelled.
    """
    assert config.index is not None
    seen = index.manifest
    while True:
        await asyncio.sleep(_LOOKS_EVERY_S)
        found = await asyncio.to_thread(_manifest, Path(config.index))
        if found is None or found == seen:
            continue
        try:
            fresh = await asyncio.to_thread(_open, config, embedder)
        except (RolegateError, OSError) as error:  # gone again, perhaps, while it was opened
            _log.error("retrieval.not_swapped", error=str(error))
        else:
            searcher.swap(fresh)
            _log.info("retrieval.swapped", generation=found.generation, passages=found.passages)
        seen = found


def _open(config: RetrievalConfig, embedder: Embedder) -> Index:
    assert config.index is not None
    index = Index.open(Path(config.index), embedder)
    if index.manifest.lexical != config.lexical:
        raise BadIndex(
            f"{config.index}: built {'with' if index.manifest.lexical else 'without'} word statistics, but "
            f"retrieval.lexical is {str(config.lexical).lower()}; change the key, or build the index again."
        )
    return index


def _manifest(folder: Path) -> Manifest | None:
    """The manifest of a finished index; None where there is none."""
    try:
        return read_manifest(folder)
    except BadIndex:
        return None


def _refresh(
    folder: Path, config: RetrievalConfig, embedder: Embedder, tell: Callable[[str], None], check: Check
) -> None:
    """Bring the index up to date. Where that fails and there is one, it is served as it is."""
    told = time.monotonic()

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal told
        check()
        if time.monotonic() - told < _TELLS_EVERY_S:
            return
        told = time.monotonic()
        tell(f"retrieval: {stage}, {done} of {total} {'documents' if stage == 'reading' else 'passages'}")

    there = _manifest(folder) is not None
    try:
        built = build_index(
            [Path(place) for place in config.documents],
            folder,
            embedder,
            lexical=config.lexical,
            chunk_tokens=config.chunk_tokens,
            wait=not there,
            progress=progress,
        )
    except (RolegateError, OSError) as error:
        if not there:
            raise
        tell(f"retrieval: the index is served as it was, because it could not be brought up to date: {error}")
    else:
        for entry in built.skipped:
            tell(f"retrieval: skipped {entry.error}")
        for link in built.links:
            tell(f"retrieval: not followed: {link}")
