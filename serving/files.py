"""Files that are their owner's alone, and either whole or absent, also after a crash."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp


@contextmanager
def private_files() -> Iterator[None]:
    """Make every file and folder that this process creates while this is open its owner's alone,
    from its first byte.

    It sets the process's umask, as PostgreSQL does, so that it holds for what libraries create too
    (SQLite, Arrow, NumPy, trainers) and for child processes.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a temporary file next to `path`, flush it to disk and rename it over `path`.
    Raises `OSError` and then leaves `path` as it was.
    """
    with replacing(path) as unfinished:
        unfinished.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a file to write to, which becomes `path` when the context is left; an error leaves
    `path` as it was. It is an empty file at first, its owner's alone, and stays so.
    """
    descriptor, name = mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(descriptor)
    unfinished = Path(name)
    try:
        yield unfinished
        flush(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    flush(path.parent)


def flush(path: Path) -> None:
    """Ask the system to put a file's content, or a folder's names, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """In hexadecimal, read in pieces. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
