"""Disks that are small, or that take no more."""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(at: Path, size: str) -> Iterator[None]:
    """A filesystem of its own, mounted there. `size`: as `5m`."""
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
    """While the context is open, the disk that the folder is on is full."""
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
    """While the context is open, this process writes nothing behind so many bytes of any file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def put(file: Path, content: bytes) -> None:
    """Let this stand in a file, and nothing else. To empty it before, as `write_bytes` does,
    takes much longer.
    """
    with file.open("r+b" if file.exists() else "wb", buffering=0) as writing:
        writing.write(content)
        writing.truncate()
