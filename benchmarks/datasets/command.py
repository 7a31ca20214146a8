"""Read published data sets, describe their content, and write it in the plain format of all other
commands.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from benchmarks import harness
from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.datasets.reader import Format, read_entries
from benchmarks.datasets.selection import Census, excluded, sample, take_census
from executor_sft.command import show
from router.protocol import Passage
from serving.cli.command import POSITIONAL
from serving.documents.rows import read_rows
from serving.files import replacing, write_atomically

_SHOWN = ("dataset", "question", "answers")


class Options(harness.Options, frozen=True, kw_only=True):
    """Options of the command."""

    paths: Annotated[
        tuple[Path, ...], POSITIONAL, Meta(description="files, or folders with questions.jsonl")
    ]
    format: (
        Annotated[Format, Meta(description="format of all files (default: detected)")] | None
    ) = None
    dataset: Annotated[str, Meta(description="data set of rows that do not name it")] | None = None
    split: (
        Annotated[str, Meta(description="split of rows that neither they nor the file name")] | None
    ) = None
    sample: (
        Annotated[int, Meta(ge=1, description="draw up to N questions of each data set")] | None
    ) = None
    seed: Annotated[int, Meta(description="seed of the sample")] = 42
    exclude: (
        Annotated[
            Path,
            Meta(
                description="file of questions to leave out: positions from 0, or rows of a run, "
                "whose no_search rows are left out"
            ),
        ]
        | None
    ) = None
    out: Annotated[Path, Meta(description="write the kept questions to this file")] | None = None
    corpus: Annotated[Path, Meta(description="write the paragraphs to this file")] | None = None


class QuestionCounts(msgspec.Struct, frozen=True):
    """Number of questions of a data set after each step (TBSS, Table 8)."""

    dataset: str
    split: str
    read: int
    sampled: int
    excluded: int
    """Excluded questions of the sample."""
    kept: int
    evidence: int
    """Questions with supporting passages."""
    steps: int
    """Questions with a gold decomposition."""


class Overview(msgspec.Struct, frozen=True):
    """Figures of the command."""

    files: dict[str, int]
    """Rows by file."""
    counts: list[QuestionCounts]
    census: Census
    """Findings in all questions."""
    passages: dict[str, int]
    """Passages of `corpus.jsonl`, by folder."""
    missing: dict[str, int]
    """Supporting passages that are not in `corpus.jsonl`, by folder."""


def measure(options: Options) -> Overview:
    """Read, count, draw and write. Raises `RolegateError`."""
    with _corpus(options.corpus) as pool:
        read = {path: list(_questions(path, options, pool)) for path in options.paths}
    questions = list(chain.from_iterable(read.values()))
    drawn = set(range(len(questions)))
    if options.sample:
        drawn = set(sample(questions, options.sample, options.seed))
    left_out = excluded(options.exclude, questions) if options.exclude else set()
    corpora = {path: corpus for path in read if (corpus := path / "corpus.jsonl").is_file()}
    checked = {str(path): _checked(corpus, read[path]) for path, corpus in corpora.items()}
    if options.out:
        kept = [questions[position] for position in sorted(drawn - left_out)]
        write_atomically(options.out, msgspec.json.Encoder().encode_lines(kept))
    return Overview(
        files={str(path): len(rows) for path, rows in read.items()},
        counts=count(questions, drawn, left_out),
        census=take_census(questions),
        passages={path: passages for path, (passages, _) in checked.items()},
        missing={path: missing for path, (_, missing) in checked.items()},
    )


def shown(figures: dict[str, Any]) -> None:
    """Print the counts, and the first questions with conflicting answers."""
    ids, repeated = (figures["census"][name] for name in ("repeated_ids", "repeated_questions"))
    conflicts = [question for question in repeated if question["conflicting"]]
    census = {
        "repeated ids": len(ids),
        "repeated questions": len(repeated),
        "with conflicting answers": len(conflicts),
    }
    show(
        {
            **figures,
            "census": census,
            "conflicts": [{name: question[name] for name in _SHOWN} for question in conflicts[:5]],
        }
    )


def count(
    questions: Sequence[BenchmarkQuestion], drawn: set[int], left_out: set[int]
) -> list[QuestionCounts]:
    """Count by data set and split, in the order of the questions. The sets hold positions."""
    origins = [(question.dataset, question.split) for question in questions]
    positions = set(range(len(questions)))
    columns = [
        Counter(origins[position] for position in chosen)
        for chosen in (
            positions,
            drawn,
            drawn & left_out,
            drawn - left_out,
            {position for position in positions if questions[position].supporting},
            {position for position in positions if questions[position].decomposition},
        )
    ]
    return [
        QuestionCounts(*origin, *(column[origin] for column in columns))
        for origin in dict.fromkeys(origins)
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


def _questions(
    path: Path, options: Options, pool: Callable[[Passage], None]
) -> Iterator[BenchmarkQuestion]:
    for entry in read_entries(path, options.format, dataset=options.dataset, split=options.split):
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
