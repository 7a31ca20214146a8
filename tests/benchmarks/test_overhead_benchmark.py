"""The benchmark of the gateway's own costs."""

import json
from pathlib import Path

import pytest

from benchmarks.canned_upstream import Busy
from benchmarks.overhead import main


def test_what_an_answer_takes_beyond_its_models(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Models take what they are told to, and the gateway takes more than nothing and far less."""
    out = tmp_path / "out.json"
    assert main(["latency", "--questions", "8", "--rate", "40", "--folder", str(tmp_path), "--json", str(out)]) == 0
    latency = json.loads(out.read_bytes())["latency"]
    assert latency["questions"] == 8
    assert latency["models_p50_ms"] > 8 * 50
    assert 0 < latency["added_p50_ms"] <= latency["added_p99_ms"]
    assert "added p50" in capfd.readouterr().out


def test_work_that_overlaps_counts_once() -> None:
    """A model is at work from the first of several calls to the last."""
    busy = Busy()
    with busy.working():
        assert busy.seconds == 0.0
        with busy.working():
            pass
        assert busy.seconds == 0.0
    once = busy.seconds
    assert once > 0.0
    with busy.working():
        pass
    assert busy.seconds > once
