"""Write a report about a sweep: the tables and figures of the TBSS paper (section 4) with the
sweep's results, and further tables with costs, and with the wrong answers that each role caused.

The report is written as Markdown with PNG pictures, and as JSON. At the end, separate tables have
the numbers that the paper published.
"""

from pathlib import Path
from typing import Annotated

from benchmarks import harness
from benchmarks.study.results import Study, read_study
from executor_sft.step import write_json
from router.frozen import Frozen
from serving.cli.command import POSITIONAL
from serving.files import write_atomically

_FEW = 50
"""The report warns if a sweep has fewer questions than this number. The 95 % interval of a share
can then be wider than 28 points.
"""
_PUBLISHED = (
    'From the paper "Think Big, Search Small" (TBSS). The models, questions and corpus are '
    "different: compare shapes, not numbers."
)


class Options(harness.Options):
    """Options of the report."""

    results: Annotated[Path, POSITIONAL]
    """result folder of a sweep; the sweep may be unfinished"""
    out: Path
    """folder to write the report to"""


class Figures(Frozen):
    """Result of the command: the path of the report."""

    report: str
    """Path of the Markdown file."""


def measure(options: Options) -> Figures:
    """Write the report. Raises `BadConfig` if the folder has no results of a sweep."""
    from benchmarks.study.pictures import pictures  # needs matplotlib
    from benchmarks.study.tables import published_tables, tables_of

    study = read_study(options.results)
    folder = options.out
    folder.mkdir(parents=True, exist_ok=True)
    ours = tables_of(study)
    write_json(folder / "report.json", ours)
    text = [
        f"# {study.plan.title or 'A study of role-factorized search'}",
        _lead(study),
        "## Our figures",
    ]
    text += [
        f"![{caption}]({path.name})\n\n*{caption}*" for path, caption in pictures(study, folder)
    ]
    text += [
        *(table.markdown() for table in ours),
        "## Published figures, for comparison",
        _PUBLISHED,
    ]
    text += [table.markdown() for table in published_tables()]
    page = "\n\n".join(text)
    write_atomically(folder / "report.md", page.encode())
    return Figures(str(folder / "report.md"))


def _lead(study: Study) -> str:
    """Return the first paragraph of the report: the size of the sweep, and warnings if few or
    incomplete results make comparisons doubtful.
    """
    count = len(study.plan.question_ids)
    rows = sum(len(cell.rows) for cell in study.cells)
    configurations = (
        f"{len(study.cells)} configurations, {count:,} questions, mean@{study.plan.rollouts}"
    )
    text = [f"{configurations}: {rows:,} rollouts in all."]
    if not any(row.judged for cell in study.cells for row in cell.rows[:1]):
        text.append("No judge was asked: exact match decides whether an answer is right.")
    if not study.complete:
        text.append(
            "**This sweep is not finished: some results are missing, and configurations may lack "
            "different questions.**"
        )
    if count < _FEW:
        text.append(f"**There are only {count:,} questions: most differences may be chance.**")
    return " ".join(text)
