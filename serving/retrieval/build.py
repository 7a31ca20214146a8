"""Building an index: what is new is read and embedded, the rest is taken from the build before.

A build fills a hidden folder inside the index folder, which becomes the next generation when it is whole; the manifest,
replaced last and at once, names the generation that counts. What a killed build has embedded, the next one takes over.
"""

import errno
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from router.errors import BadCorpus, BadDocument, BadIndex, SameId, TooMuch
from serving.documents.cutter import Cutter, read_passages
from serving.documents.reader import Reader
from serving.documents.source import Source, find_sources
from serving.documents.title import escaped
from serving.retrieval.dense import DenseIndex, write_dense
from serving.retrieval.embedder import Embedder, Vectors
from serving.retrieval.generation import build_lock, check_place, generations, publish, unfinished, unfinished_name
from serving.retrieval.lexical import write_lexical
from serving.retrieval.manifest import Manifest, check_files, read_manifest
from serving.retrieval.passages import (
    DocumentEntry,
    PassageStore,
    PassageWriter,
    embedded_text,
    read_table,
    same_sources,
    write_table,
)
from serving.retrieval.vectors import (
    KnownVectors,
    VectorOf,
    close_vector_file,
    left_over,
    open_vector_file,
    read_vector_file,
)

BATCH = 256
"""Passages embedded between two calls of `progress`."""
_SPECIAL_TOKENS = 2
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNCOUNTED = Cutter(1_000, 1_000, lambda texts: [1] * len(texts))
"""Reads without asking an embedder, which would have to be loaded for it."""

Progress = Callable[[str, int, int], None]
"""Told what is done (`reading` documents, `embedding` passages), how many of them, and of how many; `reading` 0 of 0
while another build is waited for. Whatever it raises ends the build."""


@dataclass(frozen=True, slots=True)
class Built:
    """What a build came to."""

    manifest: Manifest
    skipped: tuple[DocumentEntry, ...]
    """Files that could not be read, with the reason."""
    documents: int
    """Files that the index holds."""
    documents_read: int
    """Of these, how many were new or changed."""
    embedded: int
    """Passages that were embedded; all others were known."""
    passed_over: int = 0
    """Files of kinds that are not read."""
    links: tuple[str, ...] = ()
    """Symbolic links that were not followed, with the reason."""


@dataclass(frozen=True, slots=True)
class _Earlier:
    """The generation before."""

    manifest: Manifest
    entries: list[DocumentEntry]
    passages: PassageStore
    dense: DenseIndex


def build_index(
    places: Sequence[Path],
    out: Path,
    embedder: Embedder,
    *,
    lexical: bool = False,
    chunk_tokens: int = 200,
    wait: bool = True,
    progress: Progress = lambda _stage, _done, _total: None,
) -> Built:
    """Bring the index in the folder `out` up to date with the files and folders `places`. Blocks while it embeds.

    `wait`: for another build of this index to end. Raises `BadDocument` or `BadCorpus` where nothing can be read,
    `BadIndex` where `out` holds something else, and what `embedder` raises; the index is then what it was before.
    """
    found = find_sources(places)
    sources = [source for source in found.sources if not Path(source.path).resolve().is_relative_to(out.resolve())]
    fresh = not out.exists()
    check_place(out)
    out.mkdir(parents=True, exist_ok=True)
    with build_lock(out, wait=wait, waiting=lambda: progress("reading", 0, 0)), Reader() as reader:
        out.mkdir(exist_ok=True)  # a build that was waited for removes what it leaves empty
        try:
            chunk_tokens = min(chunk_tokens, embedder.max_tokens - _SPECIAL_TOKENS)
            build = _Build(out, embedder, reader, lexical=lexical, chunk_tokens=chunk_tokens, progress=progress)
            return replace(build.run(sources), passed_over=found.passed_over, links=found.links)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise BadIndex(
                f"{out}: cannot be written: {error.strerror}; make room there and build it again, which goes on from "
                "what is embedded."
            ) from error
        finally:
            if fresh and not any(path.name != ".lock" for path in out.iterdir()):
                shutil.rmtree(out)


class _Build:
    """One build: collect the passages, embed them, publish."""

    def __init__(
        self, out: Path, embedder: Embedder, reader: Reader, *, lexical: bool, chunk_tokens: int, progress: Progress
    ) -> None:
        self._out, self._embedder, self._lexical, self._progress = out, embedder, lexical, progress
        self._reader, self._chunk_tokens = reader, chunk_tokens
        self._cutter = Cutter(chunk_tokens, embedder.max_tokens - _SPECIAL_TOKENS, embedder.count_tokens)
        self._folder = out / unfinished_name()
        self._earlier = _earlier(out, embedder, chunk_tokens)

    def run(self, sources: Sequence[Source]) -> Built:
        earlier = self._earlier
        if earlier and earlier.manifest.lexical == self._lexical and same_sources(earlier.entries, sources):
            skipped = tuple(entry for entry in earlier.entries if entry.error)
            if not any(self._readable(entry) for entry in skipped if not entry.settled):
                return Built(earlier.manifest, skipped, len(sources) - len(skipped), 0, 0)
        left = self._left()
        self._folder.mkdir()
        try:
            entries, read = self._collect(sources)
            embedded = self._embed(left)
            manifest = self._publish(entries)
        except BaseException:
            if not len(left_over(self._folder, self._embedder)):
                shutil.rmtree(self._folder)  # nothing in it would save the next build any work
            raise
        self._clean(manifest, left)
        skipped = tuple(entry for entry in entries if entry.error)
        return Built(manifest, skipped, len(entries) - len(skipped), read, embedded)

    def _left(self) -> list[Path]:
        """What is left of the build that got furthest without finishing, if any; the others are removed."""
        folders = unfinished(self._out)
        folders.sort(key=lambda folder: len(left_over(folder, self._embedder)), reverse=True)
        for folder in folders[1:]:
            shutil.rmtree(folder, ignore_errors=True)
        return folders[:1]

    def _collect(self, sources: Sequence[Source]) -> tuple[list[DocumentEntry], int]:
        """Write the passages of all sources: the entries, and how many sources were read for it."""
        known = {entry.source: entry for entry in self._earlier.entries if not entry.error} if self._earlier else {}
        entries: list[DocumentEntry] = []
        read = 0
        with PassageWriter(self._folder) as writer:
            for done, source in enumerate(sources):
                self._progress("reading", done, len(sources))
                first, error, settled = len(writer), "", False
                try:
                    if (entry := known.get(source)) and self._earlier:
                        rows = range(entry.first_row, entry.first_row + entry.passages)
                        writer.write((source.path, self._earlier.passages[row]) for row in rows)
                    else:
                        writer.write(read_passages(source, self._cutter, self._reader.read))
                        read += 1
                except (BadDocument, BadCorpus) as unreadable:
                    error, settled = escaped(str(unreadable)), isinstance(unreadable, (SameId, TooMuch))
                entries.append(DocumentEntry(source, first, len(writer) - first, error, settled))
            if not len(writer):
                raise _nothing(entries)
        self._progress("reading", len(sources), len(sources))
        write_table(self._folder, entries)
        return entries, read

    def _readable(self, entry: DocumentEntry) -> bool:
        """Whether a file that could not be read can be by now, as after a change of its permissions."""
        try:
            for _ in read_passages(entry.source, _UNCOUNTED, self._reader.read):
                pass
        except (BadDocument, BadCorpus):
            return False
        return True

    def _embed(self, left: Sequence[Path]) -> int:
        """Write the vectors of all passages; how many were not known."""
        passages, known = PassageStore(self._folder), self._known(left)
        embedded = 0
        with open_vector_file(self._folder, self._embedder) as file:
            for start in range(0, len(passages), BATCH):
                end = min(start + BATCH, len(passages))
                texts = [embedded_text(passages[row]) for row in range(start, end)]
                vectors = [known.get(text) for text in texts]
                missing = [text for text, vector in zip(texts, vectors, strict=True) if vector is None]
                fresh = iter(self._embedder.embed(missing, queries=False) if missing else ())
                whole = [next(fresh) if vector is None else vector for vector in vectors]
                file.write(np.stack(whole).astype(np.float32).tobytes())
                file.flush()
                embedded += len(missing)
                self._progress("embedding", end, len(passages))
        return embedded

    def _known(self, left: Sequence[Path]) -> KnownVectors:
        earlier: list[tuple[PassageStore, int, VectorOf]] = []
        if self._earlier is not None:
            earlier.append((self._earlier.passages, len(self._earlier.passages), self._earlier.dense.vector))
        builds = list(earlier)
        for folder in left:
            vectors = left_over(folder, self._embedder)
            if len(vectors):
                builds.append((PassageStore(folder), len(vectors), vectors.__getitem__))
        try:
            return KnownVectors(builds)
        except BadIndex:  # what a killed build has left may be damaged; the one before has been verified
            return KnownVectors(earlier)

    def _publish(self, entries: Sequence[DocumentEntry]) -> Manifest:
        """Turn the finished folder into the generation that counts."""
        passages = PassageStore(self._folder)
        write_dense(self._folder, self._embedder.dimension, self._batches())
        close_vector_file(self._folder)
        if self._lexical:
            write_lexical(self._folder, (embedded_text(passages[row]) for row in range(len(passages))))
        return publish(self._out, self._folder, self._embedder, chunk_tokens=self._chunk_tokens, lexical=self._lexical)

    def _batches(self) -> Iterator[Vectors]:
        vectors = read_vector_file(self._folder, self._embedder.dimension)
        yield from (np.ascontiguousarray(vectors[at : at + BATCH]) for at in range(0, len(vectors), BATCH))

    def _clean(self, manifest: Manifest, left: Sequence[Path]) -> None:
        """Remove what no one reads any more. The generation before stays: someone may be about to open it."""
        keep = {manifest.generation, self._earlier.manifest.generation if self._earlier else ""}
        for folder in (*left, *(path for path in generations(self._out) if path.name not in keep)):
            shutil.rmtree(folder, ignore_errors=True)


def _earlier(out: Path, embedder: Embedder, chunk_tokens: int) -> _Earlier | None:
    """The generation before, if it is whole and was made in the very same way."""
    try:
        manifest = read_manifest(out)
    except BadIndex:
        return None
    if manifest.chunk_tokens == 0:
        raise BadIndex(f"{out}: an index of another program was adopted here; build into another folder.")
    made = (manifest.embedder, manifest.dimension, manifest.chunk_tokens)
    if made != (embedder.identity, embedder.dimension, chunk_tokens):
        return None
    folder = out / manifest.generation
    try:
        check_files(out, manifest, contents=True)
        return _Earlier(manifest, read_table(folder), PassageStore(folder), DenseIndex.open(folder))
    except (BadIndex, ValueError, msgspec.ValidationError):
        return None


def _nothing(entries: Sequence[DocumentEntry]) -> BadCorpus:
    failed = [entry for entry in entries if entry.error]
    if len(failed) == len(entries) == 1:
        return BadCorpus(failed[0].error)
    reasons = "".join(f"\n  {entry.error}" for entry in failed[:5])
    return BadCorpus(f"None of {len(entries)} documents holds anything that can be indexed.{reasons}")
