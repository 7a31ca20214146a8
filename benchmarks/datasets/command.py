"""Read data sets as they are handed out, say what is in them, and write the plain form that all else reads."""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec
from rich.console import Console

from benchmarks.datasets.census import first_ones, take_census
from benchmarks.datasets.exclusion import read_exclusion
from benchmarks.datasets.overview import Counts, Overview, count, show
from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.datasets.reader import FORMATS, read_entries
from benchmarks.datasets.sampling import sample
from router.protocol.evidence import Passage
from serving.documents.rows import read_rows
from serving.files import replacing, write_atomically


def main(arguments: Sequence[str]) -> int:
    """Read, count, draw and write. Raises `RolegateError`."""
    given = _parser().parse_args(arguments)
    exclusion = read_exclusion(given.exclude) if given.exclude else None
    with ExitStack() as stack:
        pool = _Pool(stack.enter_context(_written(given.corpus))) if given.corpus else None
        read = {path: list(_questions(path, given, pool)) for path in given.paths}
    questions = [question for each in read.values() for question in each]
    drawn = _drawn(questions, given)
    excluded = exclusion.of(questions) if exclusion else set()
    kept = [position for position in drawn if position not in excluded]
    overview = _overview(read, count(questions, set(drawn), excluded, set(kept)))
    encoder = msgspec.json.Encoder()
    if given.out:
        write_atomically(given.out, encoder.encode_lines([questions[position] for position in kept]))
    if given.json:
        write_atomically(given.json, msgspec.json.format(encoder.encode(overview)) + b"\n")
    show(overview, Console())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rolegate bench datasets", description=__doc__)
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="files, or folders with questions.jsonl")
    parser.add_argument("--format", choices=FORMATS, help="of all files (default: what each looks like)")
    parser.add_argument("--dataset", help="name of rows that do not say (default: the format's, or the folder's)")
    parser.add_argument("--split", help="of rows that do not say (default: what the file's name says, or test)")
    parser.add_argument("--distinct", action="store_true", help="leave out questions that stand there already")
    parser.add_argument("--sample", type=_natural, metavar="N", help="draw up to N questions of each data set")
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


def _natural(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return int(text)


class _Pool:
    """Writes passages, each once; 8 bytes or so of each are kept to tell."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._seen: set[int] = set()

    def add(self, passages: Iterable[Passage]) -> None:
        for passage in passages:
            name = int(passage.id, 16)
            if name not in self._seen:
                self._seen.add(name)
                row = {"id": passage.id, "title": passage.title, "text": passage.text}
                self._file.write(msgspec.json.encode(row) + b"\n")


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        yield file


def _questions(path: Path, given: argparse.Namespace, pool: _Pool | None) -> Iterator[BenchmarkQuestion]:
    for entry in read_entries(path, given.format, dataset=given.dataset, split=given.split):
        if pool is not None:
            pool.add(entry.passages)
        yield entry.question


def _drawn(questions: Sequence[BenchmarkQuestion], given: argparse.Namespace) -> list[int]:
    listed = sorted(first_ones(questions)) if given.distinct else list(range(len(questions)))
    if given.sample is None:
        return listed
    return [listed[at] for at in sample([questions[position] for position in listed], given.sample, given.seed)]


def _overview(read: Mapping[Path, Sequence[BenchmarkQuestion]], counts: tuple[Counts, ...]) -> Overview:
    corpora = {path: path / "corpus.jsonl" for path in read if (path / "corpus.jsonl").is_file()}
    checked = {str(path): _checked(corpus, read[path]) for path, corpus in corpora.items()}
    return Overview(
        files={str(path): len(each) for path, each in read.items()},
        counts=counts,
        census=take_census(question for each in read.values() for question in each),
        passages={name: passages for name, (passages, _) in checked.items()},
        missing={name: missing for name, (_, missing) in checked.items()},
    )


def _checked(corpus: Path, questions: Sequence[BenchmarkQuestion]) -> tuple[int, int]:
    """How many passages there are, and how many that questions name there are not."""
    wanted = {passage for question in questions for passage in question.supporting}
    passages = 0
    for _, passage in read_rows(corpus):
        passages += 1
        wanted.discard(passage.id)
    return passages, len(wanted)
