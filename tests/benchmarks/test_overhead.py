"""The benchmark of the gateway's own costs."""

import json
from pathlib import Path

from benchmarks.__main__ import main
from benchmarks.overhead import Busy


def test_time_beyond_the_models(tmp_path: Path) -> None:
    """Models take what they are told to, and the gateway takes more than nothing."""
    out = tmp_path / "out.json"
    options = ["--questions", "10", "--rate", "40"]
    assert main(["overhead", "--parts", "latency", *options, "--folder", str(tmp_path), "--json", str(out)]) == 0
    figures = json.loads(out.read_bytes())
    (row,) = figures["latency"]
    assert row["models_p50_ms"] > 8 * 50
    assert 0 < row["added_p50_ms"] <= row["added_p99_ms"]


def test_work_that_overlaps_counts_once() -> None:
    """A model is at work from the first of several calls to the last."""
    busy = Busy()
    with busy.working():
        with busy.working():
            pass
        assert busy.seconds == 0.0
    once = busy.seconds
    with busy.working():
        pass
    assert busy.seconds > once > 0.0
