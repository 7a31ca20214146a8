"""Made tables are compared with the right rows of their seeds, at each threshold."""

from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.made_tables import Options, measure
from executor_sft.questions import Question
from executor_sft.tables.agreement import Answer, Answers
from router.errors import BadConfig
from router.table import TableRequest
from router.trace.table import Column
from tests.executor_sft.traces import write_lines

COLUMNS = (Column("city", key=True), Column("founded", "integer"))
RIGHT = tuple((f"City {letter}", str(900 + at)) for at, letter in enumerate("abcdefgh"))


def answers(name: str, *rows: tuple[tuple[str, str], ...]) -> Answers:
    first, second = (Answer(each, 1, 100) for each in rows)
    request = TableRequest(name, COLUMNS)
    return Answers(Question(name, name, (), table=request, rows=RIGHT), (first, second))


def made(folder: Path) -> Path:
    """Write three pairs of answers: right ones, ones that share an error, and ones that differ."""
    incomplete = RIGHT[:6]
    lines = [
        answers("right", RIGHT, RIGHT),
        answers("incomplete", incomplete, incomplete),
        answers("different", RIGHT, (*RIGHT[:6], ("City y", "1"), ("City z", "2"))),
    ]
    write_lines(folder / "answers.jsonl", lines)
    return folder


def test_agreement_vouches_for_cells_but_not_for_completeness(tmp_path: Path) -> None:
    """Two answers that lack the same rows are kept, although their table is not good."""
    figures = measure(Options(made=(made(tmp_path),))).thresholds
    assert list(figures["kept"]) == ["0.7", "0.8", "0.9", "0.95"]
    strict = {name: at["0.95"] for name, at in figures.items()}
    assert (strict["kept"], strict["dropped"]) == (2, 1)
    assert (strict["kept: good"], strict["dropped: good"], strict["good kept"]) == (0.5, 0, 1)
    assert (strict["kept: cells right"], strict["kept: cells found"]) == (1, (1 + 6 / 8) / 2)
    assert strict["tokens per kept"] == 600 / 2


def test_a_figure_of_no_tables_has_no_value(tmp_path: Path) -> None:
    """A 0 would read as if all tables were bad."""
    write_lines(tmp_path / "answers.jsonl", [answers("poor", RIGHT[:3], RIGHT[4:])])
    figures = measure(Options(made=(tmp_path,))).thresholds
    names = ("kept: good", "kept: item f1", "good kept", "tokens per kept")
    assert [figures[name]["0.9"] for name in names] == [None] * 4
    assert (figures["kept"]["0.9"], figures["dropped: good"]["0.9"]) == (0, 0)


def test_results_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["made-tables", str(made(tmp_path))]) == 0
    assert "kept: cells found" in capsys.readouterr().out


def test_without_right_rows_nothing_is_measured(tmp_path: Path) -> None:
    write_lines(tmp_path / "answers.jsonl", [])
    with pytest.raises(BadConfig, match="no request has right rows"):
        measure(Options(made=(tmp_path,)))
