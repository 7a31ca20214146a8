"""The paper's tables and figures (TBSS 4) from a sweep, with what answers cost and which role loses them.

Written as Markdown, CSV, PNG and one HTML page that needs nothing else; the paper's own figures stand beside ours, in
tables of their own.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.study.further_tables import costs_table, further_tables, scores_table
from benchmarks.study.published import PUBLISHED
from benchmarks.study.report_pages import Report
from benchmarks.study.report_table import ReportTable
from benchmarks.study.study_data import Study, read_study
from benchmarks.study.tables import paper_tables
from serving.files import write_atomically

_FEW = 50
"""Questions below which a report warns: the 95 % interval of a share is then more than 28 points wide."""


def main(arguments: Sequence[str]) -> int:
    """Write the report."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, metavar="RESULTS", help="the folder of a sweep, finished or not")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the report goes")
    given = parser.parse_args(arguments)
    study = read_study(given.results)
    given.out.mkdir(parents=True, exist_ok=True)
    write_report(study, given.out)
    print(f"{given.out / 'report.html'}")
    return 0


def write_report(study: Study, folder: Path) -> None:
    """Write everything into `folder`."""
    tables = tables_of(study)
    from benchmarks.study.pictures import pictures, published_pictures  # they need matplotlib

    report = Report(
        study.plan.title or "A study of role-factorized search",
        _lead(study),
        _warnings(study),
        tables,
        pictures(study, folder),
        PUBLISHED,
        published_pictures(folder),
    )
    for table in (*tables, *PUBLISHED):
        write_atomically(folder / f"{table.key}.csv", table.csv().encode())
    write_atomically(folder / "report.md", report.markdown().encode())
    write_atomically(folder / "report.html", report.html().encode())


def tables_of(study: Study) -> list[ReportTable]:
    """All of our own, what most readers look for first."""
    return [scores_table(study), costs_table(study), *paper_tables(study), *further_tables(study)]


def _warnings(study: Study) -> str:
    found = []
    if not study.whole:
        found.append("This sweep is not finished: rows are missing, and not the same ones everywhere.")
    if len(study.plan.question_ids) < _FEW:
        found.append(f"Only {len(study.plan.question_ids):,} questions: most differences here may be chance.")
    return " ".join(found)


def _lead(study: Study) -> str:
    plan = study.plan
    rows = sum(len(cell.rows) for cell in study.cells)
    asked = f"{len(plan.question_ids):,} questions, mean@{plan.rollouts}"
    judged = any(row.judged for cell in study.cells for row in cell.rows[:1])
    by = "" if judged else " No judge was asked: right is what exact match says."
    return f"{len(study.cells)} configurations, {asked}: {rows:,} rollouts in all.{by}"
