"""The paper's tables and figures (TBSS 4) from a sweep, with what answers cost and which role loses them.

Written as Markdown, CSV, JSON, PNG and one HTML page that needs nothing else; the paper's own figures stand beside
ours, in tables of their own.
"""

import argparse
import base64
import html
from collections.abc import Sequence
from pathlib import Path
from string import Template

import msgspec

from benchmarks.study.results import Study, read_study
from benchmarks.study.tables import published_tables, tables_of
from serving.files import write_atomically

_FEW = 50
"""Questions below which a report warns: the 95 % interval of a share is then more than 28 points wide."""
_PAGE = Path(__file__).parent / "study" / "page.html"
_PUBLISHED = (
    'From the paper "Think Big, Search Small" (TBSS). Other models, other questions and another corpus: compare '
    "shapes, not numbers."
)


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
    from benchmarks.study.pictures import pictures  # they need matplotlib

    title, lead, warning = study.plan.title or "A study of role-factorized search", _lead(study), _warning(study)
    ours, published, drawn = tables_of(study), published_tables(), pictures(study, folder)
    for table in (*ours, *published):
        write_atomically(folder / f"{table.key}.csv", table.csv().encode())
    write_atomically(folder / "report.json", msgspec.json.format(msgspec.json.encode(ours), indent=2) + b"\n")
    text = [f"# {title}", lead, *([f"**{warning}**"] if warning else []), "## Our figures"]
    text += [f"![{caption}]({path.name})\n\n*{caption}*" for path, caption in drawn]
    text += [*(table.markdown() for table in ours), "## Published figures, for comparison", _PUBLISHED]
    text += [table.markdown() for table in published]
    write_atomically(folder / "report.md", "\n\n".join(text).encode())
    page = Template(_PAGE.read_text("utf-8")).substitute(
        title=html.escape(title),
        lead=html.escape(lead),
        warning=f'<p class="warning">{html.escape(warning)}</p>' if warning else "",
        ours="\n".join([*(_inlined(*picture) for picture in drawn), *(table.html() for table in ours)]),
        published="\n".join(table.html() for table in published),
    )
    write_atomically(folder / "report.html", page.encode())


def _warning(study: Study) -> str:
    count = len(study.plan.question_ids)
    unfinished = "This sweep is not finished: rows are missing, and not the same ones everywhere."
    few = f"Only {count:,} questions: most differences here may be chance."
    return " ".join([*([] if study.complete else [unfinished]), *([few] if count < _FEW else [])])


def _lead(study: Study) -> str:
    plan = study.plan
    rows = sum(len(cell.rows) for cell in study.cells)
    judged = any(row.judged for cell in study.cells for row in cell.rows[:1])
    by = "" if judged else " No judge was asked: right is what exact match says."
    asked = f"{len(plan.question_ids):,} questions, mean@{plan.rollouts}"
    return f"{len(study.cells)} configurations, {asked}: {rows:,} rollouts in all.{by}"


def _inlined(path: Path, caption: str) -> str:
    data, text = base64.b64encode(path.read_bytes()).decode(), html.escape(caption)
    image = f'<img alt="{text}" src="data:image/png;base64,{data}">'
    return f"<figure><figcaption>{text}</figcaption>{image}</figure>"
