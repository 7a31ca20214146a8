"""Disks that are small or full."""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(at: Path, size: str) -> Iterator[None]:
    """Mount a separate filesystem there. `size` is like `5m`."""
    at.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={size}", "rolegate-test", str(at)]
    if os.geteuid() or subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a filesystem, and not everywhere")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Fill the disk of the folder while the context is open."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        room = os.statvfs(folder)
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize)
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Let this process write nothing beyond this size of any file while the context is open."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def put(file: Path, content: bytes) -> None:
    """Set the content of a file, by overwriting.

    Emptying it first, like `write_bytes`, takes much longer.
    """
    with file.open("r+b" if file.exists() else "wb", buffering=0) as writing:
        writing.write(content)
        writing.truncate()
