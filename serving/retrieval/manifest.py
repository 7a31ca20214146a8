"""The folder of an index: generations of files, and a manifest that names the current one."""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from router.errors import BadIndex
from serving.files import flush, sha256_of, write_atomically
from serving.retrieval.embedder import Embedder
from serving.retrieval.passages import PASSAGES, PassageStore

MANIFEST = "manifest.json"
READING = 2
"""Version of the readers: a build reads the files again that another version has read."""
BUILDING = ".building"
"""Folder inside the index folder that becomes the next generation."""
_LOCK = ".lock"
_LOCK_INTERVAL_S = 0.2


class FileEntry(msgspec.Struct, frozen=True):
    """Size and digest of a file."""

    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """The contents of an index folder."""

    format: Literal[2]
    generation: str
    """Folder inside the index folder that contains the files."""
    embedder: str
    """The embedder's `identity`."""
    dimension: int
    metric: Literal["inner_product", "l2"]
    passages: int
    chunk_tokens: int
    """Max tokens of a passage; 0 for an adopted index."""
    corpus_sha256: str
    """Digest of the passages."""
    lexical: bool
    """Whether the index has BM25 statistics."""
    files: dict[str, FileEntry]
    """Files by their path in the generation."""
    reading: int = 0
    """The `READING` of the readers that read the documents."""
    files_not_read: dict[str, int] = {}
    """Number of files that are not in the index by suffix, most frequent first."""


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of an index. Raises `BadIndex` if there is none of this format."""
    path = folder / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise BadIndex(
            f"{folder}: no index here, or one whose build did not finish ({MANIFEST}: "
            f"{error.strerror}); build it, or name another folder."
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadIndex(
            f"{path}: damaged, or of another version ({error}); build the index again."
        ) from error


def check_files(folder: Path, manifest: Manifest, *, contents: bool) -> None:
    """Compare the sizes of all files, and with `contents` their SHA-256. Raises `BadIndex`."""
    for name, entry in manifest.files.items():
        path = folder / manifest.generation / name
        if not path.is_file():
            raise BadIndex(f"{path}: missing; restore it or build the index again.")
        if (size := path.stat().st_size) != entry.size_bytes:
            raise BadIndex(
                f"{path}: {size} bytes where the manifest says {entry.size_bytes}; "
                "restore it or build the index again."
            )
        if contents and sha256_of(path) != entry.sha256:
            raise BadIndex(
                f"{path}: altered since it was built; restore it or build the index again."
            )


def publish(
    out: Path,
    embedder: Embedder,
    *,
    chunk_tokens: int,
    lexical: bool = False,
    metric: Literal["inner_product", "l2"] = "inner_product",
    files_not_read: dict[str, int] | None = None,
) -> Manifest:
    """Make the finished folder `BUILDING` of the index `out` the current generation."""
    folder = out / BUILDING
    files: dict[str, FileEntry] = {}
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
    )
    folder.rename(out / manifest.generation)
    flush(out)
    write_manifest(out, manifest)
    return manifest


def write_manifest(out: Path, manifest: Manifest) -> None:
    """Replace the manifest of the index `out`."""
    write_atomically(out / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")


def generations(out: Path) -> list[Path]:
    """Return the folders of finished generations."""
    return [
        path
        for path in out.iterdir()
        if path.name.isdecimal() and len(path.name) >= 6 and path.is_dir()
    ]


def check_place(out: Path) -> None:
    """Raise `BadIndex` if the folder `out` contains anything but an index."""
    if not out.is_dir():
        if out.exists():
            raise BadIndex(f"{out}: is a file; name a folder for the index.")
        return
    known = {path.name for path in generations(out) if (path / PASSAGES).is_file()}
    if known:
        known.add(MANIFEST)
    names = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    foreign = sorted(names - known)
    if foreign:
        raise BadIndex(
            f"{out}: already exists and is no index ({foreign[0]}); name another folder."
        )


@contextmanager
def build_lock(
    folder: Path, *, wait: bool, waiting: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold the build lock of an index while the context is open.

    Another build makes it raise `BadIndex`, or with `wait`, call `waiting` until that has ended.
    """
    with (folder / _LOCK).open("wb") as file:
        while not _locked(file):
            if not wait:
                raise BadIndex(f"{folder}: another build is running there; wait for it, or end it.")
            waiting()
            time.sleep(_LOCK_INTERVAL_S)
        yield


def _locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
