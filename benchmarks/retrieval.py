"""How much of the evidence a question needs is found by one search with the question itself, and how fast.

A question counts as hit at k where all of its supporting passages are among the k best (full evidence).
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from router.errors import BadCorpus
from serving.retrieval.atomic_file import write_atomically
from serving.retrieval.build import build_index
from serving.retrieval.embedder import Embedder, MiniLM
from serving.retrieval.fusion import DEPTH, fuse
from serving.retrieval.hit import Hit
from serving.retrieval.index import Index

CUTS = (1, 3, 5, 10)


class Question(msgspec.Struct, frozen=True):
    """A question of the benchmark; further fields of its file are left alone."""

    id: str
    question: str
    supporting_doc_ids: tuple[str, ...]


class Figures(msgspec.Struct, frozen=True):
    """What one run measured."""

    data: str
    """The name of the data folder."""
    embedder: str
    passages: int
    questions: int
    passages_per_s: float | None
    """Embedded and indexed, BM25 included; None where the index was there already."""
    questions_per_s: float
    """Embedded and ranked in one batch, by all rankings."""
    hit: dict[str, dict[int, float]]
    """By ranking (`dense`, `lexical`, `fused`) and k: the share of questions with full evidence in the first k."""


def main(argv: Sequence[str]) -> int:
    """Run the benchmark, print a table and write the figures as JSON. Raises `RolegateError`."""
    parser = argparse.ArgumentParser(
        "rolegate bench retrieval", description="Full-evidence hit@k of dense, lexical and fused search."
    )
    parser.add_argument("--data", type=Path, required=True, help="a folder with corpus.jsonl and questions.jsonl")
    parser.add_argument("--json", type=Path, required=True, help="where to write the figures")
    parser.add_argument("--index", type=Path, help="keep the index in this folder, and use it if it is there")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(options.data, options.index or Path(scratch) / "index", MiniLM())
    options.json.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.json, msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    Console().print(_table(figures))
    return 0


def measure(data: Path, index_folder: Path, embedder: Embedder) -> Figures:
    """Rank the corpus for every question. Raises `BadCorpus`, `BadIndex` and what the embedder raises."""
    questions = read_questions(data / "questions.jsonl")
    index, passages_per_s = _indexed(data / "corpus.jsonl", index_folder, embedder)
    started = time.perf_counter()
    rankings = _rankings(index, embedder, [question.question for question in questions])
    elapsed_s = time.perf_counter() - started
    return Figures(
        data=data.name,
        embedder=embedder.identity,
        passages=len(index.passages),
        questions=len(questions),
        passages_per_s=passages_per_s,
        questions_per_s=len(questions) / elapsed_s,
        hit={name: _hit_at(index, questions, hits) for name, hits in rankings.items()},
    )


def read_questions(path: Path) -> list[Question]:
    """The questions of a file of JSON lines. Raises `BadCorpus`, naming file and line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BadCorpus(f"{path}: cannot be read ({error.strerror}); name a folder with questions.jsonl.") from error
    questions = [_question(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not questions:
        raise BadCorpus(f"{path}: no questions; name a folder with some.")
    return questions


def _question(line: bytes, where: str) -> Question:
    try:
        return msgspec.json.decode(line, type=Question)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadCorpus(f"{where}: {error}; a question needs id, question and supporting_doc_ids.") from error


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


def _hit_at(index: Index, questions: Sequence[Question], rankings: Sequence[Sequence[Hit]]) -> dict[int, float]:
    found = [_documents(index, hits, max(CUTS)) for hits in rankings]
    return {
        k: sum(set(question.supporting_doc_ids) <= set(ids[:k]) for question, ids in zip(questions, found, strict=True))
        / len(questions)
        for k in CUTS
    }


def _documents(index: Index, hits: Sequence[Hit], most: int) -> list[str]:
    """The first `most` rows of the corpus that the hits are of; a long row may have been cut into several passages."""
    return list(dict.fromkeys(index.passages[hit.row].document for hit in hits))[:most]


def _table(figures: Figures) -> Table:
    speed = "" if figures.passages_per_s is None else f", {figures.passages_per_s:.0f} passages/s indexed"
    table = Table(
        "ranking",
        *(f"hit@{k}" for k in CUTS),
        title=f"{figures.data}: {figures.questions} questions, {figures.passages} passages",
        caption=f"{figures.embedder}{speed}, {figures.questions_per_s:.0f} questions/s",
    )
    for name, hit in figures.hit.items():
        table.add_row(name, *(f"{hit[k]:.3f}" for k in CUTS))
    return table
