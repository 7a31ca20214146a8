"""The bytes of a file, within limits."""

import gzip
from io import BufferedIOBase
from pathlib import Path

from router.errors import BadDocument

MAX_BYTES = 256 << 20
"""The largest file that is read at once, unpacked."""
MAX_MARKUP_BYTES = 32 << 20
"""The same for markup, whose tree takes many times its size."""


def read_content(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The whole file; `.gz` is unpacked. Raises `BadDocument` where it is too large, and `OSError`."""
    size = path.stat().st_size
    if size <= max_bytes:
        with open_content(path) as file:
            content = file.read(max_bytes + 1)
        if len(content) <= max_bytes:
            return content
    raise BadDocument(f"{path}: larger than {max_bytes >> 20} MB; split it, or leave it out.")


def open_content(path: Path) -> BufferedIOBase:
    """The file, open; what is read of `.gz` is unpacked."""
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")
