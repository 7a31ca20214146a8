"""Adopting an index of another program: a FAISS file and the corpus that it was built from."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from router.errors import BadIndex
from serving.documents.cutter import Cutter, read_passages
from serving.documents.reader import DocumentReader
from serving.documents.source import find_sources
from serving.retrieval.dense import VectorIndex
from serving.retrieval.embedder import Embedder
from serving.retrieval.faiss_index import VECTORS, FaissIndex
from serving.retrieval.manifest import BUILDING, Manifest, build_lock, publish
from serving.retrieval.passages import (
    DocumentEntry,
    PassageStore,
    PassageWriter,
    embedded_text,
    write_table,
)

SAME_EMBEDDER = 0.98
"""Agreement above which two embedders count as the same, possibly in different precision."""
_CHECKED = 16
"""Passages that are embedded again for the check."""
_UNLIMITED = 1 << 40
"""Token limit that no row reaches: rows are kept whole."""


def agreement(
    passages: PassageStore,
    dense: VectorIndex,
    embedder: Embedder,
    rows: Sequence[int],
) -> float:
    """Return the median cosine of stored vectors and newly embedded ones; NaN for damaged vectors.

    Blocks. Raises `RuntimeError` if the index does not keep its vectors, and what `embedder`
    raises.
    """
    stored = np.stack([dense.vector(row) for row in rows])
    computed = embedder.embed([embedded_text(passages[row]) for row in rows], queries=False)
    cosines = np.einsum("ij,ij->i", stored, computed) / np.linalg.norm(stored, axis=1)
    return float(np.median(cosines))


def adopt_index(
    faiss_file: Path,
    corpus: Path,
    out: Path,
    embedder: Embedder,
) -> Manifest:
    """Copy both into the new index folder `out`; row n of the corpus has vector n.

    Raises `BadIndex` if they do not belong together, or if `embedder` gives other vectors for a
    sample of the passages; `BadCorpus`; and what `embedder` raises. `out` is then removed.
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


def _fill(
    folder: Path,
    faiss_file: Path,
    corpus: Path,
    embedder: Embedder,
) -> None:
    """Copy the FAISS file, and write the passages of the corpus."""
    try:
        shutil.copyfile(faiss_file, folder / VECTORS)
    except OSError as error:
        raise BadIndex(
            f"{faiss_file}: cannot be read ({error.strerror}); name a FAISS file."
        ) from error
    source, *more = find_sources([corpus]).sources
    if more:
        raise BadIndex(
            f"{corpus}: contains {len(more) + 1} files; name the one that the index was built from."
        )
    cutter = Cutter(_UNLIMITED, _UNLIMITED, embedder.count_tokens)
    with PassageWriter(folder) as writer, DocumentReader() as reader:
        writer.write(read_passages(source, cutter, reader.read))
        write_table(folder, [DocumentEntry(source, 0, len(writer))])


def _checked(folder: Path, faiss_file: Path, embedder: Embedder) -> FaissIndex:
    """Open the vectors, and check that file, corpus and embedder belong together."""
    try:
        passages = PassageStore(folder)
        dense = FaissIndex.open(folder)
    except BadIndex:
        raise BadIndex(
            f"{faiss_file}: FAISS cannot read it; name a file that faiss.write_index wrote."
        ) from None
    if len(passages) != len(dense):
        raise BadIndex(
            f"{faiss_file}: {len(dense)} vectors for {len(passages)} rows; name the corpus that it "
            "was built from."
        )
    if dense.dimension != embedder.dimension:
        raise BadIndex(
            f"{faiss_file}: vectors of dimension {dense.dimension}, but {embedder.identity} gives "
            f"{embedder.dimension}; name the embedder that it was built with."
        )
    if not _is_of_embedder(passages, dense, embedder):
        raise BadIndex(
            f"{faiss_file}: {embedder.identity} gives other vectors for the passages of the "
            "corpus; name the embedder, with its prefixes, that the index was built with, and a "
            "corpus in the order of the vectors."
        )
    return dense


def _is_of_embedder(passages: PassageStore, dense: VectorIndex, embedder: Embedder) -> bool:
    """Return whether a sample of the passages has the vectors that the embedder gives."""
    rows = np.linspace(0, len(passages) - 1, min(_CHECKED, len(passages)), dtype=int).tolist()
    try:
        return agreement(passages, dense, embedder, rows) >= SAME_EMBEDDER  # False for NaN
    except RuntimeError:  # an IVF index does not keep its vectors
        texts = [embedded_text(passages[row]) for row in rows]
        results = dense.search(embedder.embed(texts, queries=False), 10)

    # Then most passages must find themselves
    ranked = zip(rows, results, strict=True)
    return 2 * sum(row in {hit.row for hit in hits} for row, hits in ranked) > len(rows)
