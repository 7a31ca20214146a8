"""An index: a folder with the passages of a corpus, their vectors and, if asked for, their word statistics."""

import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import msgspec

from router.errors import BadIndex
from router.passage import Passage
from serving.retrieval.atomic_file import flush
from serving.retrieval.corpus import read_corpus
from serving.retrieval.dense import DenseIndex, write_dense
from serving.retrieval.digest import sha256_of
from serving.retrieval.embedder import Embedder, Vectors
from serving.retrieval.fusion import DEPTH, fuse
from serving.retrieval.lexical import LexicalIndex, write_lexical
from serving.retrieval.manifest import (
    FORMAT,
    Manifest,
    check_files,
    describe_files,
    read_manifest,
    write_manifest,
)
from serving.retrieval.passages import PassageStore, embedded_text, write_passages

BATCH = 256
"""Passages embedded between two calls of `progress`."""

Progress = Callable[[int, int], None]
"""Told how many passages are embedded, and of how many."""


class Index:
    """An opened index. `search` blocks."""

    def __init__(
        self, manifest: Manifest, passages: PassageStore, dense: DenseIndex, lexical: LexicalIndex | None
    ) -> None:
        self.manifest = manifest
        self.passages = passages
        self.dense = dense
        self.lexical = lexical

    @classmethod
    def open(cls, folder: Path, embedder: Embedder, *, verify: bool = False) -> Self:
        """Open a finished index of this very embedder; `verify` reads every file to compare its SHA-256.

        Raises `BadIndex`.
        """
        manifest = read_manifest(folder)
        _check_embedder(folder, manifest, embedder)
        check_files(folder, manifest, contents=verify)
        passages, dense = PassageStore(folder), DenseIndex.open(folder)
        if not len(passages) == len(dense) == manifest.passages:
            raise BadIndex(f"{folder}: its files disagree on the number of passages; build the index again.")
        return cls(manifest, passages, dense, LexicalIndex.open(folder) if manifest.lexical else None)

    def search(self, vectors: Vectors, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """The `top_k` best passages of each query, best first.

        `vectors` are the embedded `queries`, (batch, dimension) float32. Scores are cosines, or sums of reciprocal
        ranks where the index has word statistics.
        """
        if self.lexical is None:
            ranked = self.dense.search(vectors, top_k)
        else:
            by_meaning, by_word = self.dense.search(vectors, DEPTH), self.lexical.search(queries, DEPTH)
            ranked = [fuse(rankings, top_k) for rankings in zip(by_meaning, by_word, strict=True)]
        return [[self._passage(row, score) for row, score in hits] for hits in ranked]

    def _passage(self, row: int, score: float) -> Passage:
        return msgspec.structs.replace(self.passages[row], score=score)


def build_index(
    corpus: Path, out: Path, embedder: Embedder, *, lexical: bool = False, progress: Progress = lambda done, total: None
) -> Manifest:
    """Build the index of `corpus` in the new folder `out`. Blocks for as long as the embedding takes.

    The whole corpus is read and checked before the first passage is embedded. All is built in a hidden folder beside
    `out` and renamed at the end. Raises `BadCorpus`; `BadIndex` where `out` is not empty; what `embedder` raises.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadIndex(f"{out}: already exists; remove it or name another folder.")
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.unfinished-{secrets.token_hex(4)}")
    unfinished.mkdir()
    try:
        manifest = _fill(unfinished, corpus, embedder, lexical, progress)
        unfinished.rename(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    flush(out.parent)
    return manifest


def _fill(folder: Path, corpus: Path, embedder: Embedder, lexical: bool, progress: Progress) -> Manifest:
    write_passages(folder, read_corpus(corpus))
    passages = PassageStore(folder)
    write_dense(folder, embedder.dimension, _embedded(passages, embedder, progress))
    if lexical:
        write_lexical(folder, (embedded_text(passages[row]) for row in range(len(passages))))
    manifest = Manifest(
        format=FORMAT,
        embedder=embedder.identity,
        dimension=embedder.dimension,
        metric="inner_product",
        passages=len(passages),
        corpus_sha256=sha256_of(corpus),
        lexical=lexical,
        files=describe_files(folder),
    )
    write_manifest(folder, manifest)
    return manifest


def _embedded(passages: PassageStore, embedder: Embedder, progress: Progress) -> Iterator[Vectors]:
    for start in range(0, len(passages), BATCH):
        end = min(start + BATCH, len(passages))
        yield embedder.embed([embedded_text(passages[row]) for row in range(start, end)], queries=False)
        progress(end, len(passages))


def _check_embedder(folder: Path, manifest: Manifest, embedder: Embedder) -> None:
    built, given = (manifest.embedder, manifest.dimension), (embedder.identity, embedder.dimension)
    if built != given:
        raise BadIndex(
            f"{folder}: built with the embedder {built[0]} (dimension {built[1]}), opened with {given[0]} "
            f"(dimension {given[1]}); open it with the former, or build the index again."
        )
