"""How fast an index is built, how much memory that takes, and what a build costs after one document changed.

Each build is a `rolegate index build` of its own, with the default embedder; the corpora are mini worlds.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import track
from rich.table import Table

from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.world import World
from router.errors import RolegateError
from router.protocol.evidence import Passage
from serving.files import write_atomically
from serving.retrieval.embedder import MiniLM

_BYTES_A_VECTOR = 4 * MiniLM.dimension


class Figures(msgspec.Struct, frozen=True):
    """What the builds of one corpus measured."""

    passages: int
    build_s: float
    """With loading the embedder, as all times here."""
    passages_per_s: float
    peak_mb: float
    """The most memory that the build held at any time, in MiB."""
    vectors_mb: float
    """What the vectors alone take, in MiB."""
    unchanged_s: float
    """Building again, with nothing changed."""
    changed_s: float
    """Building again, with one document of a hundred changed."""
    changed_peak_mb: float


class _Done(msgspec.Struct, frozen=True):
    passages: int
    passages_embedded: int


def main(argv: Sequence[str]) -> int:
    """Run the builds, print a table and write the figures as JSON. Raises `RolegateError`."""
    parser = argparse.ArgumentParser("rolegate bench index", description=__doc__)
    parser.add_argument(
        "--passages", type=int, nargs="+", default=[1_000, 10_000], metavar="N", help="sizes to measure"
    )
    parser.add_argument("--json", type=Path, required=True, help="where to write the figures")
    options = parser.parse_args(argv)
    console = Console(stderr=True)
    figures = [measure(passages) for passages in track(options.passages, "building", console=console)]
    options.json.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.json, msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    Console().print(_table(figures))
    return 0


def measure(passages: int) -> Figures:
    """Build an index of so many passages in a hundred files, build it again, change a file and build it once more."""
    with tempfile.TemporaryDirectory() as scratch:
        documents, out = Path(scratch) / "documents", Path(scratch) / "index"
        documents.mkdir()
        rows, size = _rows(), -(-passages // 100)
        for number, start in enumerate(range(0, passages, size)):
            _write(documents / f"{number:02}.jsonl", list(islice(rows, min(size, passages - start))))
        built = _build(documents, out)
        unchanged = _build(documents, out)
        _write(documents / "00.jsonl", list(islice(rows, size)))
        changed = _build(documents, out)
    return Figures(
        passages=built[0].passages,
        build_s=built[1],
        passages_per_s=built[0].passages_embedded / built[1],
        peak_mb=built[2],
        vectors_mb=passages * _BYTES_A_VECTOR / 2**20,
        unchanged_s=unchanged[1],
        changed_s=changed[1],
        changed_peak_mb=changed[2],
    )


def _rows() -> Iterator[Passage]:
    for seed in count():
        library = Library(World(seed, "train"))
        yield from (msgspec.structs.replace(passage, id=f"{seed}-{passage.id}") for passage in library.passages)


def _write(path: Path, rows: Sequence[Passage]) -> None:
    path.write_bytes(msgspec.json.Encoder().encode_lines(rows))


def _build(documents: Path, out: Path) -> tuple[_Done, float, float]:
    """What one build did, its seconds and its peak in MiB."""
    started = time.perf_counter()
    # A process between this one and the build: the system tells the peak of finished children only as one maximum.
    command = [sys.executable, "-c", _MEASURED, str(documents), "--out", str(out), "--json"]
    finished = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    elapsed_s = time.perf_counter() - started
    if finished.returncode != 0:
        raise RolegateError(f"the build failed: {finished.stderr.decode(errors='replace')[-500:]}")
    done, peak_kb = finished.stdout.splitlines()
    return msgspec.json.decode(done, type=_Done), elapsed_s, int(peak_kb) / 1024


def peak_kb() -> int:
    """The most memory that this process has held, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


_MEASURED = (
    "import sys; from serving.cli.main import main; from benchmarks.index import peak_kb; "
    "status = main(['index', 'build', *sys.argv[1:]]); print(peak_kb()); sys.exit(status)"
)


def _table(figures: Sequence[Figures]) -> Table:
    columns = ("passages", "build s", "passages/s", "peak MiB", "vectors MiB", "unchanged s", "1 of 100 changed s")
    table = Table(*columns, title="index build, all-MiniLM-L6-v2")
    for row in figures:
        numbers = (row.build_s, row.passages_per_s, row.peak_mb, row.vectors_mb, row.unchanged_s, row.changed_s)
        table.add_row(str(row.passages), *(f"{number:.1f}" for number in numbers))
    return table
