"""How many searches a second an index in this process is good for when many callers ask at once: each query embedded
and searched for alone, against batches of whatever is waiting, in turns over the same distinct queries; and whether
each query finds the same passages, in the same order and with the same scores, both ways. The cache of queries is
measured apart, and off otherwise.

The larger the index, the more a batch saves, as all its queries go over the vectors together; embedding gains less.
The passages are those of mini worlds. Only the first ones are embedded, as that takes long; the vectors of the others
are theirs, moved a little.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.world import World
from router.protocol.evidence import Passage
from serving.files import write_atomically
from serving.retrieval.build import build_index
from serving.retrieval.embedder import Embedder, MiniLM, Vectors
from serving.retrieval.index import Index
from serving.retrieval.searcher import IndexSearcher

_EMBEDDED, _MOVED = 2_000, 0.5
_TURNS, _LONE, _TOP_K = 4, 32, 3
Found = dict[str, list[Passage]]


class Load(msgspec.Struct, frozen=True):
    """Searches of many callers, each of whom asks again as soon as it has an answer."""

    queries_per_s: float
    median_ms: float
    p99_ms: float
    lone_median_ms: float
    """Of a caller who is alone."""


class Figures(msgspec.Struct, frozen=True):
    """What was measured of one index."""

    passages: int
    callers: int
    queries: int
    batch: int
    """Queries of a batch, at most."""
    unbatched: Load
    batched: Load
    cached_queries_per_s: float
    """Of batched callers whose queries were all asked before."""
    times_the_throughput: float
    different: int
    """Queries that did not find the same passages in the same order with the same scores."""


def main(argv: Sequence[str]) -> int:
    """Run it, print a table and write the figures as JSON; 1 where results differ. Raises `RolegateError`."""
    parser = argparse.ArgumentParser(
        "rolegate bench retrieval-load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--passages", type=int, nargs="+", default=[10_000, 100_000, 300_000], metavar="N", help="sizes to measure"
    )
    parser.add_argument("--callers", type=int, default=64, metavar="N", help="who ask at once (default: 64)")
    parser.add_argument("--queries", type=int, default=1024, metavar="N", help="all different (default: 1024)")
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="queries at most (default: 64)")
    parser.add_argument("--json", type=Path, required=True, help="where to write the figures")
    given = parser.parse_args(argv)
    figures: list[Figures] = []
    with tempfile.TemporaryDirectory() as scratch, Console(stderr=True).status("") as status:
        embedder = MovingEmbedder(MiniLM())
        for passages in given.passages:
            status.update(f"building an index of {passages} passages")
            index = _indexed(passages, Path(scratch), embedder)
            status.update(f"searching {passages} passages")
            figures.append(asyncio.run(measure(index, embedder, given.callers, given.queries, given.batch)))
    given.json.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(given.json, msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    for each in figures:
        Console().print(_table(each))
    return int(any(each.different for each in figures))


async def measure(index: Index, embedder: Embedder, callers: int, queries: int, batch: int) -> Figures:
    """Search for so many different queries both ways. Raises what the embedder raises."""
    asked = _queries(index, queries + _LONE)
    lone, asked = asked[:_LONE], asked[_LONE:]
    ways = [IndexSearcher(index, embedder, most=most, cache=0) for most in (1, batch)]
    cached = IndexSearcher(index, embedder, most=batch, cache=len(asked))
    try:
        for way in ways:
            await _asked(way, lone, 1)  # warm
        runs: list[list[_Run]] = [[], []]
        for turn in range(_TURNS):
            for way, done in zip(ways, runs, strict=True):
                done.append(await _asked(way, asked[turn::_TURNS], callers))
        alone = [await _asked(way, lone, 1) for way in ways]
        await _asked(cached, asked, callers)
        again = await _asked(cached, asked, callers)
    finally:
        for way in (*ways, cached):
            await way.close()
    unbatched, batched = (_load(done, one) for done, one in zip(runs, alone, strict=True))
    found = [{query: passages for run in done for query, passages in run.found.items()} for done in runs]
    return Figures(
        passages=len(index.passages),
        callers=callers,
        queries=len(asked),
        batch=batch,
        unbatched=unbatched,
        batched=batched,
        cached_queries_per_s=len(asked) / again.elapsed_s,
        times_the_throughput=batched.queries_per_s / unbatched.queries_per_s,
        different=sum(found[0][query] != found[1][query] for query in asked),
    )


class _Run(msgspec.Struct):
    """What callers were given, and when."""

    found: Found
    waited_s: list[float]
    elapsed_s: float


async def _asked(searcher: IndexSearcher, queries: Sequence[str], callers: int) -> _Run:
    run, left, began = _Run({}, [], 0.0), iter(queries), time.perf_counter()

    async def ask() -> None:
        for query in left:
            asked = time.perf_counter()
            (run.found[query],) = await searcher.search([query], _TOP_K)
            run.waited_s.append(time.perf_counter() - asked)

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(ask())
    run.elapsed_s = time.perf_counter() - began
    return run


def _load(runs: Sequence[_Run], alone: _Run) -> Load:
    waited_ms = sorted(1000 * waited for run in runs for waited in run.waited_s)
    return Load(
        queries_per_s=len(waited_ms) / sum(run.elapsed_s for run in runs),
        median_ms=statistics.median(waited_ms),
        p99_ms=waited_ms[int(0.99 * len(waited_ms))],
        lone_median_ms=1000 * statistics.median(alone.waited_s),
    )


class MovingEmbedder:
    """Embeds the first passages that it sees, and moves their vectors for all others; queries it always embeds."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.identity, self.dimension, self.max_tokens = embedder.identity, embedder.dimension, embedder.max_tokens
        self.count_tokens = embedder.count_tokens
        self._rng = np.random.default_rng(0)
        self._known = np.empty((0, self.dimension), dtype=np.float32)

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        """As `Embedder.embed`."""
        if queries:
            return self._embedder.embed(texts, queries=True)
        if len(self._known) < _EMBEDDED:
            vectors = self._embedder.embed(texts, queries=False)
            self._known = np.concatenate((self._known, vectors))
            return vectors
        noise = self._rng.normal(0, _MOVED / self.dimension**0.5, (len(texts), self.dimension))
        moved = self._known[self._rng.integers(len(self._known), size=len(texts))] + noise
        moved /= np.linalg.norm(moved, axis=1, keepdims=True)
        return moved.astype(np.float32)


def _indexed(passages: int, scratch: Path, embedder: Embedder) -> Index:
    corpus, folder = scratch / "corpus.jsonl", scratch / str(passages)
    corpus.write_bytes(msgspec.json.Encoder().encode_lines(mini_world_passages(passages)))
    build_index([corpus], folder, embedder)
    return Index.open(folder, embedder)


def mini_world_passages(number: int) -> list[Passage]:
    """So many passages of as many worlds as it takes; the same ones every time."""
    rows = (
        msgspec.structs.replace(passage, id=f"{seed}-{passage.id}")
        for seed in count()
        for passage in Library(World(seed, "train")).passages
    )
    return list(islice(rows, number))


def _queries(index: Index, number: int) -> list[str]:
    """Different ones, of three to twelve words of a passage each."""
    rng, queries = random.Random(0), dict[str, None]()
    while len(queries) < number:
        passage = index.passages[rng.randrange(len(index.passages))]
        words = passage.text.split()
        start = rng.randrange(len(words))
        queries[f"{passage.title} {' '.join(words[start : start + rng.randint(3, 12)])}"] = None
    return list(queries)


def _table(figures: Figures) -> Table:
    table = Table(
        "searches of one query each",
        title=f"{figures.callers} callers, {figures.queries} different queries, {figures.passages} passages",
        caption=f"{figures.times_the_throughput:.1f} times the throughput; {figures.different} queries found something "
        f"else; {figures.cached_queries_per_s:.0f} queries/s from the cache",
    )
    for column in ("queries/s", "median ms", "p99 ms", "alone ms"):
        table.add_column(column, justify="right")
    ways = {"one by one": figures.unbatched, f"batches of up to {figures.batch}": figures.batched}
    for name, load in ways.items():
        numbers = (load.queries_per_s, load.median_ms, load.p99_ms, load.lone_median_ms)
        table.add_row(name, *(f"{number:.1f}" for number in numbers))
    return table
