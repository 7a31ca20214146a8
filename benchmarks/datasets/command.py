"""Read data sets as they are handed out, say what is in them, and write the plain form that all
else reads.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    """Its options."""

    paths: Annotated[
        tuple[Path, ...], POSITIONAL, Meta(description="files, or folders with questions.jsonl")
    ]
    format: (
        Annotated[Format, Meta(description="of all files, instead of what each looks like")] | None
    ) = None
    dataset: Annotated[str, Meta(description="name of rows that do not say it")] | None = None
    split: (
        Annotated[str, Meta(description="of rows that do not say it, nor the file's name")] | None
    ) = None
    sample: (
        Annotated[int, Meta(ge=1, description="draw up to N questions of each data set")] | None
    ) = None
    seed: Annotated[int, Meta(description="of that")] = 42
    exclude: (
        Annotated[
            Path,
            Meta(
                description="a file of what is left out: positions from 0, or a run's rows, where "
                "no_search"
            ),
        ]
        | None
    ) = None
    out: Annotated[Path, Meta(description="write what is kept, as questions.jsonl")] | None = None
    corpus: (
        Annotated[Path, Meta(description="write the questions' paragraphs, as corpus.jsonl")] | None
    ) = None


class Counts(msgspec.Struct, frozen=True):
    """A data set's questions on their way (TBSS, Table 8)."""

    dataset: str
    split: str
    read: int
    sampled: int
    excluded: int
    """Of the sampled ones."""
    kept: int
    evidence: int
    """Those read that name the passages that they take."""
    steps: int
    """Those read that have a gold decomposition."""


class Overview(msgspec.Struct, frozen=True):
    """The figures of the command."""

    files: dict[str, int]
    """Rows."""
    counts: list[Counts]
    census: Census
    """Of all that was read."""
    passages: dict[str, int]
    """Of the corpora beside the questions."""
    missing: dict[str, int]
    """Passages that questions name and the corpus beside them lacks."""


def measure(options: Options) -> Overview:
    """Read, count, draw and write. Raises `RolegateError`."""
    with _corpus(options.corpus) as pool:
        read = {path: list(_questions(path, options, pool)) for path in options.paths}
    questions = [question for each in read.values() for question in each]
    drawn = set(
        sample(questions, options.sample, options.seed) if options.sample else range(len(questions))
    )
    left_out = excluded(options.exclude, questions) if options.exclude else set()
    corpora = {path: corpus for path in read if (corpus := path / "corpus.jsonl").is_file()}
    checked = {str(path): _checked(corpus, read[path]) for path, corpus in corpora.items()}
    if options.out:
        kept = [questions[position] for position in sorted(drawn - left_out)]
        write_atomically(options.out, msgspec.json.Encoder().encode_lines(kept))
    return Overview(
        files={str(path): len(each) for path, each in read.items()},
        counts=count(questions, drawn, left_out),
        census=take_census(questions),
        passages={path: passages for path, (passages, _) in checked.items()},
        missing={path: missing for path, (_, missing) in checked.items()},
    )


def shown(figures: dict[str, Any]) -> None:
    """Print the counts, and the first questions whose answers conflict."""
    ids, repeated = (figures["census"][name] for name in ("repeated_ids", "repeated_questions"))
    conflicts = [one for one in repeated if one["conflicting"]]
    found = {
        "repeated ids": len(ids),
        "repeated questions": len(repeated),
        "with conflicting answers": len(conflicts),
    }
    show(
        {
            **figures,
            "census": found,
            "conflicts": [{name: one[name] for name in _SHOWN} for one in conflicts[:5]],
        }
    )


def count(
    questions: Sequence[BenchmarkQuestion], drawn: set[int], left_out: set[int]
) -> list[Counts]:
    """Count by data set and split, in the order of the list; the sets hold positions."""
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
        Counts(*origin, *(column[origin] for column in columns))
        for origin in dict.fromkeys(origins)
    ]


@contextmanager
def _corpus(path: Path | None) -> Iterator[Callable[[Passage], None]]:
    """Yield a function that writes a passage to the file, each once; 8 bytes or so of each are
    kept to tell.
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
    """The number of passages, and of those that questions name and are not there."""
    wanted = {passage for question in questions for passage in question.supporting}
    passages = 0
    for _, passage in read_rows(corpus):
        passages += 1
        wanted.discard(passage.id)
    return passages, len(wanted)
