"""One build at a time in one index folder, over all processes."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from router.errors import BadIndex

_LOCK = ".lock"


@contextmanager
def build_lock(folder: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock while open; it is freed too when the process dies. Raises `BadIndex` where another build runs and
    `wait` is false.
    """
    with (folder / _LOCK).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadIndex(f"{folder}: another build is under way there; wait for it, or end it.") from None
        yield
