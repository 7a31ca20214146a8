"""Whether passages can be searched: in an index in this process, or by a retrieval server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from router.errors import BadConfig, BadIndex, UpstreamError, UpstreamGarbled
from router.search.retrieval import Retriever
from serving.config.config import Config
from serving.engines.engine import Tell
from serving.live_check.cell import GOOD, Cell, Cells, failed
from serving.retrieval.adopt import SAME_EMBEDDER, agreement
from serving.retrieval.embedder import Embedder
from serving.retrieval.index import Index
from serving.retrieval.manifest import read_manifest
from serving.retrieval.opening import open_retriever

_FITS = "fits the embedder"


def probe_index(folder: Path, embedder: Embedder, documents: bool) -> dict[str, Cells]:
    """The cells of the embedder and of the index. `documents`: whether it is built from some at the start. Blocks."""
    embeds = _embeds(embedder)
    if documents and not folder.exists():
        return {"embedder": embeds, "index": {"built": Cell(None, "not yet", "it is built when the gateway starts")}}
    return {"embedder": embeds, "index": _index(folder, embedder, all(cell.good for cell in embeds.values()))}


def _embeds(embedder: Embedder) -> Cells:
    try:
        embedder.embed(["Who directed the film Heat?"], queries=True)
    except UpstreamGarbled as error:
        reached = {"reachable": GOOD} if "dimension" in str(error) else {}
        return reached | {"dimension" if reached else "reachable": failed("wrong", str(error))}
    except (UpstreamError, BadConfig) as error:
        return {"reachable": failed("no", str(error))}
    return {"reachable": GOOD, "dimension": Cell(True, str(embedder.dimension))}


def _index(folder: Path, embedder: Embedder, embeds: bool) -> Cells:
    try:
        built = {"built": Cell(True, f"{read_manifest(folder).passages} passages")}
    except BadIndex as error:
        return {"built": failed("no", f"{error} Run `rolegate index build`.")}
    try:
        same = _agreement(Index.open(folder, embedder), embedder) if embeds else None
    except BadIndex as error:
        return built | {_FITS: failed("no", str(error))}
    except RuntimeError:
        same = None
    if same is None:
        return built | {_FITS: Cell(None, "unknown")}
    if not same >= SAME_EMBEDDER:  # also catches NaN
        said = "the embedder gives other vectors than the index holds: it is another model, or is served otherwise"
        return built | {_FITS: failed(f"{same:.2f}", f"{said}; name the embedder that built it, or build it anew")}
    return built | {_FITS: Cell(True, f"{same:.2f}")}


def _agreement(index: Index, embedder: Embedder) -> float:
    return agreement(index.passages, index.dense, embedder, [len(index.passages) // 2])


@asynccontextmanager
async def retrieval_probe(
    config: Config, tell: Tell, *, cpu_threads: int
) -> AsyncIterator[Callable[[], Awaitable[dict[str, Cells]]]]:
    """Open what is searched with; the call that probes it. `cpu_threads`: as for `open_retriever`."""
    if config.retrieval.address is not None:
        async with open_retriever(config.retrieval, tell) as retriever:
            yield partial(_probe_server, retriever)
        return
    # What an index in this process needs is not always installed.
    pass
    from serving.retrieval.opening import open_embedder

    opened = open_embedder(config.retrieval.embedder, config.engines, tell, cpu_threads=cpu_threads)
    async with opened as embedder:
        index, documents = Path(config.retrieval.index or ""), bool(config.retrieval.documents)
        yield partial(asyncio.to_thread, probe_index, index, embedder, documents)


async def _probe_server(retriever: Retriever) -> dict[str, Cells]:
    try:
        await retriever.search(["Who directed the film Heat?"], 1)
    except UpstreamError as error:
        advice = f"{error}; start `rolegate retrieve serve` there, or correct retrieval.address"
        return {"retrieval": {"reachable": failed("no", advice)}}
    return {"retrieval": {"reachable": GOOD}}
