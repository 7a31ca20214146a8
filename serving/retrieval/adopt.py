"""Taking over an index that another program built: a FAISS file and the corpus that it was
built from.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from router.errors import BadIndex
from serving.documents.cutter import Cutter, read_passages
from serving.documents.reader import Reader
from serving.documents.source import find_sources
from serving.retrieval.dense import VECTORS, DenseIndex
from serving.retrieval.embedder import Embedder
from serving.retrieval.manifest import BUILDING, Manifest, build_lock, publish
from serving.retrieval.passages import (
    DocumentEntry,
    PassageStore,
    PassageWriter,
    embedded_text,
    write_table,
)

SAME_EMBEDDER = 0.98
"""The agreement above which both are of one embedder, computed in another precision perhaps."""
_CHECKED = 16
"""Passages that are embedded again."""
_UNLIMITED = 1 << 40
"""Tokens that no row has: rows are taken as they are."""


def agreement(
    passages: PassageStore, dense: DenseIndex, embedder: Embedder, rows: Sequence[int]
) -> float:
    """The median cosine of stored vectors with the same passages embedded now; NaN where a vector
    is damaged.

    Blocks. Raises `RuntimeError` where the index keeps no vectors, and what `embedder` raises.
    """
    stored = np.stack([dense.vector(row) for row in rows])
    now = embedder.embed([embedded_text(passages[row]) for row in rows], queries=False)
    return float(np.median(np.einsum("ij,ij->i", stored, now) / np.linalg.norm(stored, axis=1)))


def adopt_index(faiss_file: Path, corpus: Path, out: Path, embedder: Embedder) -> Manifest:
    """Copy both into the new index folder `out`; row n of the corpus is vector n.

    Raises `BadIndex` where they do not belong together, or where `embedder` gives other vectors for
    some of the passages; `BadCorpus`; what `embedder` raises. Nothing is left behind then.
    """
    if out.exists():
        raise BadIndex(f"{out}: already exists; name a new folder.")
    folder = out / BUILDING
    folder.mkdir(parents=True)
    try:
        with build_lock(out, wait=False):
            _fill(folder, faiss_file, corpus, embedder)
            dense = _checked(folder, faiss_file, embedder)
            return publish(out, embedder, chunk_tokens=0, metric=dense.metric)
    except BaseException:
        shutil.rmtree(out)
        raise


def _fill(folder: Path, faiss_file: Path, corpus: Path, embedder: Embedder) -> None:
    try:
        shutil.copyfile(faiss_file, folder / VECTORS)
    except OSError as error:
        raise BadIndex(
            f"{faiss_file}: cannot be read ({error.strerror}); name a file of FAISS."
        ) from error
    source, *more = find_sources([corpus]).sources
    if more:
        raise BadIndex(f"{corpus}: holds {len(more) + 1} files; name the one that the index is of.")
    with PassageWriter(folder) as writer, Reader() as reader:
        writer.write(
            read_passages(
                source, Cutter(_UNLIMITED, _UNLIMITED, embedder.count_tokens), reader.read
            )
        )
        write_table(folder, [DocumentEntry(source, 0, len(writer))])


def _checked(folder: Path, faiss_file: Path, embedder: Embedder) -> DenseIndex:
    """The vectors, once it is certain that file, corpus and embedder belong together."""
    try:
        passages = PassageStore(folder)
        dense = DenseIndex.open(folder)
    except BadIndex:
        raise BadIndex(
            f"{faiss_file}: FAISS cannot read it; name what faiss.write_index wrote."
        ) from None
    if len(passages) != len(dense):
        raise BadIndex(
            f"{faiss_file}: {len(dense)} vectors for {len(passages)} rows; name the "
            "corpus it is of."
        )
    if dense.dimension != embedder.dimension:
        raise BadIndex(
            f"{faiss_file}: vectors of dimension {dense.dimension}, but {embedder.identity} gives "
            f"{embedder.dimension}; name the embedder that it was built with."
        )
    rows = np.linspace(0, len(passages) - 1, min(_CHECKED, len(passages)), dtype=int).tolist()
    try:
        same = agreement(passages, dense, embedder, rows) >= SAME_EMBEDDER  # NaN is not
    except RuntimeError:
        # An index of lists keeps no map of its vectors: then most passages must find themselves.
        found = dense.search(
            embedder.embed([embedded_text(passages[row]) for row in rows], queries=False), 10
        )
        same = 2 * sum(
            row in {hit.row for hit in hits} for row, hits in zip(rows, found, strict=True)
        ) > len(rows)
    if not same:
        raise BadIndex(
            f"{faiss_file}: {embedder.identity} gives other vectors for the passages of "
            "the corpus; name the embedder, "
            "with its prefixes, that the index was built with, and rows in the order of "
            "its vectors."
        )
    return dense
