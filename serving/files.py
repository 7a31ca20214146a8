"""Write files so that only their owner can read them. After a crash, a file has either its complete
new content or its old content.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp
from typing import Any


@contextmanager
def private_files() -> Iterator[None]:
    """While the context is open, give only the owner access to the files and folders that this
    process creates.

    The context sets the umask of the process, as PostgreSQL does. The umask also applies to files
    that libraries (SQLite, Arrow, NumPy, trainers) and child processes create.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to a temporary file next to `path`, sync the file to disk, and rename it to
    `path`. If this raises `OSError`, `path` is unchanged.
    """
    with replacing(path) as unfinished:
        unfinished.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new, empty file in the folder of `path`, for the body of the `with`
    statement to write to. On exit, sync the new file to disk and rename it to `path`. After an
    error, delete the new file instead, and leave `path` unchanged. Only the owner can access the
    file, also under its final name.
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


def save_picture(figure: Any, path: Path, dpi: int = 100) -> None:
    """Write a matplotlib figure to the PNG file `path`, which is replaced atomically."""
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format="png", dpi=dpi)


def flush(path: Path) -> None:
    """Sync a file's content, or a folder's list of files, to disk with `fsync`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal. The file may be large, since it is read in
    pieces. Raises `OSError`.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
