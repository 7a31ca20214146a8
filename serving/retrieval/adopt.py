"""Adopt an index that another program built: create an index of rolegate from a FAISS file with the
vectors, and a corpus file with the texts.
"""

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
"""Two embedders count as the same if the median cosine between their vectors for the same texts is
at least this value. It is below 1, because embedders may compute in different precision.
"""
_CHECKED = 16
"""Number of passages to embed again, to compare the new vectors with the vectors in the file."""
_UNLIMITED = 1 << 40
"""Max tokens of a passage. No row of a corpus is so long, so rows are not split."""


def agreement(
    passages: PassageStore,
    dense: VectorIndex,
    embedder: Embedder,
    rows: Sequence[int],
) -> float:
    """Embed the passages with the row numbers `rows` again, and return the median cosine between
    their vectors in `dense` and the new vectors. NaN if vectors in `dense` are zero or damaged.

    Blocks. Raises `RuntimeError` if `dense` does not store the original vectors, and the errors of
    `embedder`.
    """
    stored = dense.vectors(np.array(rows))
    computed = embedder.embed([embedded_text(passages[row]) for row in rows], queries=False)
    cosines = np.einsum("ij,ij->i", stored, computed) / np.linalg.norm(stored, axis=1)
    return float(np.median(cosines))


def adopt_index(
    faiss_file: Path,
    corpus: Path,
    out: Path,
    embedder: Embedder,
) -> Manifest:
    """Create an index in the new folder `out` from a FAISS file and its corpus, and return the
    manifest of the index. Row n of the corpus must be the text of vector n in the FAISS file.

    Raises `BadIndex` if `out` exists, if the FAISS file and the corpus do not belong together, or
    if `embedder` computes other vectors for a sample of the rows. Also raises `BadCorpus` and the
    errors of `embedder`. After an error, no folder `out` is left.
    """
    if out.exists():
        raise BadIndex(f"{out}: already exists; choose a new folder.")
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
    """Copy the FAISS file to `folder`, and write each row of the corpus to `folder` as a passage.
    Raises `BadIndex` if the FAISS file cannot be read, or if the corpus is more than one file.
    """
    try:
        shutil.copyfile(faiss_file, folder / VECTORS)
    except OSError as error:
        raise BadIndex(
            f"{faiss_file}: cannot be read ({error.strerror}); give the path of a FAISS file."
        ) from error
    source, *more = find_sources([corpus]).sources
    if more:
        raise BadIndex(
            f"{corpus}: contains {len(more) + 1} files; give the single file with the texts."
        )
    cutter = Cutter(_UNLIMITED, _UNLIMITED, embedder.count_tokens)
    with PassageWriter(folder) as writer, DocumentReader() as reader:
        writer.write(read_passages(source, cutter, reader.read))
        write_table(folder, [DocumentEntry(source, 0, len(writer))])


def _checked(folder: Path, faiss_file: Path, embedder: Embedder) -> FaissIndex:
    """Open the vectors in `folder`, and check that the FAISS file, the corpus and the embedder
    belong together. Raises `BadIndex` if they do not.
    """
    try:
        passages = PassageStore(folder)
        dense = FaissIndex.open(folder)
    except BadIndex:
        raise BadIndex(
            f"{faiss_file}: FAISS cannot read the file; give a file that faiss.write_index wrote."
        ) from None
    if len(passages) != len(dense):
        raise BadIndex(
            f"{faiss_file}: contains {len(dense)} vectors, but the corpus has {len(passages)} "
            "rows; give the corpus from which the file was built."
        )
    if dense.dimension != embedder.dimension:
        raise BadIndex(
            f"{faiss_file}: contains vectors of dimension {dense.dimension}, but the embedder "
            f"{embedder.identity} computes vectors of dimension {embedder.dimension}; "
            "configure the embedder that the file was built with."
        )
    if not _is_of_embedder(passages, dense, embedder):
        raise BadIndex(
            f"{faiss_file}: the embedder {embedder.identity} computes different vectors for the "
            "rows of the corpus; configure the embedder (with its prefixes) that the file was "
            "built with, and give a corpus whose rows are in the order of the vectors."
        )
    return dense


def _is_of_embedder(passages: PassageStore, dense: VectorIndex, embedder: Embedder) -> bool:
    """Return True if `embedder` has probably computed the vectors in `dense`. This is checked with
    a sample of the passages.
    """
    rows = np.linspace(0, len(passages) - 1, min(_CHECKED, len(passages)), dtype=int).tolist()
    try:
        return agreement(passages, dense, embedder, rows) >= SAME_EMBEDDER  # False for NaN
    except RuntimeError:  # the index does not store its vectors, such as an IVF index
        texts = [embedded_text(passages[row]) for row in rows]
        results = dense.search(embedder.embed(texts, queries=False), 10)

    # The vectors cannot be compared. Instead, a search for a passage's text must find the passage,
    # for more than half of the sample.
    ranked = zip(rows, results, strict=True)
    return 2 * sum(row in {hit.row for hit in hits} for row, hits in ranked) > len(rows)
