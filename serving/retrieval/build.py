"""Building an index: new documents are read and embedded, the rest is taken from the build before.

A build fills a hidden folder inside the index folder, which becomes the next generation when it is
whole; the manifest, replaced last and at once, names the generation that counts. Vectors that a
killed build has computed lie in a file beside it, for the next one.
"""

import errno
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from router.errors import BadCorpus, BadDocument, BadIndex
from serving.documents.cutter import Cutter, read_passages
from serving.documents.document import Part, Unread, escaped
from serving.documents.reader import Reader
from serving.documents.source import Found, Source, find_sources
from serving.retrieval.dense import DenseIndex, new_vectors, write_dense
from serving.retrieval.embedder import Embedder, Vectors
from serving.retrieval.lexical import has_words, write_lexical
from serving.retrieval.manifest import (
    BUILDING,
    READING,
    Manifest,
    build_lock,
    check_files,
    check_place,
    generations,
    publish,
    read_manifest,
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
"""Passages embedded between two calls of `progress`."""
_SPECIAL_TOKENS = 2
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_EMBEDDED = ".embedded-"
_UNIT_WITHIN = 1e-3

Progress = Callable[[str, int, int], None]
"""Called with the stage (`reading` documents, `embedding` passages), how many are done, and of how
many; `reading` 0 of 0 while another build is waited for. Whatever it raises ends the build.
"""


class Built(NamedTuple):
    """The result of a build."""

    manifest: Manifest
    found: Found
    """The files that were looked at."""
    entries: Sequence[DocumentEntry]
    """All files below the places."""
    documents_read: int = 0
    """Files that were new or changed."""
    embedded: int = 0
    """Passages that were embedded; all others were known."""

    @property
    def skipped(self) -> list[DocumentEntry]:
        """Files that could not be read, with the reason."""
        return [entry for entry in self.entries if entry.error]

    @property
    def documents(self) -> int:
        """Number of files that the index holds."""
        return len(self.entries) - len(self.skipped)


class _Earlier(NamedTuple):
    """The generation before."""

    manifest: Manifest
    entries: list[DocumentEntry]
    """Empty where the readers were others."""
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
    """Bring the index in the folder `out` up to date with the files and folders `places`. Blocks
    while it embeds.

    `wait`: for another build of this index to end. Raises `BadDocument` or `BadCorpus` where
    nothing can be read, `BadIndex` where `out` holds something else, and what `embedder` raises;
    the index is then what it was before.
    """
    found = find_sources(places)
    new = not out.exists()
    check_place(out)
    out.mkdir(parents=True, exist_ok=True)
    with build_lock(out, wait=wait, waiting=lambda: progress("reading", 0, 0)), Reader() as reader:
        out.mkdir(exist_ok=True)  # a build that was waited for removes what it leaves empty
        try:
            chunk_tokens = min(chunk_tokens, embedder.max_tokens - _SPECIAL_TOKENS)
            build = _Build(
                out, embedder, reader, lexical=lexical, chunk_tokens=chunk_tokens, progress=progress
            )
            return build.run(found)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise BadIndex(
                f"{out}: cannot be written: {error.strerror}; make room there and build "
                "it again, which goes on from "
                "what is embedded."
            ) from error
        finally:
            shutil.rmtree(out / BUILDING, ignore_errors=True)
            if new and not any(path.name != ".lock" for path in out.iterdir()):
                shutil.rmtree(out)


class _Build:
    """One build: collect the passages, embed them, publish."""

    def __init__(
        self,
        out: Path,
        embedder: Embedder,
        reader: Reader,
        *,
        lexical: bool,
        chunk_tokens: int,
        progress: Progress,
    ) -> None:
        self._out = out
        self._embedder = embedder
        self._lexical = lexical
        self._progress = progress
        self._reader = reader
        self._chunk_tokens = chunk_tokens
        self._folder = out / BUILDING
        self._earlier = _earlier(out, embedder, chunk_tokens)

    def run(self, found: Found) -> Built:
        found = _outside(self._out, found)
        earlier = self._earlier
        sources = list(found.sources)
        before = earlier.entries if earlier and has_words(earlier.manifest) == self._lexical else []
        if (
            earlier
            and [entry.source for entry in before] == sources
            and not any(entry.error for entry in before)
        ):
            return Built(self._noted(earlier.manifest, found, before), found, before)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        entries, read = self._collect(sources)
        if earlier and entries == before:  # what could not be read still cannot be
            return Built(self._noted(earlier.manifest, found, before), found, before)
        embedded = self._embed()
        manifest = publish(
            self._out,
            self._embedder,
            chunk_tokens=self._chunk_tokens,
            lexical=self._lexical,
            files_not_read=_files_not_read(found, entries),
        )
        self._clean(manifest)
        return Built(manifest, found, entries, read, embedded)

    def _noted(
        self, manifest: Manifest, found: Found, entries: Sequence[DocumentEntry]
    ) -> Manifest:
        """Return the manifest of an unchanged index with the files that are not read now."""
        noted = replace(manifest, files_not_read=_files_not_read(found, entries))
        if noted != manifest:
            write_manifest(self._out, noted)
        return noted

    def _collect(self, sources: Sequence[Source]) -> tuple[list[DocumentEntry], int]:
        """Write the passages of all sources: the entries, and how many sources were read for it."""
        known = (
            {entry.source: entry for entry in self._earlier.entries if not entry.error}
            if self._earlier
            else {}
        )
        cutter = Cutter(
            self._chunk_tokens,
            self._embedder.max_tokens - _SPECIAL_TOKENS,
            self._embedder.count_tokens,
        )
        entries: list[DocumentEntry] = []
        read = 0
        with PassageWriter(self._folder) as writer:
            for done, source in enumerate(sources):
                self._progress("reading", done, len(sources))
                first = len(writer)
                error = ""
                unread: list[str] = []
                try:
                    if (entry := known.get(source)) and self._earlier:
                        unread.append(entry.unread)
                        rows = range(entry.first_row, entry.first_row + entry.passages)
                        writer.write((source.path, self._earlier.passages[row]) for row in rows)
                    else:
                        writer.write(read_passages(source, cutter, partial(self._read, unread)))
                        read += 1
                except (BadDocument, BadCorpus) as unreadable:
                    error = escaped(str(unreadable))
                entries.append(
                    DocumentEntry(source, first, len(writer) - first, error, "; ".join(unread))
                )
            if not len(writer):
                raise _nothing(entries)
        self._progress("reading", len(sources), len(sources))
        write_table(self._folder, entries)
        return entries, read

    def _read(self, unread: list[str], path: Path) -> Iterator[Part]:
        """Read a file, and note the parts of it that are not read."""
        for part in self._reader.read(path):
            if isinstance(part, Unread):
                unread.append(part.text)
            else:
                yield part

    def _embed(self) -> int:
        """Write the vectors of all passages, and their words; the number of those that were not
        known.
        """
        passages = PassageStore(self._folder)
        vectors = new_vectors(self._embedder.dimension)
        known = _KnownVectors(self._out, self._embedder, self._earlier)
        embedded = 0
        for start in range(0, len(passages), BATCH):
            end = min(start + BATCH, len(passages))
            texts = [embedded_text(passages[row]) for row in range(start, end)]
            found = [known.get(text) for text in texts]
            missing = [text for text, vector in zip(texts, found, strict=True) if vector is None]
            computed = iter(
                known.add(missing, self._embedder.embed(missing, queries=False)) if missing else ()
            )
            vectors.add(
                np.stack([next(computed) if vector is None else vector for vector in found])
            )
            embedded += len(missing)
            self._progress("embedding", end, len(passages))
        write_dense(self._folder, vectors)
        if self._lexical:
            write_lexical(
                self._folder, (embedded_text(passages[row]) for row in range(len(passages)))
            )
        return embedded

    def _clean(self, manifest: Manifest) -> None:
        """Remove what no one reads any more. The generation before stays: someone may be about
        to open it.
        """
        keep = {manifest.generation, self._earlier.manifest.generation if self._earlier else ""}
        for path in generations(self._out):
            if path.name not in keep:
                shutil.rmtree(path, ignore_errors=True)
        for path in self._out.glob(f"{_EMBEDDED}*"):
            path.unlink()


class _KnownVectors:
    """Vectors by the text that they stand for: of the generation before, and of builds that did not
    finish, which lie in a file.
    """

    def __init__(self, out: Path, embedder: Embedder, earlier: _Earlier | None) -> None:
        self._path = out / f"{_EMBEDDED}{_key(f'{embedder.dimension} {embedder.identity}').hex()}"
        self._record = np.dtype([("key", "V16"), ("vector", np.float32, embedder.dimension)])
        left = self._left_over()
        self._earlier = earlier
        self._left = left["vector"]
        self._rows = len(earlier.passages) if earlier else 0
        texts = (
            (embedded_text(earlier.passages[row]) for row in range(self._rows)) if earlier else ()
        )
        self._row_of = {
            key: row for row, key in enumerate(chain(map(_key, texts), left["key"].tolist()))
        }

    def get(self, text: str) -> Vectors | None:
        """The vector of exactly this text, (dimension,) float32, if it is known."""
        if (row := self._row_of.get(_key(text))) is None:
            return None
        if row < self._rows and self._earlier:
            return self._earlier.dense.vector(row)
        vector: Vectors = self._left[row - self._rows]
        return vector

    def add(self, texts: Sequence[str], vectors: Vectors) -> Vectors:
        """Keep the vectors of these texts, (batch, dimension) float32, for a build after this
        one.
        """
        records = np.empty(len(texts), self._record)
        records["key"] = np.array([_key(text) for text in texts], "V16")
        records["vector"] = vectors
        with self._path.open("ab") as file:
            file.write(records.tobytes())
        return vectors

    def _left_over(self) -> NDArray[Any]:
        if not self._path.exists():
            return np.empty(0, self._record)
        records = np.fromfile(self._path, self._record)
        # After a power failure a file may hold blocks of zeros: it counts up to the first that is
        # no unit vector.
        whole = np.abs(np.linalg.norm(records["vector"], axis=1) - 1) < _UNIT_WITHIN
        records = records[: len(whole) if whole.all() else int(whole.argmin())]
        with self._path.open("ab") as file:
            file.truncate(records.nbytes)
        return records


def _key(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=16).digest()


def _earlier(out: Path, embedder: Embedder, chunk_tokens: int) -> _Earlier | None:
    """The generation before, if it is whole and was made in the very same way."""
    try:
        manifest = read_manifest(out)
    except BadIndex:
        return None
    if manifest.chunk_tokens == 0:
        raise BadIndex(
            f"{out}: an index of another program was adopted here; build into another folder."
        )
    made = (manifest.embedder, manifest.dimension, manifest.chunk_tokens)
    if made != (embedder.identity, embedder.dimension, chunk_tokens):
        return None
    folder = out / manifest.generation
    try:
        check_files(out, manifest, contents=True)
        entries = read_table(folder) if manifest.reading == READING else []
        return _Earlier(manifest, entries, PassageStore(folder), DenseIndex.open(folder))
    except (BadIndex, ValueError, msgspec.ValidationError):
        return None


def _outside(out: Path, found: Found) -> Found:
    """Leave out the files of the index itself."""
    out = out.resolve()
    return replace(
        found,
        sources=tuple(source for source in found.sources if not _is_in(out, source.path)),
        passed_over=tuple(path for path in found.passed_over if not _is_in(out, path)),
    )


def _is_in(folder: Path, path: str) -> bool:
    return Path(path).resolve().is_relative_to(folder)


def _files_not_read(found: Found, entries: Sequence[DocumentEntry]) -> dict[str, int]:
    failed = (entry.source.name for entry in entries if entry.error)
    counts = Counter(
        Path(name).suffix.lower() or "no suffix" for name in chain(found.passed_over, failed)
    )
    return dict(sorted(counts.items(), key=lambda count: (-count[1], count[0])))


def _nothing(entries: Sequence[DocumentEntry]) -> BadCorpus:
    failed = [entry for entry in entries if entry.error]
    if len(failed) == len(entries) == 1:
        return BadCorpus(failed[0].error)
    reasons = "".join(f"\n  {entry.error}" for entry in failed[:5])
    return BadCorpus(
        f"None of {len(entries)} documents holds anything that can be indexed.{reasons}"
    )
