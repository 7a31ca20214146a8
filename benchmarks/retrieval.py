"""Retrieval's accuracy, speed and load.

With --data: how much of the evidence that a question takes is found by searching with the question
itself. A question counts as hit at k where all of its supporting passages are found (full
evidence); recall is the share of them. Where gold sub-questions are the queries, each of them
brings its first k passages, which is what a faultless delegator would see; beside it stands the
question itself with as many passages as they bring in all.

With --load: how many searches a second an index is good for when many callers ask at once, each
query searched for alone, against batches of whatever is waiting, in turns over the same distinct
queries; and whether each query finds the same both ways. The larger the index, the more a batch
saves, as all its queries go over the vectors together. Passages are those of mini worlds. They are
not embedded, as that takes long: their vectors are drawn.
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
WHOLE = "question"
AS_MANY = "question, as many passages"
SUB_QUESTIONS = "gold sub-questions"
_TURNS = 4
_LONE = 32
_TOP_K = 3


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    data: (
        Annotated[Path, Meta(description="a folder with corpus.jsonl and questions.jsonl")] | None
    ) = None
    format: (
        Annotated[Format, Meta(description="of its questions, if not what a row looks like")] | None
    ) = None
    index: (
        Annotated[
            Path, Meta(description="keep its index in this folder, and use it if it is there")
        ]
        | None
    ) = None
    gold_sub_questions: Annotated[
        bool, Meta(description="search with each question's sub-questions too")
    ] = False
    load: Annotated[
        tuple[int, ...], Meta(description="passages of indexes to search, as 10000 100000 300000")
    ] = ()
    callers: Annotated[int, Meta(ge=1, description="who ask at once")] = 64
    queries: Annotated[int, Meta(ge=1, description="all different")] = 1024
    batch: Annotated[int, Meta(ge=1, description="queries at most")] = 64


class Found(msgspec.Struct, frozen=True):
    """Figures of one ranking for one kind of query: means over the questions."""

    query: str
    """`question`; with gold sub-questions, the other two, too."""
    ranking: str
    """`dense`, `lexical` or `fused`."""
    hit: dict[int, float]
    """By k: the share of questions with full evidence."""
    recall: dict[int, float]
    """By k: the share of a question's evidence."""


class Load(msgspec.Struct, frozen=True):
    """Searches of many callers, each of whom asks again as soon as it has an answer."""

    passages: int
    batch: int
    """Queries of a batch, at most."""
    queries_per_s: float
    median_ms: float
    p99_ms: float
    lone_median_ms: float
    """Of a caller who is alone."""


class Figures(msgspec.Struct, frozen=True):
    """Figures of the parts that were asked for."""

    passages: int | None
    """Of --data, as the next three."""
    questions: int | None
    passages_per_s: float | None
    """Embedded and indexed, BM25 included; None where the index was there already."""
    queries_per_s: float | None
    """Embedded and ranked in one batch, by all rankings."""
    found: list[Found]
    load: list[Load]
    checks: list[Check]


async def measure(options: Options) -> Figures:
    """Measure. Raises `BadRequest`, `BadCorpus`, `BadIndex` and what the embedder raises."""
    if options.data is None and not options.load:
        raise BadRequest("nothing to measure; give --data DIR, --load N, or both.")
    embedder = MiniLM()
    passages = None
    asked = None
    found = list[Found]()
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
            checks.append(
                Check(
                    "queries find the same both ways",
                    not different,
                    f"{different} of {number} passages",
                )
            )
    return Figures(passages, asked, indexed, ranked, found, loads, checks)


def read_questions(
    path: Path, form: Format | None = None, *, sub_questions: bool = False
) -> list[BenchmarkQuestion]:
    """The questions of a file. Raises `BadCorpus`, with file and line, at one that names no
    supporting passages, or has no gold decomposition where `sub_questions` are wanted.
    """
    questions = []
    for entry in read_entries(path, form):
        if not entry.question.supporting:
            raise BadCorpus(
                f"{entry.where}: no supporting_doc_ids, so that nothing can be missed; name some."
            )
        if sub_questions and not entry.question.decomposition:
            raise BadCorpus(
                f"{entry.where}: no decomposition; leave --gold-sub-questions out, or take MuSiQue."
            )
        questions.append(entry.question)
    return questions


def _indexed(corpus: Path, folder: Path, embedder: Embedder) -> tuple[Index, float | None]:
    embedder.embed(["warm up"], queries=False)  # loading the model is not indexing
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
    index: Index, embedder: Embedder, questions: Sequence[BenchmarkQuestion], *, sub_questions: bool
) -> tuple[list[Found], float]:
    """What all rankings find, and how many queries a second they go through."""
    steps = [question.sub_questions if sub_questions else () for question in questions]
    queries = [
        query
        for question, asked in zip(questions, steps, strict=True)
        for query in (question.question, *asked)
    ]
    started = time.perf_counter()
    assert index.lexical is not None
    dense = index.dense.search(embedder.embed(queries, queries=True), DEPTH)
    lexical = index.lexical.search(queries, DEPTH)
    fused = [fuse(rankings, DEPTH) for rankings in zip(dense, lexical, strict=True)]
    per_s = len(queries) / (time.perf_counter() - started)
    found: list[Found] = []
    for name, hits in (("dense", dense), ("lexical", lexical), ("fused", fused)):
        documents = iter([_documents(index, each) for each in hits])
        found += _found(
            name, questions, [[next(documents) for _ in range(1 + len(asked))] for asked in steps]
        )
    return sorted(found, key=lambda one: (WHOLE, AS_MANY, SUB_QUESTIONS).index(one.query)), per_s


def _found(
    ranking: str, questions: Sequence[BenchmarkQuestion], ranked: Sequence[Sequence[Sequence[str]]]
) -> Iterator[Found]:
    """`ranked`: for each question, the documents that it found, then those that each of its
    sub-questions found.
    """
    kinds: dict[str, Callable[[Sequence[Sequence[str]], int], Collection[str]]] = {
        WHOLE: lambda found, k: found[0][:k],
        AS_MANY: lambda found, k: found[0][: k * (len(found) - 1)],
        SUB_QUESTIONS: lambda found, k: {one for each in found[1:] for one in each[:k]},
    }
    for query in kinds if any(len(each) > 1 for each in ranked) else (WHOLE,):
        hit = {}
        recall = {}
        for k in CUTS:
            shares = [
                fmean(document in kinds[query](found, k) for document in set(question.supporting))
                for question, found in zip(questions, ranked, strict=True)
            ]
            hit[k] = fmean(share == 1 for share in shares)
            recall[k] = fmean(shares)
        yield Found(query, ranking, hit, recall)


def _documents(index: Index, hits: Sequence[Hit]) -> list[str]:
    """The rows of the corpus that the hits are of; a long row may have been cut into several
    passages.
    """
    return list(dict.fromkeys(index.passages[hit.row].document.partition("#")[2] for hit in hits))


async def searched(index: Index, embedder: Embedder, options: Options) -> tuple[list[Load], int]:
    """Search for so many different queries one by one and in batches; how many found something
    else. Raises what the embedder raises.
    """
    asked = _queries(index, options.queries + _LONE)
    lone = asked[:_LONE]
    asked = asked[_LONE:]
    sizes = 1, options.batch
    ways = [IndexSearcher(index, embedder, most=most, cache=0) for most in sizes]
    found: list[dict[str, list[Passage]]] = [{} for _ in ways]
    waited_s: list[list[float]] = [[] for _ in ways]
    elapsed_s = [0.0 for _ in ways]

    async def ask(at: int, queries: Sequence[str], callers: int) -> list[float]:
        async def search(query: str) -> None:
            (found[at][query],) = await ways[at].search([query], _TOP_K)

        return await in_flight(timed(search), queries, callers, "searching")

    try:
        for at in range(len(ways)):
            await ask(at, lone, 1)  # warm
        for turn, at in product(range(_TURNS), range(len(ways))):
            begun = time.perf_counter()
            waited_s[at] += await ask(at, asked[turn::_TURNS], options.callers)
            elapsed_s[at] += time.perf_counter() - begun
        lone_s = [statistics.median(await ask(at, lone, 1)) for at in range(len(ways))]
    finally:
        for way in ways:
            await way.close()
    rows = []
    for most, waited, elapsed, alone in zip(sizes, waited_s, elapsed_s, lone_s, strict=True):
        median_ms = 1000 * statistics.median(waited)
        p99_ms = 1000 * quantile(waited, 0.99)
        rows.append(
            Load(len(index.passages), most, len(waited) / elapsed, median_ms, p99_ms, 1000 * alone)
        )
    return rows, sum(found[0][query] != found[1][query] for query in asked)


class RandomEmbedder(MiniLM):
    """Draws vectors for passages, and embeds queries."""

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
    """So many passages of as many worlds as it takes, or without an end; the same ones every
    time.
    """
    rows = (
        msgspec.structs.replace(passage, id=f"{seed}-{passage.id}")
        for seed in count()
        for passage in Library(World(seed, "train")).passages
    )
    return islice(rows, number)


def _queries(index: Index, number: int) -> list[str]:
    """Different ones, of three to twelve words of a passage each."""
    rng = random.Random(0)
    queries = dict[str, None]()
    while len(queries) < number:
        passage = index.passages[rng.randrange(len(index.passages))]
        words = passage.text.split()
        start = rng.randrange(len(words))
        queries[f"{passage.title} {' '.join(words[start : start + rng.randint(3, 12)])}"] = None
    return list(queries)
