"""Read published data sets, count the questions, and check that the questions' supporting passages
are in the corpus. Optionally write a sample of the questions in the plain format that all other
commands read.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated

import msgspec

from benchmarks import harness
from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.datasets.reader import read_entries
from executor_sft.command import Count
from executor_sft.jsonl import write_jsonl
from router.frozen import Frozen
from router.protocol import Passage
from serving.cli.command import POSITIONAL
from serving.documents.rows import read_rows
from serving.files import replacing


class Options(harness.Options):
    """Options of `rolegate bench datasets`."""

    paths: Annotated[tuple[Path, ...], POSITIONAL]
    """files of questions (JSON, JSON lines, CSV or XLSX) in the formats of HotpotQA,
    2WikiMultihopQA, MuSiQue, PopQA, Bamboogle, BrowseComp, FlashRAG or TBSS; or folders with
    questions.jsonl
    """
    sample: Count | None = None
    """choose at most this many questions of each data set at random (default: use all questions)"""
    seed: int = 42
    """seed of the random sample"""
    out: Path | None = None
    """write the chosen questions to this file (JSON lines)"""
    corpus: Path | None = None
    """write all paragraphs that the question files contain, as in HotpotQA, to this file, as
    documents to index (JSON lines)
    """


class QuestionCounts(Frozen):
    """Counts of questions in one split (such as `test`) of a data set."""

    dataset: str
    split: str
    """`train`, `dev` or `test`."""
    read: int
    """Number of questions in the files."""
    sampled: int
    """Number of questions that were drawn."""
    evidence: int
    """Number of questions with ids of the passages that the answer needs."""


class Overview(Frozen):
    """Counts of questions and passages."""

    files: dict[str, int]
    """Number of rows in each file."""
    counts: list[QuestionCounts]
    passages: dict[str, int]
    """For each folder with a `corpus.jsonl`: number of passages in that file."""
    missing: dict[str, int]
    """For each folder with a `corpus.jsonl`: number of passages that are needed for the questions,
    but are missing in that file.
    """


def measure(options: Options) -> Overview:
    """Read and count questions, draw the sample, and write the files. Raises `BadCorpus` for an
    invalid file.
    """
    with _corpus(options.corpus) as pool:
        read = {path: list(_questions(path, pool)) for path in options.paths}
    questions = list(chain.from_iterable(read.values()))
    drawn = sample(questions, options.sample, options.seed) if options.sample else questions
    if options.out:
        write_jsonl(options.out, drawn)
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
    """Draw up to `limit` questions of each data set at random, and return them in their original
    order. The choice from a data set does not depend on the other data sets.
    """
    positions = dict[str, list[int]]()
    for position, question in enumerate(questions):
        positions.setdefault(question.dataset, []).append(position)
    drawn = list[int]()
    for name, own in positions.items():
        drawn += random.Random(f"{seed} {name}").sample(own, min(limit, len(own)))
    return [questions[position] for position in sorted(drawn)]


def _counted(
    questions: Sequence[BenchmarkQuestion], drawn: Sequence[BenchmarkQuestion]
) -> list[QuestionCounts]:
    """Return the counts of each data set and split, in the order of their first questions."""
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
    """Open the corpus file `path`, and yield a function. It writes a passage to the file, unless
    the passage was written before, and needs only a few bytes of memory per passage. If `path` is
    None, the function does nothing.
    """
    if path is None:
        yield lambda _passage: None
        return
    seen = set[int]()
    with replacing(path) as unfinished, unfinished.open("wb") as file:

        def write(passage: Passage) -> None:
            if (name := int(passage.id, 16)) not in seen:
                seen.add(name)
                row = {"id": passage.id, "title": passage.title, "text": passage.text}
                file.write(msgspec.json.encode(row) + b"\n")

        yield write


def _questions(path: Path, pool: Callable[[Passage], None]) -> Iterator[BenchmarkQuestion]:
    """Yield the questions of a file or folder. `pool`: called with each paragraph that the rows
    contain.
    """
    for entry in read_entries(path):
        for passage in entry.passages:
            pool(passage)
        yield entry.question


def _checked(corpus: Path, questions: Sequence[BenchmarkQuestion]) -> tuple[int, int]:
    """Return the number of passages in a corpus file, and the number of passages that `questions`
    need but the file does not have.
    """
    wanted = {passage for question in questions for passage in question.supporting}
    passages = 0
    for _, passage in read_rows(corpus):
        passages += 1
        wanted.discard(passage.id)
    return passages, len(wanted)
