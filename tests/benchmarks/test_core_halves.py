"""How a benchmark shares out the cores."""

import os
import subprocess
import sys

import pytest

from benchmarks.core_halves import two_halves
from router.errors import BadRequest

_ALL = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@pytest.mark.skipif(len(_ALL) < 2, reason="there is nothing to share out on this system, or on one core")
def testtwo_halves() -> None:
    """What is started first has the one, this process then the other, and in the end everything, as before."""
    with pytest.raises(ZeroDivisionError), two_halves() as move_away:
        tell = "import os; print(*os.sched_getaffinity(0))"
        told = subprocess.run([sys.executable, "-c", tell], check=True, capture_output=True, text=True).stdout
        move_away()
        assert sorted([*map(int, told.split()), *os.sched_getaffinity(0)]) == _ALL
        raise ZeroDivisionError
    assert sorted(os.sched_getaffinity(0)) == _ALL


@pytest.mark.skipif(not _ALL, reason="this system binds no process to cores")
def test_one_core_has_no_halves() -> None:
    """It says so before anything is started."""
    try:
        os.sched_setaffinity(0, _ALL[:1])
        with pytest.raises(BadRequest, match="leave the option out"), two_halves():
            pass
    finally:
        os.sched_setaffinity(0, _ALL)
