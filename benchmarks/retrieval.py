"""Accuracy and speed of retrieval: how much of the evidence of a question is found by searching
with the question itself.

A question is a hit at k if all of its supporting passages are among the first k (full evidence);
recall is their share.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec
from msgspec import Meta

from benchmarks import harness
from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.datasets.reader import read_entries
from router.errors import BadCorpus
from serving.retrieval.build import build_index
from serving.retrieval.dense import Hit
from serving.retrieval.embedder import Embedder, MiniLM
from serving.retrieval.index import DEPTH, Index, fuse

CUTS = (1, 3, 5, 10)


class Options(harness.Options, frozen=True, kw_only=True):
    """Options of the benchmark."""

    data: Annotated[Path, Meta(description="folder with corpus.jsonl and questions.jsonl")]
    index: (
        Annotated[Path, Meta(description="folder of its index, which is built if missing")] | None
    ) = None


class RankingScores(msgspec.Struct, frozen=True):
    """Means over the questions for one ranking."""

    ranking: str
    """`dense`, `lexical` or `fused`."""
    hit: dict[int, float]
    """Share of questions with full evidence, by k."""
    recall: dict[int, float]
    """Mean share of a question's evidence, by k."""


class Figures(msgspec.Struct, frozen=True):
    """Accuracy, and the speed with which it was measured."""

    passages: int
    questions: int
    passages_per_s: float | None
    """Speed of embedding and indexing, BM25 included; None if the index existed."""
    queries_per_s: float
    """Speed of embedding and ranking in one batch, with all rankings."""
    scores: list[RankingScores]


def measure(options: Options) -> Figures:
    """Measure accuracy. Raises `BadCorpus`, `BadIndex` and the embedder's errors."""
    embedder = MiniLM()
    questions = read_questions(options.data / "questions.jsonl")
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.index or Path(scratch) / "index"
        index, passages_per_s = _indexed(options.data / "corpus.jsonl", folder, embedder)
        found, queries_per_s = _ranked(index, embedder, questions)
    return Figures(
        len(index.passages),
        len(questions),
        passages_per_s,
        queries_per_s,
        found,
    )


def read_questions(path: Path) -> list[BenchmarkQuestion]:
    """Read the questions of a file. Raises `BadCorpus`, with file and line, for a question without
    supporting passages.
    """
    questions = []
    for entry in read_entries(path):
        if not entry.question.supporting:
            raise BadCorpus(
                f"{entry.where}: no supporting_doc_ids, so hits cannot be measured; add some."
            )
        questions.append(entry.question)
    return questions


def _indexed(corpus: Path, folder: Path, embedder: Embedder) -> tuple[Index, float | None]:
    """Build or open an index; return it with the passages indexed per second."""
    embedder.embed(["warm up"], queries=False)  # loads the model before the clock starts
    started = time.perf_counter()
    built = build_index([corpus], folder, embedder, lexical=True)
    elapsed_s = time.perf_counter() - started
    return Index.open(folder, embedder), built.embedded / elapsed_s if built.embedded else None


def _ranked(
    index: Index, embedder: Embedder, questions: Sequence[BenchmarkQuestion]
) -> tuple[list[RankingScores], float]:
    """Return the accuracy of all rankings, and the queries per second."""
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
    """Return the accuracy of a ranking. `documents`: those found by each question, best first."""
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
    """Return the corpus rows of the hits, each once; a long row may be split into several
    passages.
    """
    return list(dict.fromkeys(index.passages[hit.row].document.partition("#")[2] for hit in hits))
