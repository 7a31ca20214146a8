"""Write tables with right rows to files: for WideSearch, `rolegate sft`, and the trainer RLinf."""

import csv
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from executor_sft.jsonl import write_jsonl
from executor_sft.questions import Question
from router.table.schema import meaning
from router.table.table_text import to_markdown
from router.trace.table import Column
from serving.files import replacing

_NUMBER = {"preprocess": ["extract_number"], "metric": ["number_near"], "criterion": 0.0}
_TEXT = {"preprocess": ["norm_str"], "metric": ["exact_match"]}
_RULES: dict[str, dict[str, Any]] = {
    "integer": _NUMBER,
    "number": _NUMBER,
    "date": {"preprocess": ["norm_date"], "metric": ["date_near"]},
    "url": {"metric": ["url_match"]},
}
"""WideSearch's rules for comparing cells, by type of column; `_TEXT` has the rules for all other
types.
"""
_LONGEST_NAME = 120
_TAIL = (
    "\n\nGive the result as one Markdown table with the following columns:\n{columns}\nLeave no "
    "cell out that can be known. The output format is \n```markdown\n{{data_content}}\n```."
)


def widesearch_query(question: str, columns: Iterable[Column]) -> str:
    """Return the question, followed by WideSearch's instructions: the columns, and the Markdown
    form of the table.
    """
    names = []
    for column in columns:
        about = meaning(column)
        names.append(f"{column.name} ({about})" if about else column.name)
    return question + _TAIL.format(columns=", ".join(names))


def write_tables(
    folder: Path, tables: Sequence[Question], *, plain: bool = False, rlinf: bool = False
) -> list[str]:
    """Write tables with their right rows into `folder`, and return the names of the files.

    Files: `tasks.jsonl` with `gold/ID.csv` in WideSearch's form, `questions.jsonl` in the form of
    `rolegate sft`, and, with `rlinf`, `rlinf.jsonl` in the form of RLinf's WideSeek-R1. `plain`:
    True to leave the columns and the form of the table out of the queries.
    """
    (folder / "gold").mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    names = []
    for question in tables:
        assert question.table
        columns = question.table.columns
        forms = {_norm(column): _RULES.get(column.type, _TEXT) for column in columns}
        keys = [_norm(column) for column in columns if column.key]
        rules = {"unique_columns": keys, "required": list(forms), "eval_pipeline": forms}
        name = _file_name(question.id)
        task = {
            "instance_id": name,
            "query": question.text if plain else widesearch_query(question.text, columns),
            "evaluation": msgspec.json.encode(rules).decode(),
            "language": "en",
            "group": question.group,
        }
        asked = {"question": question.text, "columns": columns, "rows": question.rows}
        lines["tasks"].append(task)
        lines["questions"].append({"id": question.id, **asked, "group": question.group})
        if rlinf:
            answer = to_markdown(columns, question.rows)
            read = {"question": task["query"], "answer": answer, "is_markdown": True}
            lines["rlinf"].append({**task, **read, "unique_columns": keys})

        names.append(f"gold/{name}.csv")
        with (
            replacing(folder / names[-1]) as unfinished,
            unfinished.open("w", encoding="utf-8-sig", newline="") as file,
        ):
            csv.writer(file).writerows([[column.name for column in columns], *question.rows])
    for kind in ("tasks", "questions", *["rlinf"] * rlinf):
        names.append(f"{kind}.jsonl")
        write_jsonl(folder / names[-1], lines[kind])
    return names


def _file_name(identity: str) -> str:
    """Return an id as a file name. A long name is cut off, and ends in a digest that keeps it
    unique.
    """
    name = quote(identity, safe="")
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _norm(column: Column) -> str:
    """Return a column's name as WideSearch compares it: in lower case, without spaces."""
    return column.name.strip().lower().replace(" ", "")
