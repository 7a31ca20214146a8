"""The benchmark of sums over calls."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.usage import QUERIES


def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fills a database, asks it everything, finds all sums exact, and shows how the database went about it."""
    out = tmp_path / "figures.json"
    url = f"sqlite:///{tmp_path / 'usage.db'}"

    assert main(["usage", "--rows", "20000", "--store", url, "--json", str(out)]) == 0

    figures = json.loads(out.read_text())
    assert (figures["database"], figures["calls"]) == ("sqlite", 20000)
    assert [figure["query"] for figure in figures["queries"]] == list(QUERIES)
    for figure in figures["queries"]:
        assert figure["exact"] and figure["rows"] and figure["plans"]
        assert not any("SCAN calls" in plan for plan in figure["plans"])
    assert "calls_by_tenant" in capsys.readouterr().out

    assert main(["usage", "--rows", "20000", "--store", url]) == 1
    assert "--store: has runs in it; name an empty database." in capsys.readouterr().err
