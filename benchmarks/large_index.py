"""Measure time, memory, recall and speed of large indexes of several FAISS types.

The first vectors are the embeddings of the passages in `--data`. Further vectors are synthetic: the
vector of a passage plus half of the difference between the vectors of two other passages,
normalized. So synthetic vectors have clusters and directions like real vectors. The queries are the
questions in `--data`. Measurements that are already in the folder `--out` are not repeated, and an
interrupted build continues.
"""

import asyncio
import json
import math
import multiprocessing
import re
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean, median
from threading import Event, Thread

import msgspec
import numpy as np

from benchmarks import harness
from benchmarks.datasets.reader import read_entries
from executor_sft.asking import in_flight
from executor_sft.step import write_json
from router.frozen import Frozen
from serving.config.config import RetrievalConfig
from serving.documents.rows import read_rows
from serving.retrieval.embedder import MiniLM, Vectors
from serving.retrieval.faiss_index import FaissIndex
from serving.retrieval.index import Index
from serving.retrieval.opening import build_configured, vector_store
from serving.retrieval.passages import embedded_text
from serving.retrieval.searcher import IndexSearcher

_SHIFT = 0.5
_TOP_K = 5
_ALONE = 100
"""Number of queries in the measurement with a single caller, who searches them one by one."""
_SAMPLE_S = 0.05
_TIE = 1e-6


class Options(harness.Options):
    """Options of the benchmark."""

    data: tuple[Path, ...]
    """folders with corpus.jsonl (the passages) and questions.jsonl, as `rolegate sft mini-world`
    writes them
    """
    out: Path
    """folder for indexes and measurements; measurements in it are not repeated"""
    passages: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    """numbers of passages of the indexes"""
    factories: tuple[str, ...] = ("Flat", "HNSW32,SQ8", "IVF,SQ8", "IVF,PQ48")
    """FAISS index types to measure, as index factory strings. For IVF without a number of lists,
    the benchmark chooses a number that suits the size of the index
    """
    memory_gb: float = 4.0
    """max memory in GiB for building an index; a build that needs more fails"""


class Measured(Frozen):
    """Measurements of one index."""

    factory: str
    passages: int
    reading_s: float
    """Seconds to read the passages."""
    storing_s: float
    """Seconds to compute and write the vectors. They are synthetic (`_Synthetic`), so this is not
    the time of an embedding model.
    """
    filling_s: float
    """Seconds to train and fill the index, to measure recall, and to publish the index."""
    peak_gb: float
    """Peak memory of the build in GiB, without memory-mapped files."""
    filling_gb: float
    """Peak memory while the index is trained and filled, minus the memory before, in GiB."""
    index_gb: float
    """Size of the compact index, without the exact vectors, in GiB; 0 for `Flat`."""
    recall: dict[int, float]
    """Recall for each `top_k`, from the index's manifest, with passages as queries."""
    question_recall: dict[int, float]
    """Recall for each `top_k`, with the questions as queries."""
    ms_of_1: float
    """Median milliseconds of a search by one caller, without embedding the query."""
    ms_of_64: float
    """Median milliseconds of a search while 64 callers search."""
    per_s_of_64: float
    """Searches per second of 64 callers together."""


class Figures(Frozen):
    """Measurements of all indexes."""

    indexes: list[Measured]


class _Synthetic:
    """An `Embedder` that computes a passage's vector from the number at the beginning of the
    passage's text.
    """

    identity = "synthetic"
    max_tokens = 100_000

    def __init__(self, folder: Path) -> None:
        self._real: Vectors = np.load(folder / "passages.npy")
        self._queries: Vectors = np.load(folder / "questions.npy")
        self._query_rows = json.loads((folder / "questions.json").read_text())
        self.dimension = self._real.shape[1]

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(text) // 4 for text in texts]

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        if queries:
            rows_of_queries = [self._query_rows.get(text, 0) for text in texts]
            return np.asarray(self._queries[rows_of_queries])
        count = len(self._real)
        rows = np.array([int(text.partition("\n")[2].split(" ", 1)[0]) for text in texts])
        vectors: Vectors = self._real[rows % count].copy()
        is_new = rows >= count
        others = [rows[is_new] * factor // 1024 % count for factor in (40_503, 60_493)]
        vectors[is_new] += _SHIFT * (self._real[others[0]] - self._real[others[1]])
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


def measure(options: Options) -> Figures:
    """Build and search an index of each size with each factory."""
    options.out.mkdir(parents=True, exist_ok=True)
    passages = [
        passage for folder in options.data for _, passage in read_rows(folder / "corpus.jsonl")
    ]
    _embed_once(options, [embedded_text(passage) for passage in passages])
    indexes = []
    for size in options.passages:
        corpus = options.out / f"corpus-{size}.jsonl"
        if not corpus.exists():
            with corpus.open("wb") as file:
                for number, passage in enumerate(islice(cycle(passages), size)):
                    text = f"{number} {passage.text}"
                    row = {"id": str(number), "title": passage.title, "text": text}
                    file.write(msgspec.json.encode(row) + b"\n")
        for factory in options.factories:
            indexes.append(_measured(options, corpus, size, _suited(factory, size)))
            write_json(options.out / "figures.json", Figures(indexes))
    return Figures(indexes)


def _embed_once(options: Options, texts: Sequence[str]) -> None:
    """Embed the passages and the questions, and write the vectors to the folder `--out`, unless the
    vectors are already there.
    """
    names = options.out / "questions.json"
    if names.exists():
        return
    entries = [entry for folder in options.data for entry in read_entries(folder)]
    questions = list(dict.fromkeys(" ".join(entry.question.question.split()) for entry in entries))
    embedder = MiniLM()
    np.save(options.out / "passages.npy", embedder.embed(texts, queries=False))
    np.save(options.out / "questions.npy", embedder.embed(questions, queries=True))
    write_json(names, {question: row for row, question in enumerate(questions)})


def _suited(factory: str, size: int) -> str:
    """Return the factory string with a number of lists after IVF: about four times the square root
    of the number of passages. The training requires at least 39 passages per list, which limits the
    number.
    """
    lists = 2 ** min(math.ceil(math.log2(4 * math.sqrt(size))), int(math.log2(size / 39)))
    return re.sub(r"IVF\b", f"IVF{lists}", factory)


def _measured(options: Options, corpus: Path, size: int, factory: str) -> Measured:
    """Return the measurements of one index, which is built and searched in a child process."""
    file = options.out / f"{size}-{factory}.json"
    if not file.exists():
        spawn = multiprocessing.get_context("spawn")
        folder = file.with_suffix("")
        with ProcessPoolExecutor(1, mp_context=spawn) as process:
            config = RetrievalConfig(
                index=str(folder),
                documents=(str(corpus),),
                vectors=factory,
                memory_gb=options.memory_gb,
            )
            write_json(file, process.submit(_build_and_search, config, options).result())
        shutil.rmtree(folder)
    return msgspec.json.decode(file.read_bytes(), type=Measured)


def _build_and_search(config: RetrievalConfig, options: Options) -> Measured:
    embedder = _Synthetic(options.out)
    folder = Path(config.index or "")
    began_at = dict[str, float]()
    peaks = {"reading": 0.0, "embedding": 0.0, "filling": 0.0}
    bytes_before = 0.0
    stage = "reading"
    ended = Event()

    def sample() -> None:
        while not ended.wait(_SAMPLE_S):
            peaks[stage] = max(peaks[stage], _anonymous_gb())

    def progress(name: str, done: int, total: int) -> None:
        nonlocal stage, bytes_before
        stage = name
        if name == "embedding" and done == total:
            stage = "filling"
            bytes_before = _anonymous_gb()
        began_at.setdefault(stage, time.perf_counter())

    sampling = Thread(target=sample)
    sampling.start()
    built = build_configured(config, embedder, progress)
    now = time.perf_counter()
    ended.set()
    sampling.join()

    index = Index.open(folder, embedder, store=vector_store(config))
    generation = folder / built.manifest.generation
    small = [path.stat().st_size for path in generation.glob(f"{config.vectors}.faiss")]
    queries = list(json.loads((options.out / "questions.json").read_text()))
    alone, _ = asyncio.run(_searched(index, embedder, queries[:_ALONE], 1))
    together, per_s = asyncio.run(_searched(index, embedder, queries, 64))
    vectors = embedder.embed(queries, queries=True)
    return Measured(
        config.vectors,
        built.manifest.passages,
        began_at["embedding"] - began_at["reading"],
        began_at["filling"] - began_at["embedding"],
        now - began_at["filling"],
        max(peaks.values()),
        peaks["filling"] - bytes_before,
        sum(small) / 2**30,
        dict(built.manifest.recall),
        _recall(index, FaissIndex.open(generation), vectors),
        alone,
        together,
        per_s,
    )


def _recall(index: Index, exact: FaissIndex, queries: Vectors) -> dict[int, float]:
    """Return the mean recall for each `top_k`. The recall of a search is the share of the exact
    search's hits that the index also finds.
    """
    nearest = exact.search(queries, _TOP_K)
    found = index.dense.search(queries, 8 * _TOP_K)
    return {
        top_k: fmean(
            sum(hit.score >= best[top_k - 1].score - _TIE for hit in hits[:top_k]) / top_k
            for best, hits in zip(nearest, found, strict=True)
        )
        for top_k in (3, 5)
    }


async def _searched(
    index: Index, embedder: _Synthetic, queries: Sequence[str], callers: int
) -> tuple[float, float]:
    """Search all queries with this number of concurrent `callers`. Return the median milliseconds
    of a search, and the searches per second of all callers together.
    """
    searcher = IndexSearcher(index, embedder, cache=0)

    async def search(query: str) -> float:
        started = time.perf_counter()
        await searcher.search([query], _TOP_K)
        return 1000 * (time.perf_counter() - started)

    await search("warm up")
    started = time.perf_counter()
    waits = await in_flight(search, queries, callers)
    per_s = len(queries) / (time.perf_counter() - started)
    await searcher.close()
    return median(waits), per_s


def _anonymous_gb() -> float:
    """Return the memory of this process without mapped files, in GiB."""
    status = Path("/proc/self/status").read_text("ascii")
    kilobytes = re.findall(r"RssAnon:\s+(\d+)", status)
    return int(kilobytes[0]) / 2**20
