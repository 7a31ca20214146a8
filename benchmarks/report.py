"""The paper's tables and figures (TBSS 4) from a sweep, with what answers cost and which role loses them.

Written as Markdown, CSV, PNG and one HTML page that needs nothing else; the paper's own figures stand beside ours, in
tables of their own.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.study.further_tables import further_tables
from benchmarks.study.pictures import pictures, published_pictures
from benchmarks.study.published import PUBLISHED
from benchmarks.study.report_pages import Report
from benchmarks.study.study_data import Study, read_study
from benchmarks.study.tables import paper_tables
from serving.retrieval.atomic_file import write_atomically


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
    tables = [*paper_tables(study), *further_tables(study)]
    report = Report(
        study.plan.title or "A study of role-factorized search",
        _lead(study),
        "" if study.whole else "This sweep is not finished: rows are missing, and not the same ones everywhere.",
        tables,
        pictures(study, folder),
        PUBLISHED,
        published_pictures(folder),
    )
    for table in (*tables, *PUBLISHED):
        write_atomically(folder / f"{table.key}.csv", table.csv().encode())
    write_atomically(folder / "report.md", report.markdown().encode())
    write_atomically(folder / "report.html", report.html().encode())


def _lead(study: Study) -> str:
    plan = study.plan
    rows = sum(len(cell.rows) for cell in study.cells)
    asked = f"{plan.questions:,} questions, mean@{plan.rollouts}"
    return f"{len(study.cells)} configurations, {asked}: {rows:,} rollouts in all."
