"""What made the figures of a report."""

from benchmarks.study.provenance import Provenance
from benchmarks.study.report_table import Cell, ReportTable
from benchmarks.study.study_data import Study

_SHOWN = 12
"""Characters of a hash: enough to tell two apart, and to find the whole one in `results.jsonl`."""


def provenance_table(study: Study) -> ReportTable:
    """A row for each role of each pair; what all rows have alike stands above them."""
    made_by = {cell.name: study.made_by[cell.name] for cell in study.cells}
    rows: list[tuple[Cell, ...]] = [
        (
            *(name, role, one.model, one.prompt_sha256[:_SHOWN]),
            *(f"{one.temperature:g}", f"{one.top_p:g}", one.max_tokens, made.max_turns, made.max_searches),
        )
        for name, made in made_by.items()
        for role, one in made.roles.items()
    ]
    columns = ("pair", "role", "model", "prompt (SHA-256)", "temperature", "top p", "max tokens", "turns", "searches")
    alike = "; ".join(dict.fromkeys(map(_alike, made_by.values())))
    return ReportTable("provenance", "What made these figures", columns, tuple(rows), alike)


def _alike(made: Provenance) -> str:
    index = (made.index or "unknown")[:_SHOWN]
    corpus = (made.corpus_sha256 or "unknown")[:_SHOWN]
    limits = f"{made.max_rounds} rounds of {made.max_sub_queries} sub-queries, top-{made.top_k}"
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    return f"Corpus {corpus}, index {index}, embedder {made.embedder}; at most {limits}; {versions}"
