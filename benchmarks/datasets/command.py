"""Read published data sets, describe their content, and write it in the plain format of all other
commands.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from benchmarks import harness
from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.datasets.reader import read_entries
from router.protocol import Passage
from serving.cli.command import POSITIONAL
from serving.documents.rows import read_rows
from serving.files import replacing, write_atomically


class Options(harness.Options, frozen=True, kw_only=True):
    """Options of the command."""

    paths: Annotated[
        tuple[Path, ...], POSITIONAL, Meta(description="files, or folders with questions.jsonl")
    ]
    sample: (
        Annotated[int, Meta(ge=1, description="draw up to N questions of each data set")] | None
    ) = None
    seed: Annotated[int, Meta(description="seed of the sample")] = 42
    out: Annotated[Path, Meta(description="write the sample to this file")] | None = None
    corpus: Annotated[Path, Meta(description="write the paragraphs to this file")] | None = None


class QuestionCounts(msgspec.Struct, frozen=True):
    """Number of questions of a data set."""

    dataset: str
    split: str
    read: int
    sampled: int
    evidence: int
    """Questions with supporting passages."""


class Overview(msgspec.Struct, frozen=True):
    """Figures of the command."""

    files: dict[str, int]
    """Rows by file."""
    counts: list[QuestionCounts]
    passages: dict[str, int]
    """Passages of `corpus.jsonl`, by folder."""
    missing: dict[str, int]
    """Supporting passages that are not in `corpus.jsonl`, by folder."""


def measure(options: Options) -> Overview:
    """Read, count, draw and write. Raises `RolegateError`."""
    with _corpus(options.corpus) as pool:
        read = {path: list(_questions(path, pool)) for path in options.paths}
    questions = list(chain.from_iterable(read.values()))
    drawn = sample(questions, options.sample, options.seed) if options.sample else questions
    if options.out:
        write_atomically(options.out, msgspec.json.Encoder().encode_lines(drawn))
    corpora = {path: corpus for path in read if (corpus := path / "corpus.jsonl").is_file()}
    checked = {str(path): _checked(corpus, read[path]) for path, corpus in corpora.items()}
    return Overview(
        files={str(path): len(rows) for path, rows in read.items()},
        counts=_counted(questions, drawn),
        passages={path: passages for path, (passages, _) in checked.items()},
        missing={path: missing for path, (_, missing) in checked.items()},
    )


def sample(
    questions: Sequence[BenchmarkQuestion], limit: int, seed: int
) -> list[BenchmarkQuestion]:
    """Draw up to `limit` questions of each data set, independently of other data sets. Return them
    in their order.
    """
    positions: dict[str, list[int]] = {}
    for position, question in enumerate(questions):
        positions.setdefault(question.dataset, []).append(position)
    drawn: list[int] = []
    for name, own in positions.items():
        drawn += random.Random(f"{seed} {name}").sample(own, min(limit, len(own)))
    return [questions[position] for position in sorted(drawn)]


def _counted(
    questions: Sequence[BenchmarkQuestion], drawn: Sequence[BenchmarkQuestion]
) -> list[QuestionCounts]:
    """Count by data set and split, in the order of the questions."""
    with_evidence = [question for question in questions if question.supporting]
    columns = [
        Counter((question.dataset, question.split) for question in chosen)
        for chosen in (questions, drawn, with_evidence)
    ]
    return [
        QuestionCounts(*origin, *(column[origin] for column in columns)) for origin in columns[0]
    ]


@contextmanager
def _corpus(path: Path | None) -> Iterator[Callable[[Passage], None]]:
    """Yield a function that writes each passage to the file once; it remembers about 8 bytes of
    each.
    """
    if path is None:
        yield lambda _passage: None
        return
    seen: set[int] = set()
    with replacing(path) as unfinished, unfinished.open("wb") as file:

        def write(passage: Passage) -> None:
            if (name := int(passage.id, 16)) not in seen:
                seen.add(name)
                row = {"id": passage.id, "title": passage.title, "text": passage.text}
                file.write(msgspec.json.encode(row) + b"\n")

        yield write


def _questions(path: Path, pool: Callable[[Passage], None]) -> Iterator[BenchmarkQuestion]:
    for entry in read_entries(path):
        for passage in entry.passages:
            pool(passage)
        yield entry.question


def _checked(corpus: Path, questions: Sequence[BenchmarkQuestion]) -> tuple[int, int]:
    """Return the number of passages, and of supporting passages that are missing."""
    wanted = {passage for question in questions for passage in question.supporting}
    passages = 0
    for _, passage in read_rows(corpus):
        passages += 1
        wanted.discard(passage.id)
    return passages, len(wanted)
