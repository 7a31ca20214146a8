"""Tables and files of a report."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.study.report import Options, measure
from benchmarks.study.report_table import ReportTable
from benchmarks.study.results import QuestionResult, read_study
from benchmarks.study.scores import Score
from benchmarks.study.tables import published_tables, tables_of
from router.errors import BadConfig
from tests.benchmarks.study_rows import grid, row, total, written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a report of a made-up sweep."""
    results = tmp_path_factory.mktemp("study")
    measure(Options(results=grid(results / "results"), out=results / "report"))
    return results


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    tables = {
        table["key"]: table
        for table in json.loads((folder / "report" / "report.json").read_bytes())
    }
    return [dict(zip(tables[name]["columns"], row, strict=True)) for row in tables[name]["rows"]]


def test_the_paper_s_tables_are_reproduced(folder: Path) -> None:
    """Each table has the paper's models: one role varies while the other is fixed."""
    assert {path.suffix for path in (folder / "report").iterdir()} == {
        ".md",
        ".json",
        ".png",
    }
    assert [cells["backbone"] for cells in rows(folder, "table-2")] == ["small", "middle", "large"]
    assert [cells["executor"] for cells in rows(folder, "table-3")] == ["small", "middle", "large"]
    assert [cells["model"] for cells in rows(folder, "table-1")] == ["small", "large"]
    assert {cells["pair"] for cells in rows(folder, "table-4")} >= {
        "large + small",
        "small + small",
    }
    first = [(cells["backbone"], cells["executor"]) for cells in rows(folder, "table-5")][:2]
    assert first == [("small", "small"), ("small", "large")]
    for name in ("figure-2.png", "figure-3.png"):
        assert (folder / "report" / name).read_bytes().startswith(b"\x89PNG")


def test_scores_costs_and_losses_are_reported(folder: Path) -> None:
    """There are 8 questions with two rollouts each, of which `large + large` answers 6 and a half,
    with an error. Each takes 50 tokens of the backbone and 500 of the executor, at a millionth of a
    dollar.
    """
    score = {
        (score_row["pair"], score_row["data set"]): score_row
        for score_row in rows(folder, "scores")
    }["large + large", "all, micro"]
    mean, error = score["EM"]
    assert (mean, score["questions"]) == (pytest.approx(6.5 / 8), 8)
    assert error > 0
    (cost,) = [
        score_row for score_row in rows(folder, "costs") if score_row["pair"] == "large + large"
    ]
    assert cost["dollars an answer"] == pytest.approx(550e-6)
    assert cost["dollars a right answer"] == pytest.approx(550e-6 * 8 / 6.5, abs=1e-6)
    assert (cost["executor tokens"], cost["tokens"]) == (500, 550)
    lost = {score_row["pair"]: score_row for score_row in rows(folder, "losses")}
    assert lost["small + small"]["delegation, %"] + lost["small + small"]["reading, %"] == 100
    assert "single_agent: small" not in lost


def test_published_figures_are_separate(folder: Path) -> None:
    """No table of ours has any of them, all of them are labelled, and the page has their source."""
    cells = [
        str(cell)
        for table in tables_of(read_study(folder / "results"))
        for row in table.rows
        for cell in row
    ]
    assert not any(name in cell for cell in cells for name in ("Qwen", "DeepSeek", "GLM"))
    assert all(table.title.startswith("Published (TBSS") for table in published_tables())
    page = (folder / "report" / "report.md").read_text("utf-8")
    places = [
        page.index(text)
        for text in ("Our figures", "### What an answer costs", "## Published", "### Published")
    ]
    assert places == sorted(places)
    assert "There are only 8 questions" in page
    assert "No judge was asked" not in page


def test_equal_rows_make_equal_reports(folder: Path, tmp_path: Path) -> None:
    """The order of the rows in the file does not change the report."""
    reordered = grid(tmp_path / "results")
    lines = (reordered / "results.jsonl").read_bytes().splitlines(keepends=True)
    (reordered / "results.jsonl").write_bytes(b"".join(reversed(lines)))
    measure(Options(results=reordered, out=tmp_path / "report"))
    for path in sorted((folder / "report").glob("*.[cm]*")):
        assert (tmp_path / "report" / path.name).read_bytes() == path.read_bytes(), path.name


def test_an_unfinished_sweep_is_marked(tmp_path: Path) -> None:
    """Its report says that rows are missing.

    An empty sweep has no report, and a damaged line is named.
    """
    results = grid(tmp_path / "results")
    file = results / "results.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))
    measure(Options(results=results, out=tmp_path / "report"))
    assert "This sweep is not finished" in (tmp_path / "report" / "report.md").read_text("utf-8")
    file.write_bytes(lines[0] + lines[1][:-10])
    assert sum(len(cell.rows) for cell in read_study(results).cells) == 1, (
        "the last line is still being written"
    )
    file.write_bytes(lines[0] + b"{}\n")
    with pytest.raises(BadConfig, match=r"results\.jsonl:2: .*remove this line"):
        read_study(results)
    file.write_bytes(b"")
    with pytest.raises(BadConfig, match="has no results yet"):
        read_study(results)
    with pytest.raises(BadConfig, match=r"plan\.json: cannot be read"):
        read_study(tmp_path)


def test_cells_are_escaped() -> None:
    """A model's name cannot close a table cell; an unknown value is a dash."""
    table = ReportTable(
        "t", "A & B", ("a|b", "score", "n"), (("<b>|", Score(0.5, 0.01), None),), digits=1
    )
    assert "| \\<b>\\| | 50.00 ± 1.00 | – |" in table.markdown()


def pair(backbone: str, executor: str, **fields: object) -> QuestionResult:
    """Return a row of a cell with a name as in sweeps."""
    known = {"cell": f"{backbone} + {executor}", "backbone": backbone, "executor": executor}
    return row(**known | fields)  # type: ignore[arg-type]


def tables(folder: Path, rows: list[QuestionResult], questions: int = 1) -> dict[str, ReportTable]:
    """Return the tables of these rows, by key."""
    return {
        table.key: table for table in tables_of(read_study(written(folder, rows, questions, 1)))
    }


def test_an_unreached_data_set_has_dashes(tmp_path: Path) -> None:
    """Its column is there, and the order of rows changes no score."""
    models = [("small", "small"), ("large", "small"), ("large", "large"), ("small", "large")]
    films = [pair(*both, dataset="films", accepted=False) for both in models]
    books = [pair(*both, question="b", dataset="books") for both in models[::2]]
    report_tables = tables(tmp_path, [*films, *books], 2)
    for key in ("table-2", "table-2-2", "table-3", "table-3-2", "table-5"):
        assert report_tables[key].columns[-5:-3] == ("books judge", "films judge")
        for cells in report_tables[key].rows:
            assert [report_tables[key].text(cell) for cell in cells[-5:-3]] in (
                ["–", "0.00"],
                ["100.00", "0.00"],
            )
    assert [report_tables["table-3"].text(cells[1]) for cells in report_tables["table-3"].rows] == [
        "–",
        "100.00",
    ]


def test_tokens_are_by_role_and_model(tmp_path: Path) -> None:
    """A role with two models, such as an executor with its fallback, has two rows."""
    spent = (
        total("execution", 900, model="own", cached_tokens=50),
        total("execution", 100, model="fallback"),
    )
    table = tables(tmp_path, [row(spent=spent)])["tokens"]
    assert [cells[1:3] for cells in table.rows] == [("execution", "own"), ("execution", "fallback")]
    assert [cells[table.columns.index("of them cached")] for cells in table.rows] == [50, None]
