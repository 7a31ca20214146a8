"""`rolegate bench large-index`, with small indexes."""

import json
from pathlib import Path
from typing import Any

from benchmarks.__main__ import main
from tests.benchmarks.test_retrieval import CORPUS, QUESTIONS, write


def measured(data: Path) -> list[dict[str, Any]]:
    out = data / "figures.json"
    folder = data / "out"
    argv = ["large-index", "--data", str(data), "--out", str(folder), "--json", str(out)]
    assert main([*argv, "--passages", "1000", "--factories", "Flat", "HNSW8,SQ8"]) == 0
    indexes: list[dict[str, Any]] = json.loads(out.read_bytes())["indexes"]
    return indexes


def test_indexes_are_measured_once(tmp_path: Path) -> None:
    """A second run takes what the folder has."""
    write(tmp_path, "corpus.jsonl", CORPUS)
    write(tmp_path, "questions.jsonl", QUESTIONS)

    exact, small = measured(tmp_path)
    again = measured(tmp_path)

    assert again == [exact, small]
    assert (exact["factory"], exact["question_recall"]) == ("Flat", {"3": 1.0, "5": 1.0})
    assert (small["factory"], small["passages"]) == ("HNSW8,SQ8", 1000)
    assert small["question_recall"] == {"3": 1.0, "5": 1.0}
