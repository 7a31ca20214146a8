"""Build an index. New and changed documents are read and embedded; everything else is copied from
the previous build.

A build writes to a hidden folder inside the index folder. The hidden folder is then renamed and
becomes the next generation of the index. As the last step, the manifest, which names the current
generation, is replaced atomically. As soon as vectors are computed, they are also written to a
file. If the build is killed, the next build reuses these vectors.
"""

import errno
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from router.errors import BadCorpus, BadDocument, BadIndex, NoText
from serving.documents.cutter import Cutter, read_passages
from serving.documents.document import Part, Unread, escaped
from serving.documents.reader import DocumentReader
from serving.documents.source import FoundFiles, SourceFile, find_sources
from serving.retrieval.dense import VectorIndex, VectorStore
from serving.retrieval.embedder import Embedder, Vectors
from serving.retrieval.faiss_index import FaissIndex
from serving.retrieval.lexical import has_words, write_lexical
from serving.retrieval.manifest import (
    BUILDING,
    READING,
    Manifest,
    build_lock,
    check_files,
    check_place,
    generations,
    manifest_at,
    publish,
    write_manifest,
)
from serving.retrieval.passages import (
    DocumentEntry,
    PassageStore,
    PassageWriter,
    embedded_text,
    read_table,
    write_table,
)

BATCH = 256
"""Default number of passages to embed between two calls of `progress`."""
_SPECIAL_TOKENS = 2
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_EMBEDDED = ".embedded-"
_UNIT_TOLERANCE = 1e-3

Progress = Callable[[str, int, int], None]
"""Callback for the progress of a build. The arguments are the stage (`reading` or `embedding`), the
number of items done so far, and the total number of items. Items are documents in the stage
`reading`, and passages in the stage `embedding`. While the build waits for another build, the
arguments are `reading`, 0 and 0. If the callback raises an exception, the build ends.
"""


class Built(NamedTuple):
    """The index after a build, and what the build did."""

    manifest: Manifest
    files: FoundFiles
    """The files that were found in the files and folders to index."""
    entries: Sequence[DocumentEntry]
    """Entries of all source files, including files that could not be read."""
    documents_read: int = 0
    """Number of new or changed files that were read."""
    embedded: int = 0
    """Number of passages that were embedded. The vectors of all other passages were reused."""

    @property
    def skipped(self) -> list[DocumentEntry]:
        """Entries of the files that could not be read, each with the reason in `error`."""
        return [entry for entry in self.entries if entry.error]

    @property
    def documents(self) -> int:
        """Number of files that the index contains."""
        return len(self.entries) - len(self.skipped)


class _Earlier(NamedTuple):
    """The previous generation of the index (the files of the previous build), opened."""

    manifest: Manifest
    entries: list[DocumentEntry]
    """Entries of the source files. Empty if another version of the document readers has read the
    files; then all files must be read again.
    """
    passages: PassageStore
    dense: VectorIndex


def build_index(
    places: Sequence[Path] | FoundFiles,
    out: Path,
    embedder: Embedder,
    *,
    lexical: bool = False,
    chunk_tokens: int = 200,
    wait: bool = True,
    progress: Progress = lambda _stage, _done, _total: None,
    store: VectorStore = FaissIndex,
    batch: int = BATCH,
) -> Built:
    """Create the index in the folder `out`, or update it. `places`: files and folders to index, or
    the result of `find_sources` for these. Blocks.

    `lexical`: whether to write word statistics for BM25. `chunk_tokens`: max tokens of a passage.
    `wait`: what to do while another build of this index is running: True waits until it ends, and
    False raises `BadIndex`. `store`: writes and opens the vectors. `batch`: number of passages to
    embed between two calls of `progress`.

    Raises `BadDocument` or `NoText` if nothing can be read, `BadIndex` if `out` is not the folder
    of an index or cannot be written, and the errors of `embedder`. After an error, the index is
    unchanged.
    """
    files = places if isinstance(places, FoundFiles) else find_sources(places)
    is_new = not out.exists()
    check_place(out)
    out.mkdir(parents=True, exist_ok=True)
    with (
        build_lock(out, wait=wait, waiting=lambda: progress("reading", 0, 0)),
        DocumentReader() as reader,
    ):
        out.mkdir(exist_ok=True)  # a failed build that was waited for may have removed the folder
        try:
            chunk_tokens = min(chunk_tokens, embedder.max_tokens - _SPECIAL_TOKENS)
            build = _Build(
                out,
                embedder,
                store,
                reader,
                lexical=lexical,
                chunk_tokens=chunk_tokens,
                progress=progress,
                batch=batch,
            )
            return build.run(_outside(out, files))
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise
            raise BadIndex(
                f"{out}: cannot be written ({error.strerror}); free space on its disk, and build "
                "the index again. Vectors computed so far are kept."
            ) from error
        finally:
            shutil.rmtree(out / BUILDING, ignore_errors=True)
            if is_new and not any(path.name != ".lock" for path in out.iterdir()):
                shutil.rmtree(out)


@dataclass
class _Build:
    """One build of an index: collects the passages, embeds them, and publishes the result."""

    out: Path
    embedder: Embedder
    store: VectorStore
    reader: DocumentReader
    lexical: bool
    chunk_tokens: int
    progress: Progress
    batch: int

    def __post_init__(self) -> None:
        self.folder = self.out / BUILDING
        self.earlier = self._open_earlier()

    def run(self, files: FoundFiles) -> Built:
        """Build the index from `files`. If nothing has changed, build nothing and return the
        previous generation.
        """
        earlier = self.earlier
        sources = list(files.sources)
        before = list[DocumentEntry]()
        if earlier and self._is_alike(earlier.manifest):
            before = earlier.entries
        is_unchanged = [entry.source for entry in before] == sources
        if earlier and is_unchanged and not any(entry.error for entry in before):
            return self._unchanged(earlier, files)

        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        known = {}
        if earlier:
            known = {entry.source: entry for entry in earlier.entries if not entry.error}
        entries = self._collect(sources, known)
        if earlier and entries == before:  # unreadable files were tried again, with the same result
            return self._unchanged(earlier, files)

        embedded, recall = self._embed()
        manifest = publish(
            self.out,
            self.embedder,
            chunk_tokens=self.chunk_tokens,
            lexical=self.lexical,
            files_not_read=_files_not_read(files, entries),
            vectors=self.store.name,
            recall=recall,
        )
        self._clean(manifest)
        is_read = (not entry.error and entry.source not in known for entry in entries)
        return Built(
            manifest,
            files,
            entries,
            sum(is_read),
            embedded,
        )

    def _open_earlier(self) -> _Earlier | None:
        """Open the previous generation of the index. Return None if there is no previous
        generation, if it is damaged, or if it was built with other settings. Raises `BadIndex` for
        an adopted index.
        """
        manifest = manifest_at(self.out)
        if manifest is None:
            return None
        if manifest.chunk_tokens == 0:
            raise BadIndex(
                f"{self.out}: contains an index that was adopted from another program, and "
                "adopted indexes cannot be updated; build into another folder."
            )
        before = (manifest.embedder, manifest.dimension, manifest.chunk_tokens)
        if before != (
            self.embedder.identity,
            self.embedder.dimension,
            self.chunk_tokens,
        ):
            return None

        folder = self.out / manifest.generation
        try:
            check_files(self.out, manifest, contents=True)
            entries = read_table(folder) if manifest.reading == READING else []
            return _Earlier(manifest, entries, PassageStore(folder), self.store.open(folder))
        except (BadIndex, ValueError, msgspec.ValidationError):
            return None

    def _is_alike(self, manifest: Manifest) -> bool:
        """Return True if the previous generation can be kept when no file has changed. It must have
        word statistics if and only if `lexical` is true, have the same vector store, and have lost
        no vectors. `manifest`: manifest of the previous generation.
        """
        return (
            has_words(manifest) == self.lexical
            and manifest.vectors == self.store.name
            and self.store.is_complete(self.out / manifest.generation)
        )

    def _unchanged(self, earlier: _Earlier, files: FoundFiles) -> Built:
        """Return the previous generation as the result of the build. If the numbers of files that
        were not read have changed, write them to the manifest.
        """
        counts = _files_not_read(files, earlier.entries)
        manifest = replace(earlier.manifest, files_not_read=counts)
        if manifest != earlier.manifest:
            write_manifest(self.out, manifest)
        return Built(manifest, files, earlier.entries)

    def _collect(
        self, sources: Sequence[SourceFile], known: Mapping[SourceFile, DocumentEntry]
    ) -> list[DocumentEntry]:
        """Write the passages of all source files, and return the entries of the files. `known`: the
        entries of the previous generation, by file. Passages of a file in `known` are copied; other
        files are read. Raises `NoText` if there are no passages.
        """
        row_tokens = self.embedder.max_tokens - _SPECIAL_TOKENS
        cutter = Cutter(self.chunk_tokens, row_tokens, self.embedder.count_tokens)
        entries = list[DocumentEntry]()
        with PassageWriter(self.folder) as writer:
            for done, source in enumerate(sources):
                self.progress("reading", done, len(sources))
                entries.append(self._add(source, known.get(source), writer, cutter))
            if not len(writer):
                raise _nothing_to_index(entries)
        self.progress("reading", len(sources), len(sources))
        write_table(self.folder, entries)
        return entries

    def _add(
        self,
        source: SourceFile,
        known: DocumentEntry | None,
        writer: PassageWriter,
        cutter: Cutter,
    ) -> DocumentEntry:
        """Write the passages of one source file, and return the file's entry. `known`: the file's
        entry in the previous generation, from which the passages are then copied; None to read the
        file.
        """
        first = len(writer)
        error = ""
        unread = list[str]()
        try:
            if known and self.earlier:
                unread.append(known.unread)
                passages = self.earlier.passages
                rows = range(known.first_row, known.first_row + known.passages)
                writer.write((source.path, passages.stored(row)) for row in rows)
            else:
                writer.write(read_passages(source, cutter, partial(self._read, unread)))
        except (BadDocument, BadCorpus) as unreadable:
            error = escaped(str(unreadable))
        return DocumentEntry(
            source,
            first,
            len(writer) - first,
            error,
            "; ".join(unread),
        )

    def _read(self, unread: list[str], path: Path) -> Iterator[Part]:
        """Yield the readable parts of a file. Add descriptions of unreadable parts to `unread`."""
        for part in self.reader.read(path):
            if isinstance(part, Unread):
                unread.append(part.text)
            else:
                yield part

    def _embed(self) -> tuple[int, Mapping[int, float]]:
        """Write the vectors and, if `lexical` is true, the word statistics. Return the number of
        passages that were embedded, and the recall of searches (see `VectorStore.build`).
        """
        passages = PassageStore(self.folder)
        cache = _VectorCache(self.out, self.embedder, self.earlier)

        def texts(start: int, end: int) -> Iterator[str]:
            return (embedded_text(passages[row]) for row in range(start, end))

        def batches() -> Iterator[Vectors]:
            for start in range(0, len(passages), self.batch):
                end = min(start + self.batch, len(passages))
                yield cache.embed(list(texts(start, end)))
                self.progress("embedding", end, len(passages))

        recall = self.store.build(self.folder, self.embedder.dimension, batches())
        if self.lexical:
            write_lexical(self.folder, texts(0, len(passages)))
        return cache.embedded, recall

    def _clean(self, manifest: Manifest) -> None:
        """Remove files that are no longer used. The previous generation is kept, because another
        process may be opening it.
        """
        keep = {
            manifest.generation,
            self.earlier.manifest.generation if self.earlier else "",
        }
        for path in generations(self.out):
            if path.name not in keep:
                shutil.rmtree(path, ignore_errors=True)
        for path in (*self.out.glob(f"{_EMBEDDED}*"), *self.out.glob(".*.faiss*")):
            path.unlink()


class _VectorCache:
    """Cache of vectors by text. The cache is filled from the previous generation and from
    unfinished builds. Texts that are not in the cache are embedded.

    New vectors are appended to a file. Each record of the file has the digest of a text, and the
    text's vector. If this build is killed, the next build reads the vectors from the file.
    """

    def __init__(self, out: Path, embedder: Embedder, earlier: _Earlier | None) -> None:
        self._path = out / f"{_EMBEDDED}{_key(f'{embedder.dimension} {embedder.identity}').hex()}"
        self._record = np.dtype([("key", "V16"), ("vector", np.float32, embedder.dimension)])
        self._embedder = embedder
        self._earlier = earlier
        self._earlier_rows = len(earlier.passages) if earlier else 0
        self.embedded = 0
        """Number of texts that were embedded."""

        unfinished = self._read_unfinished()
        self._unfinished = unfinished["vector"]
        keys: Iterator[bytes] = iter(())
        if earlier:
            passages = earlier.passages
            keys = (_key(embedded_text(passages[row])) for row in range(self._earlier_rows))
        self._row_of = {key: row for row, key in enumerate(chain(keys, unfinished["key"].tolist()))}

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of `texts` as an array of float32 with the shape (batch, dimension).
        Texts that are not in the cache are embedded.
        """
        rows = [self._row_of.get(_key(text)) for text in texts]
        missing = [text for text, row in zip(texts, rows, strict=True) if row is None]
        computed = iter(self._compute(missing) if missing else ())
        return np.stack([next(computed) if row is None else self._vector(row) for row in rows])

    def _vector(self, row: int) -> Vectors:
        if row < self._earlier_rows and self._earlier:
            vector: Vectors = self._earlier.dense.vectors(np.array([row]))[0]
            return vector
        vector = self._unfinished[row - self._earlier_rows]
        return vector

    def _compute(self, texts: Sequence[str]) -> Vectors:
        """Embed `texts`, append their vectors to the file, and return the vectors."""
        vectors = self._embedder.embed(texts, queries=False)
        records = np.empty(len(texts), self._record)
        records["key"] = np.array([_key(text) for text in texts], "V16")
        records["vector"] = vectors
        with self._path.open("ab") as file:
            file.write(records.tobytes())
        self.embedded += len(texts)
        return vectors

    def _read_unfinished(self) -> NDArray[Any]:
        """Return the records that a killed build has left in the file of new vectors, up to the
        first damaged record. Truncate the file there. Return an empty array if there is no file.
        """
        size = 0
        if self._path.exists():
            size = self._path.stat().st_size // self._record.itemsize
        if not size:
            return np.empty(0, self._record)
        records: NDArray[Any] = np.memmap(self._path, self._record, "r", shape=(size,))
        # After a power failure, the file may contain blocks of zeros. Records there are damaged:
        # their vectors do not have the length 1.
        squares = np.einsum("ij,ij->i", records["vector"], records["vector"])
        is_unit = np.abs(squares - 1) < _UNIT_TOLERANCE
        records = records[: len(is_unit) if is_unit.all() else int(is_unit.argmin())]
        with self._path.open("ab") as file:
            file.truncate(records.nbytes)
        return records


def _key(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=16).digest()


def _outside(out: Path, files: FoundFiles) -> FoundFiles:
    """Return `files` without files inside the index folder `out`."""
    out = out.resolve()

    def is_outside(path: str) -> bool:
        return not Path(path).resolve().is_relative_to(out)

    return replace(
        files,
        sources=tuple(source for source in files.sources if is_outside(source.path)),
        passed_over=tuple(filter(is_outside, files.passed_over)),
    )


def _files_not_read(files: FoundFiles, entries: Sequence[DocumentEntry]) -> dict[str, int]:
    """Return the number of files that are not in the index, by suffix, with the most frequent
    suffix first.
    """
    failed = (entry.source.name for entry in entries if entry.error)
    counts = Counter(
        Path(name).suffix.lower() or "no suffix" for name in chain(files.passed_over, failed)
    )
    return dict(sorted(counts.items(), key=lambda count: (-count[1], count[0])))


def _nothing_to_index(entries: Sequence[DocumentEntry]) -> NoText:
    failed = [entry for entry in entries if entry.error]
    reasons = {entry.source.path: entry.error for entry in failed}
    if len(failed) == len(entries) == 1:
        return NoText(failed[0].error, reasons=reasons)
    first = "".join(f"\n  {entry.error}" for entry in failed[:5])
    return NoText(
        f"None of the {len(entries)} documents contains text to index; add other documents.{first}",
        reasons=reasons,
    )
