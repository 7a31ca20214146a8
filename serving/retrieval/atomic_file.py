"""A file that is either whole or absent, also after a crash."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside `path`, flush to disk and rename over it. Raises `OSError` and then leaves `path` as it was."""
    with replacing(path) as unfinished:
        unfinished.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what is to become `path` when the context is left; an error leaves `path` as it was."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
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
