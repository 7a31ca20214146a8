"""Files that are their owner's alone, and either whole or absent, also after a crash."""

import fcntl
import glob
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


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
    """The file to write to, which becomes `path` when the context is left; an error leaves `path`
    as it was.

    It is an empty file at first, its owner's alone, and stays so. What a killed process has left of
    an earlier try is removed.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}"):
        with suppress(OSError), left.open("rb") as found:  # of others, perhaps, or gone
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not while its writer lives
            left.unlink()
    unfinished, file = _locked_beside(path)
    with file:
        try:
            yield unfinished
            flush(unfinished)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    flush(path.parent)


def _locked_beside(path: Path) -> tuple[Path, BinaryIO]:
    """A new file, locked as long as it is open."""
    while True:
        unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        file = os.fdopen(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b")
        # Nobody locks there, so that nothing is taken for a leftover either
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if unfinished.exists():  # not removed as a leftover before it was locked
            return unfinished, file
        file.close()


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
