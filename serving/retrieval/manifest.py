"""The folder of an index: a manifest, written last, that names the generation of files that
counts.
"""

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
READING = 1
"""The version of the readers: a build reads again what another version has read."""
BUILDING = ".building"
"""The folder that becomes the next generation, inside the index folder."""
_LOCK = ".lock"
_LOCK_INTERVAL_S = 0.2


class FileEntry(msgspec.Struct, frozen=True):
    """One file of the folder."""

    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """The contents of an index folder."""

    format: Literal[2]
    generation: str
    """The folder inside the index folder that holds the files."""
    embedder: str
    """The embedder's `identity`."""
    dimension: int
    metric: Literal["inner_product", "l2"]
    passages: int
    chunk_tokens: int
    """Tokens of a passage; 0 where an index of another program was adopted."""
    corpus_sha256: str
    """Of the passages."""
    lexical: bool
    """BM25 statistics lie beside the vectors."""
    files: dict[str, FileEntry]
    """By path relative to the generation."""
    reading: int = 0
    """The `READING` by which the documents were read."""
    files_not_read: dict[str, int] = {}
    """Number of files at the indexed places that the index does not hold, by suffix, most first."""


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished index. Raises `BadIndex` where there is none, or not one of
    this format.
    """
    path = folder / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise BadIndex(
            f"{folder}: no index here, or one whose build did not finish ({MANIFEST}: "
            f"{error.strerror}); "
            "build it, or name another folder."
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadIndex(
            f"{path}: damaged, or of another version ({error}); build the index again."
        ) from error


def check_files(folder: Path, manifest: Manifest, *, contents: bool) -> None:
    """Compare every file's size, and with `contents` its SHA-256 too. Raises `BadIndex`."""
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
    """Make the finished folder `BUILDING` of the index `out` the generation that counts."""
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
    """The finished folders."""
    return [
        path
        for path in out.iterdir()
        if path.name.isdecimal() and len(path.name) >= 6 and path.is_dir()
    ]


def check_place(out: Path) -> None:
    """See that nothing but an index is in the folder `out`. Raises `BadIndex`."""
    if not out.is_dir():
        if out.exists():
            raise BadIndex(f"{out}: is a file; name a folder for the index.")
        return
    own = {path.name for path in generations(out) if (path / PASSAGES).is_file()}
    known = own | {MANIFEST} if own else own
    foreign = [
        path.name
        for path in out.iterdir()
        if not path.name.startswith(".") and path.name not in known
    ]
    if foreign:
        raise BadIndex(
            f"{out}: already exists and is no index ({foreign[0]}); name another folder."
        )


@contextmanager
def build_lock(
    folder: Path, *, wait: bool, waiting: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold the lock while open; it is freed too when the process dies. Raises `BadIndex` where
    another build runs and `wait` is false; else it calls `waiting` again and again, and raises what
    that raises.
    """
    with (folder / _LOCK).open("wb") as file:
        while not _locked(file):
            if not wait:
                raise BadIndex(
                    f"{folder}: another build is under way there; wait for it, or end it."
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
