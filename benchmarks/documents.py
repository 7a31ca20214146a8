"""Whether questions about your own documents find the passage that answers them.

The questions are JSON lines, `{"question", "document", "phrase"}`: a hit is a passage of a document whose name begins
with `document`, with `phrase` in its text, among the k best.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from router.errors import BadCorpus
from router.protocol.evidence import Passage
from serving.files import write_atomically
from serving.retrieval.build import build_index
from serving.retrieval.embedder import MiniLM
from serving.retrieval.index import Index

CUTS = (1, 3, 5, 10)


class Question(msgspec.Struct, frozen=True):
    """A question with what shows that it was found."""

    question: str
    document: str
    phrase: str


class Figures(msgspec.Struct, frozen=True):
    """What one run measured."""

    documents: int
    skipped: list[str]
    passages: int
    questions: int
    hit: dict[str, dict[int, float]]
    """By ranking (`dense`, `fused`) and k: the share of questions with a hit among the first k."""
    missed: dict[str, list[str]]
    """By ranking: the questions without a hit among the first five."""


def main(argv: Sequence[str]) -> int:
    """Index the documents, ask, print a table and write the figures as JSON. Raises `RolegateError`."""
    parser = argparse.ArgumentParser("rolegate bench documents", description=__doc__)
    parser.add_argument("--documents", type=Path, nargs="+", required=True, metavar="PATH", help="files and folders")
    parser.add_argument("--questions", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument("--json", type=Path, required=True, help="where to write the figures")
    parser.add_argument("--index", type=Path, help="keep the index in this folder, and use it if it is there")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch, Console(stderr=True).status("indexing") as status:
        figures = measure(
            options.documents,
            read_questions(options.questions),
            options.index or Path(scratch) / "index",
            lambda stage, done, total: status.update(f"{stage}, {done} of {total}"),
        )
    options.json.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.json, msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    _print(figures, Console(soft_wrap=True))
    return 0


def measure(
    places: Sequence[Path], questions: Sequence[Question], folder: Path, progress: Callable[[str, int, int], None]
) -> Figures:
    """Rank the passages of the documents for every question. Raises what building the index raises."""
    embedder = MiniLM()
    built = build_index(places, folder, embedder, lexical=True, progress=progress)
    index = Index.open(folder, embedder)
    asked = [question.question for question in questions]
    vectors = embedder.embed(asked, queries=True)
    dense = Index(index.manifest, index.passages, index.dense, None)
    ranks = {
        name: [_rank(*pair) for pair in zip(questions, ranking.search(vectors, asked, max(CUTS)), strict=True)]
        for name, ranking in (("dense", dense), ("fused", index))
    }
    return Figures(
        documents=built.documents,
        skipped=[entry.error for entry in built.skipped],
        passages=built.manifest.passages,
        questions=len(questions),
        hit={name: {k: sum(rank <= k for rank in found) / len(found) for k in CUTS} for name, found in ranks.items()},
        missed={
            name: [question for question, rank in zip(asked, found, strict=True) if rank > 5]
            for name, found in ranks.items()
        },
    )


def read_questions(path: Path) -> list[Question]:
    """The questions of a file of JSON lines. Raises `BadCorpus`."""
    try:
        questions = msgspec.json.Decoder(Question).decode_lines(path.read_bytes())
    except OSError as error:
        raise BadCorpus(f"{path}: cannot be read ({error.strerror}); name a file of JSON lines.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadCorpus(f"{path}: {error}; a question needs question, document and phrase.") from error
    if not questions:
        raise BadCorpus(f"{path}: no questions; write one a line.")
    return questions


def _rank(question: Question, found: Sequence[Passage]) -> float:
    """Where the first hit is, from 1; infinity where there is none."""
    phrase = " ".join(question.phrase.casefold().split())
    for rank, passage in enumerate(found, 1):
        text = " ".join(passage.text.casefold().split())
        if passage.document.startswith(question.document) and phrase in text:
            return rank
    return float("inf")


def _print(figures: Figures, console: Console) -> None:
    title = f"{figures.questions} questions over {figures.documents} documents, {figures.passages} passages"
    table = Table("ranking", *(f"hit@{k}" for k in CUTS), title=title)
    for name, hit in figures.hit.items():
        table.add_row(name, *(f"{hit[k]:.3f}" for k in CUTS))
    console.print(table)
    for line in figures.skipped:
        console.out(f"skipped: {line}", highlight=False)
    for name, questions in figures.missed.items():
        for question in questions:
            console.out(f"missed by {name}: {question}", highlight=False)
