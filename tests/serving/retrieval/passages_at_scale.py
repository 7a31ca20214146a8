"""Time and memory of what reads all passages of an index: `python -m
tests.serving.retrieval.passages_at_scale [PASSAGES …]`, such as 10000 100000 1000000 (the default).

Each passage is a document, with 500 characters and metadata. Times are seconds of CPU.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import psutil

from router.trace.scope import DocumentFilter
from serving.documents.metadata import Metadata, StoredPassage
from serving.retrieval.passages import PassageStore, PassageWriter

T = TypeVar("T")
COLUMNS = ("passages", "open", "first filter", "names of documents", "their memory, MiB")
_TEXT = "The lighthouse of the island was built in 1843 by the keeper's grandfather. " * 7


def measured(folder: Path) -> None:
    """Print a line of the table."""
    opening_s, passages = timed(lambda: PassageStore(folder))
    only = DocumentFilter(tags=("half",))
    filter_s, admitted = timed(lambda: passages.admitted(only))
    assert len(admitted) == len(passages) // 2
    before = psutil.Process().memory_full_info().uss
    names_s, documents = timed(lambda: passages.documents)
    assert len(documents) == len(passages)
    mebibytes = (psutil.Process().memory_full_info().uss - before) / 2**20
    figures = (f"{opening_s:.3f}", f"{filter_s:.2f}", f"{names_s:.2f}", f"{mebibytes:.0f}")
    print(f"| {len(passages):,} | {' | '.join(figures)} |", flush=True)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return the seconds of CPU that `work` took, and its result."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def passage(row: int) -> StoredPassage:
    """Return a passage; the documents of every second one have a tag."""
    metadata = Metadata(tags=("half",) if row % 2 else ())
    document = f"letters/1843/{row}.txt"
    return StoredPassage(str(row), "Lighthouse", _TEXT, document=document, metadata=metadata)


def main(counts: Sequence[int]) -> None:
    """Print the table."""
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    for count in counts:
        with tempfile.TemporaryDirectory() as name:
            with PassageWriter(Path(name)) as writer:
                writer.write(("", passage(row)) for row in range(count))
            process = get_context("spawn").Process(target=measured, args=(Path(name),))
            process.start()
            process.join()


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [10_000, 100_000, 1_000_000])
