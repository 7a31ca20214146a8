"""Cores of its own for what a benchmark measures."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from router.errors import BadRequest


@contextmanager
def two_halves() -> Iterator[Callable[[], None]]:
    """Bind this process to half of its cores, and with it what it starts; what is yielded moves it alone to the others.
    Raises `BadRequest` where that cannot be.
    """
    if not hasattr(os, "sched_setaffinity") or len(cores := sorted(os.sched_getaffinity(0))) < 2:
        raise BadRequest("--apart: this system binds no process to cores, or has one only; leave the option out.")
    half = len(cores) // 2
    _bind(cores[:half])
    try:
        yield lambda: _bind(cores[half:])
    finally:
        _bind(cores)


def _bind(cores: Sequence[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread.name), cores)
