"""One build at a time in one index folder, over all processes."""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from router.errors import BadIndex

_LOCK = ".lock"
_LOOKS_EVERY_S = 0.2


@contextmanager
def build_lock(folder: Path, *, wait: bool, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock while open; it is freed too when the process dies. Raises `BadIndex` where another build runs and
    `wait` is false; else it calls `waiting` again and again, and raises what that raises.
    """
    with (folder / _LOCK).open("wb") as file:
        while not _locked(file):
            if not wait:
                raise BadIndex(f"{folder}: another build is under way there; wait for it, or end it.")
            waiting()
            time.sleep(_LOOKS_EVERY_S)
        yield


def _locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
