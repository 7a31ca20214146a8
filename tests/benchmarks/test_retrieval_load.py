import json
from pathlib import Path

from benchmarks import retrieval_load


def test_it_measures_both_ways(tmp_path: Path) -> None:
    """A small index with a real embedder: figures of both ways, and no query that finds something else."""
    out = tmp_path / "figures.json"
    sizes = ["--passages", "60", "--queries", "24", "--callers", "6"]
    assert retrieval_load.main([*sizes, "--json", str(out)]) == 0
    (figures,) = json.loads(out.read_bytes())
    assert (figures["passages"], figures["queries"], figures["different"]) == (60, 24, 0)
    assert figures["unbatched"]["queries_per_s"] > 0
    assert figures["batched"]["queries_per_s"] > 0
