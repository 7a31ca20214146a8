"""Indexes that are not `Flat`: what they find, how builds change them, and their memory."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from router.errors import BadIndex
from serving.retrieval.approximate import ApproximateIndex, ApproximateStore
from serving.retrieval.build import Built, build_index
from serving.retrieval.embedder import Vectors
from serving.retrieval.faiss_index import FaissIndex
from serving.retrieval.index import Index
from tests.scripted_gateway import ROOT

HNSW = "HNSW8,SQ8"
CLUSTERS = 40


class Clustered:
    """An embedder whose vectors lie in clusters. It records all texts."""

    dimension = 16
    max_tokens = 64
    identity = "clustered"

    def __init__(self) -> None:
        self.texts: list[str] = []

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        self.texts += texts
        return np.stack([self._vector(text.strip()) for text in texts])

    def _vector(self, text: str) -> Vectors:
        seed = int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "big")
        center = np.random.default_rng(seed % CLUSTERS).standard_normal(16)
        vector = center + 0.5 * np.random.default_rng(seed).standard_normal(16)
        return np.asarray(vector / np.linalg.norm(vector), dtype=np.float32)


def write(path: Path, numbers: Sequence[int]) -> Path:
    rows = (json.dumps({"id": str(number), "text": f"row {number}"}) for number in numbers)
    path.write_text("\n".join(rows))
    return path


def built(tmp_path: Path, factory: str, numbers: Sequence[int]) -> tuple[Built, Index]:
    store = ApproximateStore(factory)
    rows = write(tmp_path / "rows.jsonl", numbers)
    result = build_index([rows], tmp_path / "index", Clustered(), store=store)
    return result, Index.open(tmp_path / "index", Clustered(), store=store, verify=True)


def best(index: Index, text: str) -> str:
    ((passage,),) = index.search(Clustered().embed([text], queries=True), [text], 1)
    return passage.text


def entries(tmp_path: Path) -> int:
    """Number of entries of the small index of the current generation."""
    generation = max((tmp_path / "index").glob("0*"))
    return int(faiss.read_index(str(generation / f"{HNSW}.faiss")).ntotal)


@pytest.mark.parametrize(
    ("factory", "count"),
    [(HNSW, 1000), ("IVF8,SQ8", 1000), ("IVF8_HNSW8,SQ8", 1000), ("IVF8,PQ8", 10_000)],
)
def test_a_factory_finds_what_exact_search_finds(tmp_path: Path, factory: str, count: int) -> None:
    """The manifest has the measured recall, scores are exact cosines, and documents open."""
    result, index = built(tmp_path, factory, range(count))

    assert isinstance(index.dense, ApproximateIndex)
    assert (result.manifest.vectors, list(result.manifest.recall)) == (factory, [3, 5])
    assert min(result.manifest.recall.values()) > 0.9
    queries = Clustered().embed([f"question {number}" for number in range(100)], queries=True)
    exact = FaissIndex.open(tmp_path / "index" / result.manifest.generation)
    pairs = zip(index.dense.search(queries, 5), exact.search(queries, 5), strict=True)
    assert sum(hits == nearest for hits, nearest in pairs) > 80
    assert index.dense.within(queries[0], range(7)) == exact.within(queries[0], range(7))


def test_an_index_of_few_passages_is_exact(tmp_path: Path) -> None:
    """It becomes approximate with more passages, without embedding the known ones again."""
    few, index = built(tmp_path, "IVF8,SQ8", range(300))
    assert isinstance(index.dense, FaissIndex)
    assert (few.manifest.vectors, few.manifest.recall) == ("IVF8,SQ8", {})

    more, index = built(tmp_path, "IVF8,SQ8", range(320))
    assert isinstance(index.dense, ApproximateIndex)
    assert more.embedded == 20


def test_a_build_adds_new_passages_and_forgets_others(tmp_path: Path) -> None:
    """The graph keeps the entries of passages that are gone, and no search finds them."""
    built(tmp_path, HNSW, range(1200))
    result, index = built(tmp_path, HNSW, [-2, *range(0, 700), -1, *range(800, 1200)])

    assert result.embedded == 2
    assert entries(tmp_path) == 1202
    for number in (-2, -1, 0, 699, 800, 1199):
        assert best(index, f"row {number}") == f"row {number}"
    for number in range(700, 800):
        assert best(index, f"row {number}") != f"row {number}"
    assert len(index.dense) == 1102


def test_an_index_that_has_changed_much_is_filled_again(tmp_path: Path) -> None:
    """When half of the entries belong to no passage, the others are added to a new index."""
    built(tmp_path, HNSW, range(2000))
    built(tmp_path, HNSW, range(1000))

    assert entries(tmp_path) == 1000


def test_another_factory_takes_over_the_vectors(tmp_path: Path) -> None:
    """After a change of the key, a build embeds nothing."""
    for factory in (HNSW, "IVF8,SQ8"):
        result, index = built(tmp_path, factory, range(1000))
        assert best(index, "row 17") == "row 17"
    exact = build_index([tmp_path / "rows.jsonl"], tmp_path / "index", Clustered())

    assert result.embedded == exact.embedded == 0
    assert (exact.manifest.vectors, exact.manifest.recall) == ("Flat", {})


def read_levels(path: Path) -> list[int]:
    """Return the level in the graph of each entry of a small index."""
    small: Any = faiss.read_index(str(path))
    graph: Any = faiss.downcast_index(small.index)
    levels: list[int] = faiss.vector_to_array(graph.hnsw.levels).tolist()
    return levels


KILLED_FILLING = """
import os, signal, sys, threading, time
from pathlib import Path
from tests.serving.retrieval.test_approximate import Clustered
from serving.retrieval.approximate import ApproximateStore
from serving.retrieval.build import build_index

def kill_after_first_copy():
    while not Path(sys.argv[2], ".HNSW8,SQ8.faiss").exists():
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)

threading.Thread(target=kill_after_first_copy).start()
store = ApproximateStore("HNSW8,SQ8")
build_index([Path(sys.argv[1])], Path(sys.argv[2]), Clustered(), store=store)
"""


def test_a_killed_filling_continues_from_its_last_copy(tmp_path: Path) -> None:
    """The next build embeds nothing, and adds only what the copy lacks."""
    count = 12_000
    rows = write(tmp_path / "rows.jsonl", range(count))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'protos'}"}
    command = [sys.executable, "-c", KILLED_FILLING, str(rows), str(tmp_path / "index")]
    killed = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    copy = tmp_path / "index" / f".{HNSW}.faiss"
    kept = read_levels(copy)
    assert 0 < len(kept) < count

    result, index = built(tmp_path, HNSW, range(count))

    assert result.embedded == 0
    final = read_levels(max((tmp_path / "index").glob("0*")) / f"{HNSW}.faiss")
    assert len(final) == count
    assert final[: len(kept)] == kept
    assert best(index, "row 11999") == "row 11999"
    assert not copy.exists()


def test_a_build_beyond_its_memory_embeds_nothing(tmp_path: Path) -> None:
    """The error names the need, the limit, and what to do."""
    rows = write(tmp_path / "rows.jsonl", range(1000))
    embedder = Clustered()
    store = ApproximateStore("HNSW32,SQ8", memory_gb=0.0005)

    with pytest.raises(
        BadIndex, match=r"1,000 passages take 0\.000551 GiB .* retrieval.memory_gb is 0\.0005"
    ):
        build_index([rows], tmp_path / "index", embedder, store=store)
    assert embedder.texts == []


@pytest.mark.parametrize("factory", ["HNSW8,SQ8", "IVF4,SQ8"])
def test_a_filter_restricts_an_approximate_search(tmp_path: Path, factory: str) -> None:
    """Few rows are searched exactly, and many with the small index; both find the same."""
    _, index = built(tmp_path, factory, range(1000))
    queries = Clustered().embed(["a question"], queries=True)
    rows = np.arange(300, 900)
    exact = index.dense.search(queries, 5, rows)
    assert isinstance(index.dense, ApproximateIndex)
    index.dense.few = 0

    assert index.dense.search(queries, 5, rows) == exact
    assert all(300 <= hit.row < 900 for hit in exact[0])
