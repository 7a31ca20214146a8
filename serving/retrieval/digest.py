"""The SHA-256 of a file."""

import hashlib
from pathlib import Path


def sha256_of(path: Path) -> str:
    """In hexadecimal, read in pieces. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
