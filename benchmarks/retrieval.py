"""Accuracy and speed of retrieval.

With --data: how much of the evidence of a question is found by searching with the question itself.
A question is a hit at k if all of its supporting passages are among the first k (full evidence);
recall is their share. With gold sub-questions as queries, each returns its first k passages, which
is what a perfect delegator would see; for comparison, the question itself returns as many passages
as they do together.

With --load: searches per second of an index under many concurrent callers, for single searches and
for batches of waiting queries, in turns over the same distinct queries; and whether both find the
same. The larger the index, the more a batch saves, because all its queries share one pass over the
vectors. Passages come from mini worlds; their vectors are random, because embedding takes long.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count, islice, product
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from benchmarks import harness
from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.datasets.reader import Format, read_entries
from benchmarks.harness import Check
from benchmarks.load import in_flight, quantile, timed
from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.world import World
from router.errors import BadCorpus, BadRequest
from router.protocol import Passage
from serving.retrieval.build import build_index
from serving.retrieval.dense import Hit
from serving.retrieval.embedder import Embedder, MiniLM, Vectors
from serving.retrieval.index import DEPTH, Index, fuse
from serving.retrieval.searcher import IndexSearcher
from serving.terminal import progress_bar

CUTS = (1, 3, 5, 10)
QUESTION = "question"
AS_MANY = "question, as many passages"
SUB_QUESTIONS = "gold sub-questions"
_TURNS = 4
_SINGLE = 32
"""Queries of a single caller."""
_TOP_K = 3


class Options(harness.Options, frozen=True, kw_only=True):
    """Options of the benchmark."""

    data: (
        Annotated[Path, Meta(description="folder with corpus.jsonl and questions.jsonl")] | None
    ) = None
    format: (
        Annotated[Format, Meta(description="format of the questions (default: detected)")] | None
    ) = None
    index: (
        Annotated[Path, Meta(description="folder of its index, which is built if missing")] | None
    ) = None
    gold_sub_questions: Annotated[bool, Meta(description="also search with gold sub-questions")] = (
        False
    )
    load: Annotated[
        tuple[int, ...], Meta(description="index sizes in passages, such as 10000 100000")
    ] = ()
    callers: Annotated[int, Meta(ge=1, description="concurrent callers")] = 64
    queries: Annotated[int, Meta(ge=1, description="number of distinct queries")] = 1024
    batch: Annotated[int, Meta(ge=1, description="max queries per batch")] = 64


class RankingScores(msgspec.Struct, frozen=True):
    """Means over the questions for one ranking and one kind of query."""

    query: str
    """`question`; with gold sub-questions, also the other two kinds."""
    ranking: str
    """`dense`, `lexical` or `fused`."""
    hit: dict[int, float]
    """Share of questions with full evidence, by k."""
    recall: dict[int, float]
    """Mean share of a question's evidence, by k."""


class Load(msgspec.Struct, frozen=True):
    """Speed under concurrent callers, each of which searches again after each result."""

    passages: int
    batch: int
    """Max queries per batch."""
    queries_per_s: float
    median_ms: float
    p99_ms: float
    lone_median_ms: float
    """Median of a single caller."""


class Figures(msgspec.Struct, frozen=True):
    """Figures of the parts that ran."""

    passages: int | None
    """Passages of --data, as in the next three fields; None without it."""
    questions: int | None
    passages_per_s: float | None
    """Speed of embedding and indexing, BM25 included; None if the index existed."""
    queries_per_s: float | None
    """Speed of embedding and ranking in one batch, with all rankings."""
    scores: list[RankingScores]
    load: list[Load]
    checks: list[Check]


async def measure(options: Options) -> Figures:
    """Measure accuracy and load. Raises `BadRequest`, `BadCorpus`, `BadIndex` and the embedder's
    errors.
    """
    if options.data is None and not options.load:
        raise BadRequest("nothing to measure; give --data DIR, --load N, or both.")
    embedder = MiniLM()
    passages = None
    asked = None
    found = list[RankingScores]()
    indexed = None
    ranked = None
    loads = list[Load]()
    checks = list[Check]()
    with tempfile.TemporaryDirectory() as scratch:
        if options.data:
            questions = read_questions(
                options.data / "questions.jsonl",
                options.format,
                sub_questions=options.gold_sub_questions,
            )
            folder = options.index or Path(scratch) / "index"
            index, indexed = _indexed(options.data / "corpus.jsonl", folder, embedder)
            passages = len(index.passages)
            asked = len(questions)
            found, ranked = _ranked(
                index, embedder, questions, sub_questions=options.gold_sub_questions
            )
        drawing = RandomEmbedder()
        for number in options.load:
            corpus = Path(scratch) / "corpus.jsonl"
            folder = Path(scratch) / str(number)
            corpus.write_bytes(msgspec.json.Encoder().encode_lines(mini_world_passages(number)))
            build_index([corpus], folder, drawing)
            rows, different = await searched(Index.open(folder, drawing), drawing, options)
            loads += rows
            seen = f"{different} of {number} passages"
            checks.append(Check("queries find the same both ways", not different, seen))
    return Figures(
        passages,
        asked,
        indexed,
        ranked,
        found,
        loads,
        checks,
    )


def read_questions(
    path: Path, form: Format | None = None, *, sub_questions: bool = False
) -> list[BenchmarkQuestion]:
    """Read the questions of a file. Raises `BadCorpus`, with file and line, for a question without
    supporting passages, or with `sub_questions` for one without gold decomposition.
    """
    questions = []
    for entry in read_entries(path, form):
        if not entry.question.supporting:
            raise BadCorpus(
                f"{entry.where}: no supporting_doc_ids, so hits cannot be measured; add some."
            )
        if sub_questions and not entry.question.decomposition:
            raise BadCorpus(
                f"{entry.where}: no decomposition; omit --gold-sub-questions, or use MuSiQue."
            )
        questions.append(entry.question)
    return questions


def _indexed(corpus: Path, folder: Path, embedder: Embedder) -> tuple[Index, float | None]:
    """Build or open an index; return it with the passages indexed per second."""
    embedder.embed(["warm up"], queries=False)  # loads the model before the clock starts
    started = time.perf_counter()
    with progress_bar() as bar:
        tasks = {stage: bar.add_task(stage, total=None) for stage in ("reading", "embedding")}
        built = build_index(
            [corpus],
            folder,
            embedder,
            lexical=True,
            progress=lambda stage, done, total: bar.update(
                tasks[stage], completed=done, total=total
            ),
        )
    elapsed_s = time.perf_counter() - started
    return Index.open(folder, embedder), built.embedded / elapsed_s if built.embedded else None


def _ranked(
    index: Index,
    embedder: Embedder,
    questions: Sequence[BenchmarkQuestion],
    *,
    sub_questions: bool,
) -> tuple[list[RankingScores], float]:
    """Return the accuracy of all rankings, and the queries per second."""
    steps = [question.sub_questions if sub_questions else () for question in questions]
    queries = list[str]()
    for question, asked in zip(questions, steps, strict=True):
        queries += (question.question, *asked)
    started = time.perf_counter()
    assert index.lexical is not None
    dense = index.dense.search(embedder.embed(queries, queries=True), DEPTH)
    lexical = index.lexical.search(queries, DEPTH)
    fused = [fuse(rankings, DEPTH) for rankings in zip(dense, lexical, strict=True)]
    per_s = len(queries) / (time.perf_counter() - started)
    found: list[RankingScores] = []
    for name, hits in (("dense", dense), ("lexical", lexical), ("fused", fused)):
        documents = iter([_documents(index, query_hits) for query_hits in hits])
        ranked = [list(islice(documents, 1 + len(asked))) for asked in steps]
        found += _found(name, questions, ranked)
    order = (QUESTION, AS_MANY, SUB_QUESTIONS)
    return sorted(found, key=lambda row: order.index(row.query)), per_s


def _found(
    ranking: str, questions: Sequence[BenchmarkQuestion], ranked: Sequence[Sequence[Sequence[str]]]
) -> Iterator[RankingScores]:
    """Yield the accuracy of a ranking for each kind of query. `ranked`: for each question, the
    documents found by it, then by each of its sub-questions.
    """
    kinds: dict[str, Callable[[Sequence[Sequence[str]], int], Collection[str]]] = {
        QUESTION: lambda found, k: found[0][:k],
        AS_MANY: lambda found, k: found[0][: k * (len(found) - 1)],
        SUB_QUESTIONS: lambda found, k: set[str]().union(
            *(documents[:k] for documents in found[1:])
        ),
    }
    with_sub_questions = any(len(found) > 1 for found in ranked)
    for query in kinds if with_sub_questions else (QUESTION,):
        hit = {}
        recall = {}
        for k in CUTS:
            shares = [
                fmean(document in kinds[query](found, k) for document in set(question.supporting))
                for question, found in zip(questions, ranked, strict=True)
            ]
            hit[k] = fmean(share == 1 for share in shares)
            recall[k] = fmean(shares)
        yield RankingScores(query, ranking, hit, recall)


def _documents(index: Index, hits: Sequence[Hit]) -> list[str]:
    """Return the corpus rows of the hits, each once; a long row may be split into several
    passages.
    """
    return list(dict.fromkeys(index.passages[hit.row].document.partition("#")[2] for hit in hits))


async def searched(index: Index, embedder: Embedder, options: Options) -> tuple[list[Load], int]:
    """Search with distinct queries one by one and in batches. Return the load figures, and the
    number of queries with different results. Raises the embedder's errors.
    """
    asked = _queries(index, options.queries + _SINGLE)
    single = asked[:_SINGLE]
    asked = asked[_SINGLE:]
    sizes = 1, options.batch
    ways = [
        IndexSearcher(
            index,
            embedder,
            max_batch=most,
            cache=0,
        )
        for most in sizes
    ]
    found: list[dict[str, list[Passage]]] = [{} for _ in ways]
    waited_s: list[list[float]] = [[] for _ in ways]
    elapsed_s = [0.0 for _ in ways]

    async def ask(at: int, queries: Sequence[str], callers: int) -> list[float]:
        async def search(query: str) -> None:
            (found[at][query],) = await ways[at].search([query], _TOP_K)

        return await in_flight(timed(search), queries, callers, "searching")

    try:
        for at in range(len(ways)):
            await ask(at, single, 1)  # warms up
        for turn, at in product(range(_TURNS), range(len(ways))):
            begun = time.perf_counter()
            waited_s[at] += await ask(at, asked[turn::_TURNS], options.callers)
            elapsed_s[at] += time.perf_counter() - begun
        single_s = [statistics.median(await ask(at, single, 1)) for at in range(len(ways))]
    finally:
        for way in ways:
            await way.close()

    rows = [
        Load(
            len(index.passages),
            sizes[at],
            len(waited_s[at]) / elapsed_s[at],
            1000 * statistics.median(waited_s[at]),
            1000 * quantile(waited_s[at], 0.99),
            1000 * single_s[at],
        )
        for at in range(len(ways))
    ]
    return rows, sum(found[0][query] != found[1][query] for query in asked)


class RandomEmbedder(MiniLM):
    """Embedder with random vectors for passages and real ones for queries."""

    def __init__(self) -> None:
        super().__init__()
        self._rng = np.random.default_rng(0)

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        """See `Embedder.embed`."""
        if queries:
            return super().embed(texts, queries=True)
        drawn = self._rng.standard_normal((len(texts), self.dimension), np.float32)
        drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
        return drawn


def mini_world_passages(number: int | None = None) -> Iterator[Passage]:
    """Yield `number` passages from as many worlds as needed, or endlessly; always the same ones."""
    rows = (
        msgspec.structs.replace(passage, id=f"{seed}-{passage.id}")
        for seed in count()
        for passage in Library(World(seed, "train")).passages
    )
    return islice(rows, number)


def _queries(index: Index, number: int) -> list[str]:
    """Return distinct queries, each with the title and three to twelve words of a passage."""
    rng = random.Random(0)
    queries = dict[str, None]()
    while len(queries) < number:
        passage = index.passages[rng.randrange(len(index.passages))]
        words = passage.text.split()
        start = rng.randrange(len(words))
        queries[f"{passage.title} {' '.join(words[start : start + rng.randint(3, 12)])}"] = None
    return list(queries)
