"""How much of the evidence that a question takes is found by searching with the question itself, and how fast.

A question counts as hit at k where all of its supporting passages are found (full evidence); recall is the share of
them. Where gold sub-questions are the queries, each of them brings its first k passages, which is what a faultless
delegator would see; beside it stands the question itself with as many passages as they bring in all.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.datasets.reader import read_entries
from router.errors import BadCorpus
from serving.files import write_atomically
from serving.retrieval.build import build_index
from serving.retrieval.dense import Hit
from serving.retrieval.embedder import Embedder, MiniLM
from serving.retrieval.index import DEPTH, Index, fuse

CUTS = (1, 3, 5, 10)
WHOLE, AS_MANY, SUB_QUESTIONS = "question", "question, as many passages", "gold sub-questions"


class Found(msgspec.Struct, frozen=True):
    """What one ranking found, by k: means over the questions."""

    hit: dict[int, float]
    """The share of questions with full evidence."""
    recall: dict[int, float]
    """The share of a question's evidence."""


class Figures(msgspec.Struct, frozen=True):
    """What one run measured."""

    data: str
    """The name of the data folder."""
    embedder: str
    passages: int
    questions: int
    passages_per_s: float | None
    """Embedded and indexed, BM25 included; None where the index was there already."""
    queries_per_s: float
    """Embedded and ranked in one batch, by all rankings."""
    found: dict[str, dict[str, Found]]
    """By query (`question`; with gold sub-questions, the other two) and ranking (`dense`, `lexical`, `fused`)."""


def main(argv: Sequence[str]) -> int:
    """Run the benchmark, print a table and write the figures as JSON. Raises `RolegateError`."""
    parser = argparse.ArgumentParser(
        "rolegate bench retrieval", description="Full-evidence hit@k and recall@k of dense, lexical and fused search."
    )
    parser.add_argument("--data", type=Path, required=True, help="a folder with corpus.jsonl and questions.jsonl")
    parser.add_argument("--json", type=Path, required=True, help="where to write the figures")
    parser.add_argument("--index", type=Path, help="keep the index in this folder, and use it if it is there")
    parser.add_argument(
        "--gold-sub-questions", action="store_true", help="search with each question's sub-questions too"
    )
    parser.add_argument("--picture", type=Path, metavar="PNG", help="draw the figures")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        index = options.index or Path(scratch) / "index"
        figures = measure(options.data, index, MiniLM(), sub_questions=options.gold_sub_questions)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.json, msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    if options.picture:
        from benchmarks.retrieval_picture import draw

        draw(figures, options.picture)
    Console().print(*_tables(figures), _speed(figures), sep="\n")
    return 0


def measure(data: Path, index_folder: Path, embedder: Embedder, *, sub_questions: bool = False) -> Figures:
    """Rank the corpus for every question. Raises `BadCorpus`, `BadIndex` and what the embedder raises."""
    questions = read_questions(data / "questions.jsonl", sub_questions=sub_questions)
    index, passages_per_s = _indexed(data / "corpus.jsonl", index_folder, embedder)
    steps = [question.sub_questions if sub_questions else () for question in questions]
    queries = [query for question, asked in zip(questions, steps, strict=True) for query in (question.question, *asked)]
    started = time.perf_counter()
    rankings = _rankings(index, embedder, queries)
    elapsed_s = time.perf_counter() - started
    found: dict[str, dict[str, Found]] = {}
    for name, hits in rankings.items():
        documents = iter([_documents(index, each) for each in hits])
        ranked = [[next(documents) for _ in range(1 + len(asked))] for asked in steps]
        for query, each in _found(questions, ranked).items():
            found.setdefault(query, {})[name] = each
    return Figures(
        data=data.name,
        embedder=embedder.identity,
        passages=len(index.passages),
        questions=len(questions),
        passages_per_s=passages_per_s,
        queries_per_s=len(queries) / elapsed_s,
        found=found,
    )


def read_questions(path: Path, *, sub_questions: bool = False) -> list[BenchmarkQuestion]:
    """The questions of a file. Raises `BadCorpus`, with file and line, at one that names no supporting passages, or has
    no gold decomposition where `sub_questions` are wanted.
    """
    questions = []
    for entry in read_entries(path):
        if not entry.question.supporting:
            raise BadCorpus(f"{entry.where}: no supporting_doc_ids, so that nothing can be missed; name some.")
        if sub_questions and not entry.question.decomposition:
            raise BadCorpus(f"{entry.where}: no decomposition; leave --gold-sub-questions out, or take MuSiQue.")
        questions.append(entry.question)
    return questions


def _indexed(corpus: Path, folder: Path, embedder: Embedder) -> tuple[Index, float | None]:
    embedder.embed(["warm up"], queries=False)  # loading the model is not indexing
    started = time.perf_counter()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks = {stage: bar.add_task(stage, total=None) for stage in ("reading", "embedding")}
        built = build_index(
            [corpus],
            folder,
            embedder,
            lexical=True,
            progress=lambda stage, done, total: bar.update(tasks[stage], completed=done, total=total),
        )
    elapsed_s = time.perf_counter() - started
    return Index.open(folder, embedder), built.embedded / elapsed_s if built.embedded else None


def _rankings(index: Index, embedder: Embedder, questions: Sequence[str]) -> dict[str, list[list[Hit]]]:
    assert index.lexical is not None
    dense = index.dense.search(embedder.embed(questions, queries=True), DEPTH)
    lexical = index.lexical.search(questions, DEPTH)
    fused = [fuse(rankings, DEPTH) for rankings in zip(dense, lexical, strict=True)]
    return {"dense": dense, "lexical": lexical, "fused": fused}


def _found(questions: Sequence[BenchmarkQuestion], ranked: Sequence[Sequence[Sequence[str]]]) -> dict[str, Found]:
    """`ranked`: for each question, the documents that it found, then those that each of its sub-questions found."""
    found = {WHOLE: _scored(questions, lambda at, k: ranked[at][0][:k])}
    if any(len(each) > 1 for each in ranked):
        found[AS_MANY] = _scored(questions, lambda at, k: ranked[at][0][: k * (len(ranked[at]) - 1)])
        found[SUB_QUESTIONS] = _scored(questions, lambda at, k: {one for each in ranked[at][1:] for one in each[:k]})
    return found


def _scored(questions: Sequence[BenchmarkQuestion], documents: Callable[[int, int], Collection[str]]) -> Found:
    """`documents`: what the question at a position sees at k."""
    recall = {
        k: [
            len(set(question.supporting).intersection(documents(at, k))) / len(set(question.supporting))
            for at, question in enumerate(questions)
        ]
        for k in CUTS
    }
    return Found(
        {k: fmean(share == 1 for share in each) for k, each in recall.items()},
        {k: fmean(each) for k, each in recall.items()},
    )


def _documents(index: Index, hits: Sequence[Hit]) -> list[str]:
    """The rows of the corpus that the hits are of; a long row may have been cut into several passages."""
    return list(dict.fromkeys(index.passages[hit.row].document.partition("#")[2] for hit in hits))


def _tables(figures: Figures) -> Iterator[Table]:
    """One for each kind of query, none wider than a terminal."""
    columns = [f"{name}@{k}" if k == CUTS[0] else f"@{k}" for name in ("hit", "recall") for k in CUTS]
    title = f"{figures.data}: {figures.questions} questions, {figures.passages} passages"
    for query, rankings in figures.found.items():
        table = Table("", *columns, title=f"{title}; by {query}")
        for ranking, found in rankings.items():
            table.add_row(ranking, *(f"{each[k]:.3f}" for each in (found.hit, found.recall) for k in CUTS))
        yield table


def _speed(figures: Figures) -> str:
    indexed = "" if figures.passages_per_s is None else f", {figures.passages_per_s:.0f} passages/s indexed"
    return f"{figures.embedder}{indexed}, {figures.queries_per_s:.0f} queries/s"
