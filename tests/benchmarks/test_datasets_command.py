"""`rolegate bench datasets`: counts, findings, samples and exclusions."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.datasets.census import take_census
from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.datasets.reader import read_entries
from benchmarks.datasets.sampling import sample

SPLITS = Path(__file__).parents[3] / "shared" / "data" / "paper_splits"


def question(name: str, text: str, *answers: str, dataset: str = "popqa") -> BenchmarkQuestion:
    return BenchmarkQuestion(name, text, answers, dataset, "test")


def write(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def numbered(dataset: str, count: int) -> list[dict[str, Any]]:
    return [
        {"id": f"{dataset}-{n}", "question": f"{dataset} {n}?", "answers": ["x"], "dataset": dataset, "split": "dev"}
        for n in range(count)
    ]


def ids(path: Path) -> list[str]:
    return [entry.question.id for entry in read_entries(path)]


def test_repeated_and_conflicting() -> None:
    """Two with an answer in common do not conflict; an identifier counts within its data set."""
    census = take_census(
        [
            question("1", "Who wrote Pilot?", "Ana", "A. Lim"),
            question("2", "who wrote  Pilot", "a lim!"),
            question("3", "Who made Touch?", "Bo"),
            question("4", "Who made The Touch?", "Cy"),
            question("5", "Who made Ronin?", "Di", dataset="nq"),
            question("1", "Who made Ronin?", "Di", "Ed"),
            question("6", "Who made Ronin?", "Ed"),
            question("1", "Who?", "Ana", dataset="nq"),
            question("6", "Whose?", "Ana"),
        ]
    )
    assert [(one.dataset, one.id, one.times) for one in census.repeated_ids] == [("popqa", "1", 2), ("popqa", "6", 2)]
    assert [one.ids for one in census.repeated_questions] == [("1", "2"), ("5", "1", "6")]
    assert [one.ids for one in census.conflicts] == [("5", "1", "6")]


def test_a_sample_is_the_same_again() -> None:
    """The seed decides it; another data set beside does not change it; a small one is taken whole."""
    popqa = [question(str(n), f"{n}?", "x") for n in range(50)]
    others = [question(str(n), f"other {n}?", "x", dataset="nq") for n in range(5)]
    drawn = sample(popqa, 10, 1)
    assert drawn == sorted(set(drawn)) == sample(popqa, 10, 1) != sample(popqa, 10, 2)
    assert sample(others + popqa, 10, 1) == [*range(5), *(position + 5 for position in drawn)]


def test_sample_then_exclude(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Up to N of each data set, then without what the reference run answered without a search; counted by data set."""
    path = write(tmp_path / "q.jsonl", numbered("a", 30) + numbered("b", 4))
    out, again, figures = tmp_path / "questions.jsonl", tmp_path / "again.jsonl", tmp_path / "figures.json"
    assert main(["datasets", str(path), "--sample", "10", "--seed", "7", "--out", str(out)]) == 0
    drawn = ids(out)
    assert Counter(name[0] for name in drawn) == {"a": 10, "b": 4}

    run = [{"question_id": name, "outcome": "answered", "more": 1} for name in drawn]
    run[0]["outcome"] = run[13]["outcome"] = "no_search"
    run.append(run[1] | {"outcome": "no_search"})  # a second rollout, which does not count
    reference = write(tmp_path / "run.jsonl", run)
    argv = ["datasets", str(path), "--sample", "10", "--seed", "7", "--exclude", str(reference)]
    assert main([*argv, "--out", str(again), "--json", str(figures)]) == 0

    assert ids(again) == drawn[1:13]
    counts = json.loads(figures.read_bytes())["counts"]
    assert [(one["dataset"], one["read"], one["sampled"], one["excluded"], one["kept"]) for one in counts] == [
        ("a", 30, 10, 1, 9),
        ("b", 4, 4, 1, 3),
    ]
    assert "34" in capsys.readouterr().out


def test_exported_runs_exclude_by_their_question(tmp_path: Path) -> None:
    """They do not know the data set's identifiers."""
    path = write(tmp_path / "q.jsonl", numbered("a", 3))
    run = write(tmp_path / "run.jsonl", [{"run_id": "r", "request": "A 1", "outcome": "no_search"}])
    assert main(["datasets", str(path), "--exclude", str(run), "--out", str(tmp_path / "out.jsonl")]) == 0
    assert ids(tmp_path / "out.jsonl") == ["a-0", "a-2"]


@pytest.mark.parametrize(
    ("excluded", "why"),
    [
        ("1\n3\n", "1 of what it leaves out is not among the 3 questions (3, …)"),
        ("1\nx\n", "exclude.txt:2: not a position"),
        ('{"outcome": "no_search", "id": "b-1"}\n', "not among the 3 questions (b-1, …)"),
        ('{"outcome": "no_search"}\n', "exclude.txt:1: does not say which question"),
        ('{"outcome": "no_search", "id": "a-1"}\n{"outc', "exclude.txt, line 2: "),
    ],
)
def test_an_exclusion_of_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], excluded: str, why: str
) -> None:
    """Nothing is written then."""
    path, out = write(tmp_path / "q.jsonl", numbered("a", 3)), tmp_path / "out.jsonl"
    (tmp_path / "exclude.txt").write_text(excluded, "utf-8")
    assert main(["datasets", str(path), "--exclude", str(tmp_path / "exclude.txt"), "--out", str(out)]) == 1
    assert why in capsys.readouterr().err
    assert not out.exists()


def test_a_corpus_is_pooled_and_checked(tmp_path: Path) -> None:
    """Each paragraph once; what questions name is there, and what is missing is counted."""
    row = {
        "_id": "1",
        "question": "Who?",
        "answer": "Ana",
        "supporting_facts": [["Ana", 0]],
        "context": [["Ana", ["Ana."]], ["Bo", ["Bo."]]],
    }
    original = tmp_path / "hotpot_dev.json"
    original.write_text(json.dumps([row, row | {"_id": "2", "question": "Whose?"}]), "utf-8")
    plain, figures = tmp_path / "plain", tmp_path / "figures.json"
    plain.mkdir()
    argv = ["datasets", str(original), "--out", str(plain / "questions.jsonl")]
    assert main([*argv, "--corpus", str(plain / "corpus.jsonl")]) == 0
    assert main(["datasets", str(plain), "--json", str(figures)]) == 0
    read = json.loads(figures.read_bytes())
    assert (read["passages"], read["missing"]) == ({str(plain): 2}, {str(plain): 0})

    write(plain / "corpus.jsonl", [{"id": "other", "text": "Bo."}])
    main(["datasets", str(plain), "--json", str(figures)])
    assert list(json.loads(figures.read_bytes())["missing"].values()) == [1]


def test_distinct_questions(tmp_path: Path) -> None:
    """The first one stays, and only these are drawn from."""
    rows = numbered("a", 3)
    path = write(tmp_path / "q.jsonl", [*rows, *rows])
    assert main(["datasets", str(path), "--distinct", "--sample", "5", "--out", str(tmp_path / "out.jsonl")]) == 0
    assert ids(tmp_path / "out.jsonl") == ["a-0", "a-1", "a-2"]


@pytest.mark.skipif(not SPLITS.is_dir(), reason=f"no {SPLITS}")
def test_the_papers_exclusion(tmp_path: Path) -> None:
    """4,125 questions become the 3,869 that were released, as in TBSS, Table 8, with known defects."""
    out, figures = tmp_path / "clean.jsonl", tmp_path / "figures.json"
    excluded = SPLITS / "test_all_clean_3869_excluded_source_indices.txt"
    argv = ["datasets", str(SPLITS / "test_all.jsonl"), "--exclude", str(excluded)]
    assert main([*argv, "--out", str(out), "--json", str(figures)]) == 0

    assert ids(out) == ids(SPLITS / "test_all_clean_3869.jsonl")
    read = json.loads(figures.read_bytes())
    assert {one["dataset"]: (one["read"], one["excluded"], one["kept"]) for one in read["counts"]} == {
        "2wikimultihopqa": (1000, 9, 991),
        "bamboogle": (125, 16, 109),
        "hotpotqa": (1000, 37, 963),
        "musique": (1000, 12, 988),
        "popqa": (1000, 182, 818),
    }
    assert Counter(one["dataset"] for one in read["census"]["repeated_ids"]) == {"musique": 113}
    (conflict,) = (one for one in read["census"]["repeated_questions"] if one["conflicting"])
    assert (conflict["question"], len(conflict["answers"])) == ("Who was the screenwriter for Pilot?", 4)
