"""Whether the embedder answers, the index is there, and the two belong together."""

from pathlib import Path

from router.errors import BadConfig, BadIndex, UpstreamError, UpstreamGarbled
from serving.live_check.cell import GOOD, Cell, Cells, failed
from serving.retrieval.agreement import SAME_EMBEDDER, agreement
from serving.retrieval.embedder import Embedder
from serving.retrieval.index import Index
from serving.retrieval.manifest import read_manifest

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
