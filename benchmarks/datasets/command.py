"""Read data sets as they are handed out, say what is in them, and write the plain form that all else reads."""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.datasets.reader import FORMATS, read_entries
from benchmarks.datasets.selection import Census, excluded, sample, take_census
from router.errors import BadConfig
from router.protocol.evidence import Passage
from serving.documents.rows import read_rows
from serving.files import replacing, write_atomically

_SHOWN = 5


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


def main(arguments: Sequence[str]) -> int:
    """Read, count, draw and write. Raises `RolegateError`."""
    given = _parser().parse_args(arguments)
    if given.sample is not None and given.sample < 1:
        raise BadConfig(f"--sample {given.sample}: must be at least 1.")
    with _corpus(given.corpus) as pool:
        read = {path: list(_questions(path, given, pool)) for path in given.paths}
    questions = [question for each in read.values() for question in each]
    drawn = set(sample(questions, given.sample, given.seed) if given.sample else range(len(questions)))
    left_out = excluded(given.exclude, questions) if given.exclude else set()
    kept = sorted(drawn - left_out)
    checked = {path: _checked(path / "corpus.jsonl", each) for path, each in read.items() if path.is_dir()}
    overview = Overview(
        files={str(path): len(each) for path, each in read.items()},
        counts=count(questions, drawn, left_out),
        census=take_census(questions),
        passages={str(path): counts[0] for path, counts in checked.items() if counts},
        missing={str(path): counts[1] for path, counts in checked.items() if counts},
    )
    encoder = msgspec.json.Encoder()
    if given.out:
        write_atomically(given.out, encoder.encode_lines([questions[position] for position in kept]))
    if given.json:
        write_atomically(given.json, msgspec.json.format(encoder.encode(overview)) + b"\n")
    _show(overview, Console())
    return 0


def count(questions: Sequence[BenchmarkQuestion], drawn: set[int], left_out: set[int]) -> list[Counts]:
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
    return [Counts(*origin, *(column[origin] for column in columns)) for origin in dict.fromkeys(origins)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rolegate bench datasets", description=__doc__)
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="files, or folders with questions.jsonl")
    parser.add_argument("--format", choices=FORMATS, help="of all files (default: what each looks like)")
    parser.add_argument("--dataset", help="name of rows that do not say (default: the format's, or the folder's)")
    parser.add_argument("--split", help="of rows that do not say (default: what the file's name says, or test)")
    parser.add_argument("--sample", type=int, metavar="N", help="draw up to N questions of each data set")
    parser.add_argument("--seed", type=int, default=42, help="of that (default: 42)")
    parser.add_argument(
        "--exclude",
        type=Path,
        metavar="FILE",
        help="then leave out what stands there: positions in the input, from 0, or rows of a run, where no_search",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write what is kept, as questions.jsonl")
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="write the questions' paragraphs, as corpus.jsonl")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the counts and findings")
    return parser


@contextmanager
def _corpus(path: Path | None) -> Iterator[Callable[[Passage], None]]:
    """Yield a function that writes a passage to the file, each once; 8 bytes or so of each are kept to tell."""
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


def _questions(path: Path, given: argparse.Namespace, pool: Callable[[Passage], None]) -> Iterator[BenchmarkQuestion]:
    for entry in read_entries(path, given.format, dataset=given.dataset, split=given.split):
        for passage in entry.passages:
            pool(passage)
        yield entry.question


def _checked(corpus: Path, questions: Sequence[BenchmarkQuestion]) -> tuple[int, int] | None:
    """The number of passages, and of those that questions name and are not there; None without a corpus."""
    if not corpus.is_file():
        return None
    wanted = {passage for question in questions for passage in question.supporting}
    passages = 0
    for _, passage in read_rows(corpus):
        passages += 1
        wanted.discard(passage.id)
    return passages, len(wanted)


def _show(overview: Overview, console: Console) -> None:
    names = Counts.__struct_fields__
    table = Table(*names, title=", ".join(overview.files))
    for counts in overview.counts:
        table.add_row(*map(str, msgspec.structs.astuple(counts)))
    if len(overview.counts) > 1:
        table.add_row("all", "", *(str(sum(getattr(each, name) for each in overview.counts)) for name in names[2:]))
    console.print(table)
    for folder, passages in overview.passages.items():
        console.print(f"{folder}: {passages} passages, {overview.missing[folder]} named ones missing")
    census = overview.census
    conflicts = [repeated for repeated in census.repeated_questions if repeated.conflicting]
    console.print(f"{len(census.repeated_ids)} identifiers are used more than once")
    console.print(f"{len(census.repeated_questions)} questions stand there more than once")
    console.print(f"{len(conflicts)} of these with conflicting answers")
    for conflict in conflicts[:_SHOWN]:
        answers = "; ".join(" = ".join(each) for each in conflict.answers)
        console.print(f"  {conflict.dataset}: {conflict.question} {answers}", markup=False)
