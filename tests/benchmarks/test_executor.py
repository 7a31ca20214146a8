"""The executor's benchmark: how it shares out the cores, and its figures."""

import os
import subprocess
import sys

import pytest

from benchmarks.executor import Pair, figures, two_halves
from router.errors import BadRequest

_ALL = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@pytest.mark.skipif(len(_ALL) < 2, reason="there is nothing to share out on this system, or on one core")
def test_two_halves() -> None:
    """Who is started first has the one, this process then the other, and in the end everything, as before."""
    with pytest.raises(ZeroDivisionError), two_halves() as move_away:
        printing = "import os; print(*os.sched_getaffinity(0))"
        of_child = subprocess.run([sys.executable, "-c", printing], check=True, capture_output=True, text=True).stdout
        move_away()
        assert sorted([*map(int, of_child.split()), *os.sched_getaffinity(0)]) == _ALL
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


def test_figures() -> None:
    """The mean of the pairs' ratios with its spread, each kind of output apart."""
    times = [(False, 2.0, 1.0), (False, 1.0, 1.0), (True, 4.0, 4.0)]
    pairs = [Pair(structured, gateway_s, straight_s, *[0] * 6) for structured, gateway_s, straight_s in times]
    ratio, per_s = figures(pairs, False, 10)
    assert (ratio.value, ratio.low, ratio.high, ratio.held) == (0.75, 0.5, 1.0, False)
    assert (per_s.value, per_s.held) == (7.5, None)
    assert figures(pairs, True, 10)[0].held
