"""Measure accuracy and speed of retrieval. Each question's text is a search query, and the results
are compared with the question's supporting passages.

A question is a hit at k if all its supporting passages are among the first k results. Recall at k
is the share of a question's supporting passages among the first k results.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks import harness
from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.datasets.reader import read_entries
from router.errors import BadCorpus
from router.frozen import Frozen
from serving.config.config import MilvusConfig, RetrievalConfig
from serving.retrieval.build import build_index
from serving.retrieval.dense import Hit, VectorStore
from serving.retrieval.embedder import Embedder, MiniLM
from serving.retrieval.index import DEPTH, Index, fuse
from serving.retrieval.opening import vector_store

CUTS = (1, 3, 5, 10)


class Options(harness.Options):
    """Options of the benchmark."""

    data: Path
    """folder with corpus.jsonl (the passages) and questions.jsonl, as `rolegate sft mini-world`
    writes them
    """
    index: Path | None = None
    """folder of the corpus's index, which is built if missing (default: a temporary folder)"""
    vectors: str = "Flat"
    """type of the FAISS index: Flat (exact search), or an approximate one such as HNSW32,SQ8 or
    IVF4096,PQ48
    """
    milvus: str | None = None
    """URL of a Milvus server to search in instead of FAISS, such as http://127.0.0.1:19530. The
    passages are written to the partition `bench` of its collection `bench` (default: search with
    FAISS)
    """


class RankingScores(Frozen):
    """Accuracy of one ranking, over all questions."""

    ranking: str
    """`dense`, `lexical` or `fused`."""
    hit: dict[int, float]
    """For each k, the share of questions whose supporting passages are all among the first k."""
    recall: dict[int, float]
    """For each k: share of a question's supporting passages that are among the first k, as a mean
    over questions.
    """


class Figures(Frozen):
    """Accuracy of the rankings, and the speed of indexing and search."""

    passages: int
    questions: int
    passages_per_s: float | None
    """Passages embedded and indexed per second, BM25 included; None if the index existed before."""
    queries_per_s: float
    """Number of queries per second. The time includes embedding and all three rankings, of all
    queries in one batch.
    """
    scores: list[RankingScores]


def measure(options: Options) -> Figures:
    """Measure accuracy and speed. Raises `BadCorpus` for invalid files, `BadIndex` for a bad index,
    and the embedder's errors.
    """
    embedder = MiniLM()
    partition = None
    if options.milvus:
        partition = MilvusConfig(
            address=options.milvus,
            collection="bench",
            partition="bench",
            timeout_s=60.0,  # all questions are searched in one request
        )
    store = vector_store(RetrievalConfig(vectors=options.vectors, milvus=partition))
    questions = read_questions(options.data / "questions.jsonl")
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.index or Path(scratch) / "index"
        index, passages_per_s = _indexed(options.data / "corpus.jsonl", folder, embedder, store)
        found, queries_per_s = _ranked(index, embedder, questions)
    return Figures(
        len(index.passages),
        len(questions),
        passages_per_s,
        queries_per_s,
        found,
    )


def read_questions(path: Path) -> list[BenchmarkQuestion]:
    """Return the questions of the file `path`. Raises `BadCorpus`, with file and line, for a
    question without supporting passages.
    """
    questions = []
    for entry in read_entries(path):
        if not entry.question.supporting:
            raise BadCorpus(
                f"{entry.where}: has no supporting_doc_ids, so hits cannot be measured; add the "
                "ids of the passages that the answer needs."
            )
        questions.append(entry.question)
    return questions


def _indexed(
    corpus: Path, folder: Path, embedder: Embedder, store: VectorStore
) -> tuple[Index, float | None]:
    """Open the index in `folder`, and build it first if it is missing. Return (index, number of
    passages indexed per second). The number is None if the index existed.
    """
    embedder.embed(["warm up"], queries=False)  # loads the model before the time is measured
    started = time.perf_counter()
    built = build_index([corpus], folder, embedder, lexical=True, store=store)
    elapsed_s = time.perf_counter() - started
    return Index.open(
        folder, embedder, store=store
    ), built.embedded / elapsed_s if built.embedded else None


def _ranked(
    index: Index, embedder: Embedder, questions: Sequence[BenchmarkQuestion]
) -> tuple[list[RankingScores], float]:
    """Return the accuracy of each ranking, and the number of queries ranked per second."""
    queries = [question.question for question in questions]
    started = time.perf_counter()
    assert index.lexical is not None
    dense = index.dense.search(embedder.embed(queries, queries=True), DEPTH)
    lexical = index.lexical.search(queries, DEPTH)
    fused = [fuse(rankings, DEPTH) for rankings in zip(dense, lexical, strict=True)]
    per_s = len(queries) / (time.perf_counter() - started)
    rankings = {"dense": dense, "lexical": lexical, "fused": fused}
    found = []
    for name, hits in rankings.items():
        documents = [_documents(index, query_hits) for query_hits in hits]
        found.append(_found(name, questions, documents))
    return found, per_s


def _found(
    ranking: str, questions: Sequence[BenchmarkQuestion], documents: Sequence[Sequence[str]]
) -> RankingScores:
    """Return the accuracy of a ranking. `documents`: ids of the documents that were found for each
    question, best first.
    """
    hit = {}
    recall = {}
    for k in CUTS:
        shares = [
            fmean(document in found[:k] for document in set(question.supporting))
            for question, found in zip(questions, documents, strict=True)
        ]
        hit[k] = fmean(share == 1 for share in shares)
        recall[k] = fmean(shares)
    return RankingScores(ranking, hit, recall)


def _documents(index: Index, hits: Sequence[Hit]) -> list[str]:
    """Return the ids of the hits' documents, best first, without duplicates. A long document may be
    split into several passages, and so have several hits.
    """
    return list(dict.fromkeys(index.passages[hit.row].document.partition("#")[2] for hit in hits))
