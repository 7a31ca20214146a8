"""Indexes of documents: how fast one is built, how much memory that takes, and what a build costs after one document
changed; with --documents and --questions, whether questions about your own find the passage that answers them.

Each build is a `rolegate index build` of its own, with the default embedder, over mini worlds. The questions are JSON
lines, `{"question", "document", "phrase"}`: a hit is a passage of a document whose name begins with `document`, with
`phrase` in its text, among the k best.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from benchmarks import harness
from benchmarks.retrieval import CUTS, mini_world_passages
from executor_sft.jsonl import read_jsonl
from router.errors import BadCorpus, BadRequest, RolegateError
from router.protocol import Passage
from serving.retrieval.build import build_index
from serving.retrieval.embedder import MiniLM
from serving.retrieval.index import Index
from serving.terminal import progress_bar

_MEASURED = (
    "import resource, sys; from serving.cli.main import main; status = main(['index', 'build', *sys.argv[1:]]); "
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(status)"
)
"""A build that tells its own peak, in KiB: the system tells that of finished children only as one maximum."""


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    passages: Annotated[tuple[int, ...], Meta(description="sizes of indexes to build, as 1000 10000")] = ()
    documents: Annotated[tuple[Path, ...], Meta(description="files and folders of your own")] = ()
    questions: Annotated[Path, Meta(description="JSON lines about these")] | None = None
    index: Annotated[Path, Meta(description="keep their index in this folder, and use it if it is there")] | None = None


class Build(msgspec.Struct, frozen=True):
    """Builds of one corpus; times with loading the embedder."""

    passages: int
    build_s: float
    passages_per_s: float
    peak_mb: float
    """The most memory that the build held at any time, in MiB."""
    vectors_mb: float
    """The vectors alone, in MiB."""
    unchanged_s: float
    """Building again, with nothing changed."""
    changed_s: float
    """Building again, with one document of a hundred changed."""
    changed_peak_mb: float


class Hits(msgspec.Struct, frozen=True):
    """One ranking of the documents' passages."""

    ranking: str
    questions: int
    hit: dict[int, float]
    """By k: the share of questions with a hit among the first k."""
    missed: list[str]
    """Questions without a hit among the first five."""


class Figures(msgspec.Struct, frozen=True):
    """Builds, and hits over the documents."""

    builds: list[Build]
    documents: int | None
    """None where none are named."""
    skipped: list[str]
    hits: list[Hits]


class Question(msgspec.Struct, frozen=True):
    """A question with what shows that it was found."""

    question: str
    document: str
    phrase: str


class _Done(msgspec.Struct, frozen=True):
    passages: int
    passages_embedded: int


def measure(options: Options) -> Figures:
    """Build, and ask. Raises `RolegateError`."""
    if bool(options.documents) != (options.questions is not None):
        raise BadRequest("--documents and --questions belong together; give both, or only --passages N.")
    if not options.passages and not options.documents:
        raise BadRequest("nothing to measure; give --passages N, or --documents PATH with --questions FILE.jsonl.")
    with progress_bar() as bar:
        builds = [_builds(passages) for passages in bar.track(options.passages, description="building")]
    if not (options.documents and options.questions):
        return Figures(builds, None, [], [])
    questions, embedder = read_questions(options.questions), MiniLM()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.index or Path(scratch) / "index"
        built = build_index(options.documents, folder, embedder, lexical=True)
        hits = _hits(Index.open(folder, embedder), embedder, questions)
    return Figures(builds, built.documents, [entry.error for entry in built.skipped], hits)


def read_questions(path: Path) -> list[Question]:
    """The questions of a file of JSON lines. Raises `BadConfig` and `BadCorpus`."""
    advice = "name a file of JSON lines with question, document and phrase"
    questions = [question for _, question in read_jsonl(path, Question, advice)]
    if not questions:
        raise BadCorpus(f"{path}: no questions; write one a line.")
    return questions


def _hits(index: Index, embedder: MiniLM, questions: Sequence[Question]) -> list[Hits]:
    asked = [question.question for question in questions]
    vectors = embedder.embed(asked, queries=True)
    dense = Index(index.manifest, index.passages, index.dense, None)
    hits = []
    for name, ranking in (("dense", dense), ("fused", index)):
        found = ranking.search(vectors, asked, max(CUTS))
        ranks = [_rank(question, passages) for question, passages in zip(questions, found, strict=True)]
        shares = {k: sum(rank <= k for rank in ranks) / len(ranks) for k in CUTS}
        missed = [question for question, rank in zip(asked, ranks, strict=True) if rank > 5]
        hits.append(Hits(name, len(asked), shares, missed))
    return hits


def _rank(question: Question, found: Sequence[Passage]) -> float:
    """Rank of the first hit, from 1; infinity where there is none."""
    phrase = " ".join(question.phrase.casefold().split())
    for rank, passage in enumerate(found, 1):
        text = " ".join(passage.text.casefold().split())
        if passage.document.startswith(question.document) and phrase in text:
            return rank
    return float("inf")


def _builds(passages: int) -> Build:
    """Build an index of so many passages in a hundred files, build it again, change a file and build it once more."""
    with tempfile.TemporaryDirectory() as scratch:
        documents, out = Path(scratch) / "documents", Path(scratch) / "index"
        documents.mkdir()
        rows, size, encoder = mini_world_passages(), -(-passages // 100), msgspec.json.Encoder()
        for number, start in enumerate(range(0, passages, size)):
            file = documents / f"{number:02}.jsonl"
            file.write_bytes(encoder.encode_lines(list(islice(rows, min(size, passages - start)))))
        done, build_s, peak_mb = _build(documents, out)
        _, unchanged_s, _ = _build(documents, out)
        (documents / "00.jsonl").write_bytes(encoder.encode_lines(list(islice(rows, size))))
        _, changed_s, changed_peak_mb = _build(documents, out)
    vectors_mb = passages * 4 * MiniLM.dimension / 2**20
    per_s = done.passages_embedded / build_s
    return Build(done.passages, build_s, per_s, peak_mb, vectors_mb, unchanged_s, changed_s, changed_peak_mb)


def _build(documents: Path, out: Path) -> tuple[_Done, float, float]:
    """What one build did, its seconds and its peak in MiB."""
    started = time.perf_counter()
    command = [sys.executable, "-c", _MEASURED, str(documents), "--out", str(out), "--json"]
    finished = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    elapsed_s = time.perf_counter() - started
    if finished.returncode != 0:
        raise RolegateError(f"the build failed: {finished.stderr.decode(errors='replace')[-500:]}")
    done, peak = finished.stdout.splitlines()
    return msgspec.json.decode(done, type=_Done), elapsed_s, int(peak) / 1024
