"""The folder of an index. Each build writes a generation: a new folder, inside the index folder,
with all files of the index. The manifest, a JSON file, names the current generation.
"""

import fcntl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from router.errors import JSON_ERRORS, BadIndex
from router.frozen import Frozen
from serving.files import flush, sha256_of, write_atomically
from serving.retrieval.embedder import Embedder
from serving.retrieval.passages import PASSAGES, PassageStore

MANIFEST = "manifest.json"
READING = 4
"""Version of the code that reads documents and cuts them into passages. If another version has read
the documents of an index, the next build reads them again.
"""
BUILDING = ".building"
"""Name of the folder, inside the index folder, in which a build writes the next generation."""
_LOCK = ".lock"
_LOCK_INTERVAL_S = 0.2


class FileEntry(Frozen):
    """Size and SHA-256 of a file of an index."""

    size_bytes: int
    sha256: str


class Manifest(Frozen):
    """Description of an index, stored as JSON in the index folder."""

    format: Literal[2]
    generation: str
    """Name of the folder, inside the index folder, with the files of the current generation."""
    embedder: str
    """The `identity` of the embedder that computed the vectors."""
    dimension: int
    """Number of components of a vector."""
    metric: Literal["inner_product", "l2"]
    """Metric by which the FAISS index compares vectors."""
    passages: int
    """Number of passages."""
    chunk_tokens: int
    """Max tokens of a passage; 0 for an index that was adopted from another program."""
    corpus_sha256: str
    """SHA-256 of the file of passages. It identifies the contents of the index."""
    lexical: bool
    """Whether the index has word statistics for BM25."""
    files: dict[str, FileEntry]
    """All files of the current generation, by their paths inside the generation's folder."""
    reading: int = 0
    """The value of `READING` when the documents were read."""
    files_not_read: dict[str, int] = {}
    """Number of files that are in the indexed folders but not in the index, by suffix, with the
    most frequent suffix first.
    """
    vectors: str = "Flat"
    """Name of the vector store, such as a FAISS index factory string."""
    recall: Mapping[int, float] = {}
    """Recall of approximate searches. The keys are values of `top_k`, and the values are the mean
    share of the `top_k` nearest passages that a search finds. Empty for exact search.
    """

    @property
    def searched_by(self) -> str:
        """Vector store and recall as text, such as `HNSW32,SQ8, recall@3 0.990`."""
        shares = [f"recall@{top_k} {share:.3f}" for top_k, share in self.recall.items()]
        return ", ".join([self.vectors, *shares])


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of the index in `folder`. Raises `BadIndex` if the manifest is missing or
    damaged, or has another format.
    """
    path = folder / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise BadIndex(
            f"{folder}: contains no finished index ({MANIFEST}: {error.strerror}); run `rolegate "
            "index build` with your files in `documents` of the config, or choose another folder."
        ) from error
    except JSON_ERRORS as error:
        raise BadIndex(
            f"{path}: is damaged, or was written by another version of rolegate ({error}); "
            "run `rolegate index build` again."
        ) from error


def manifest_at(folder: Path) -> Manifest | None:
    """Return the manifest of the index in `folder`; None if the manifest is missing or cannot be
    read.
    """
    with suppress(BadIndex):
        return read_manifest(folder)
    return None


def check_files(folder: Path, manifest: Manifest, *, contents: bool) -> None:
    """Check that all files of an index exist and have the size that the manifest states.
    `contents`: also check their SHA-256. Raises `BadIndex` if a check fails.
    """
    for name, entry in manifest.files.items():
        path = folder / manifest.generation / name
        if not path.is_file():
            raise BadIndex(
                f"{path}: is missing; restore the file, or run `rolegate index build` again."
            )
        if (size := path.stat().st_size) != entry.size_bytes:
            raise BadIndex(
                f"{path}: has {size} bytes, but the manifest states {entry.size_bytes}; "
                "restore the file, or run `rolegate index build` again."
            )
        if contents and sha256_of(path) != entry.sha256:
            raise BadIndex(
                f"{path}: changed after the build; restore it, or run `rolegate index build` again."
            )


def publish(
    out: Path,
    embedder: Embedder,
    *,
    chunk_tokens: int,
    lexical: bool = False,
    metric: Literal["inner_product", "l2"] = "inner_product",
    files_not_read: dict[str, int] | None = None,
    vectors: str = "Flat",
    recall: Mapping[int, float] = {},
) -> Manifest:
    """Publish the finished folder `BUILDING` in the index folder `out` as the current generation,
    and return the new manifest. The other arguments become fields of the manifest.
    """
    folder = out / BUILDING
    files = dict[str, FileEntry]()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        flush(path)
        files[path.relative_to(folder).as_posix()] = FileEntry(path.stat().st_size, sha256_of(path))
    manifest = Manifest(
        format=2,
        generation=f"{max((int(path.name) for path in generations(out)), default=0) + 1:06}",
        embedder=embedder.identity,
        dimension=embedder.dimension,
        metric=metric,
        passages=len(PassageStore(folder)),
        chunk_tokens=chunk_tokens,
        corpus_sha256=files[PASSAGES].sha256,
        lexical=lexical,
        files=files,
        reading=READING,
        files_not_read=files_not_read or {},
        vectors=vectors,
        recall=recall,
    )
    folder.rename(out / manifest.generation)
    flush(out)
    write_manifest(out, manifest)
    return manifest


def write_manifest(out: Path, manifest: Manifest) -> None:
    """Replace the manifest in the index folder `out` atomically."""
    write_atomically(out / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")


def generations(out: Path) -> list[Path]:
    """Return the folders of all finished generations in the index folder `out`."""
    return [
        path
        for path in out.iterdir()
        if path.name.isdecimal() and len(path.name) >= 6 and path.is_dir()
    ]


def check_place(out: Path) -> None:
    """Raise `BadIndex` if an index must not be built in `out`, because `out` is a file, or a folder
    with files that do not belong to an index.
    """
    if not out.is_dir():
        if out.exists():
            raise BadIndex(f"{out}: is a file; choose a folder for the index.")
        return
    known = {path.name for path in generations(out) if (path / PASSAGES).is_file()}
    if known:
        known.add(MANIFEST)
    names = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    foreign = sorted(names - known)
    if foreign:
        raise BadIndex(
            f"{out}: exists and is not an index (it contains {foreign[0]}); choose another folder."
        )


@contextmanager
def build_lock(
    folder: Path, *, wait: bool, waiting: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold the build lock of the index in `folder` while the context is open. Blocks.

    If another build holds the lock and `wait` is False, raise `BadIndex`. If `wait` is True, wait
    until the other build has ended, and meanwhile call `waiting` several times a second.
    """
    with (folder / _LOCK).open("wb") as file:
        while not _locked(file):
            if not wait:
                raise BadIndex(
                    f"{folder}: another build of this index is running; wait until it has ended."
                )
            waiting()
            time.sleep(_LOCK_INTERVAL_S)
        yield


def _locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
