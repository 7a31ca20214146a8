"""The manifest of an index folder: what the folder holds. It is written last, so a folder without one is unfinished."""

from pathlib import Path
from typing import Literal

import msgspec

from router.errors import BadIndex
from serving.files import flush, sha256_of, write_atomically

MANIFEST = "manifest.json"
FORMAT = 2


class FileEntry(msgspec.Struct, frozen=True):
    """One file of the folder."""

    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What an index folder holds."""

    format: int
    generation: str
    """The folder inside the index folder that holds the files."""
    embedder: str
    """The embedder's `identity`."""
    dimension: int
    metric: Literal["inner_product", "l2"]
    passages: int
    chunk_tokens: int
    """How documents were cut; 0 where an index of another program was adopted."""
    corpus_sha256: str
    """Of the passages."""
    lexical: bool
    """Whether BM25 statistics lie beside the vectors."""
    files: dict[str, FileEntry]
    """By path relative to the generation."""


class _Format(msgspec.Struct, frozen=True):
    format: int


def describe_files(folder: Path) -> dict[str, FileEntry]:
    """Every file below `folder`, flushed to disk and hashed."""
    files: dict[str, FileEntry] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            flush(path)
            files[path.relative_to(folder).as_posix()] = FileEntry(path.stat().st_size, sha256_of(path))
    return files


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, atomically."""
    write_atomically(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")


def has_manifest(folder: Path) -> bool:
    """Whether a manifest lies there, of whatever version."""
    try:
        msgspec.json.decode((folder / MANIFEST).read_bytes(), type=_Format)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def read_manifest(folder: Path) -> Manifest:
    """Raises `BadIndex` where there is none, where it is damaged, and where a newer version wrote it."""
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadIndex(
            f"{folder}: no index here, or one whose build did not finish ({MANIFEST}: {error.strerror}); "
            "build it, or name another folder."
        ) from error
    try:
        if (found := msgspec.json.decode(content, type=_Format).format) > FORMAT:
            raise BadIndex(
                f"{path}: format {found}, but this version of rolegate reads up to {FORMAT}; "
                "upgrade rolegate or build the index again."
            )
        if found < FORMAT:
            raise BadIndex(f"{path}: format {found}, of an older version of rolegate; build the index again.")
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadIndex(f"{path}: damaged ({error}); build the index again.") from error


def check_files(folder: Path, manifest: Manifest, *, contents: bool) -> None:
    """Compare every file's size, and with `contents` its SHA-256 too. Raises `BadIndex`."""
    for name, entry in manifest.files.items():
        path = folder / manifest.generation / name
        if not path.is_file():
            raise BadIndex(f"{path}: missing; restore it or build the index again.")
        if (size := path.stat().st_size) != entry.size_bytes:
            raise BadIndex(
                f"{path}: {size} bytes where the manifest says {entry.size_bytes}; restore it or build the index again."
            )
        if contents and sha256_of(path) != entry.sha256:
            raise BadIndex(f"{path}: altered since it was built; restore it or build the index again.")
