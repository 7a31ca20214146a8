"""Table questions as files in WideSearch's form, and how much of their gold is found by gold searches."""

import csv
import json
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, get_args

import msgspec

from executor_sft.miniworld.questions import Examiner
from executor_sft.miniworld.wide import Reach, TableTask, WideWorld
from serving.retrieval.build import build_index
from serving.retrieval.embedder import MiniLM
from serving.retrieval.index import Index

Search = Callable[[list[str]], list[list[str]]]
"""Queries to the ids of the passages that each finds."""
_TOP_K = 3
_YEAR = {"preprocess": ["extract_number"], "metric": ["number_near"], "criterion": 0.0}
_TEXT = {"preprocess": ["norm_str"], "metric": ["exact_match"]}


def export_tables(wide: WideWorld, folder: Path) -> None:
    """Write `tasks.jsonl` with `gold/<id>.csv`; the same as `questions.jsonl`, for `rolegate sft rollout`; and, to tell
    errors apart, `reach.jsonl`: where each gold cell is found, and the names in registers that do not belong.
    """
    (folder / "gold").mkdir(parents=True, exist_ok=True)
    tasks, questions, reaches = [], [], []
    for task in wide.tasks:
        rules = {name: _YEAR if name == "year" else _TEXT for name in task.columns}
        evaluation = json.dumps({"unique_columns": task.columns[:1], "required": task.columns, "eval_pipeline": rules})
        written = {"query": task.query, "evaluation": evaluation, "language": "en"}
        tasks.append({"instance_id": task.id, **written})
        stale = sorted(wide.listed(task) - {row.mention for row in task.rows})
        reaches.append({"instance_id": task.id, "size": task.size, "reach": wide.reach(task), "stale": stale})
        rows = [[row.mention, *(wide.gold(row, one) for one in task.relations)] for row in task.rows]
        asked = {"question": task.question, "columns": task.schema.columns, "rows": rows}
        questions.append({"id": task.id, **asked})
        with (folder / "gold" / f"{task.id}.csv").open("w", encoding="utf-8-sig", newline="") as file:
            csv.writer(file).writerows([task.columns, *rows])
    for name, lines in (("tasks", tasks), ("questions", questions), ("reach", reaches)):
        (folder / f"{name}.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(lines))


def figures(wide: WideWorld, search: Search | None = None) -> list[dict[str, Any]]:
    """Sizes, and shares of the gold cells by where they are found, for each size class and all tasks; with `search`,
    also the shares of the rows and of the cells that gold searches find.
    """
    groups: dict[str, Counter[str]] = {}
    for task in wide.tasks:
        cells = Counter[str](cell for row in wide.reach(task) for cell in row)
        counts = cells + Counter(tables=1, rows=len(task.rows), cells=cells.total())
        counts += Counter(_found(wide, task, search) if search else {})
        for group in (task.size, "all"):
            groups[group] = groups.get(group, Counter()) + counts
    sizes = ["tables", "rows", "cells", *(["discoveries"] if search else [])]
    shares = dict.fromkeys(get_args(Reach), "cells") | (
        {"rows_found": "rows", "cells_found": "cells"} if search else {}
    )
    return [
        {"size": group, **{name: counts[name] for name in sizes}}
        | {name: round(counts[name] / counts[whole], 4) for name, whole in shares.items()}
        for group, counts in groups.items()
    ]


def _found(wide: WideWorld, task: TableTask, search: Search) -> dict[str, int]:
    """Count what a run without a mistake finds: the lead asks on until a turn brings nothing new, and each cell of what
    was found is asked for as in answers. Where nothing is stated, nothing need be found.
    """
    found, asked, examiner = set[str](), 0, Examiner(wide.world, wide.library)
    for turn in count():
        questions, before = task.discoveries(turn), len(found)
        for (one, question), pages in zip(questions, search([text for _, text in questions]), strict=True):
            found.update(name for stated in one.named_in(question, pages) for name in stated.names)
        asked += len(questions)
        if len(found) == before:
            break
    rows = [row for row in task.rows if row.mention in found]
    fills = [examiner.sub_query(row, one, one.ask[0]) for row in rows for one in task.relations if wide.gold(row, one)]
    steps = [list(zip(fill.searches, fill.gold_passages, strict=True)) for fill in fills]
    queries = list({query for one in steps for query, _ in one})
    shown = dict(zip(queries, search(queries), strict=True)) if queries else {}
    missed = sum(any(gold not in shown[query] for query, gold in one) for one in steps)
    return {"discoveries": asked, "rows_found": len(rows), "cells_found": len(rows) * len(task.columns) - missed}


def demo_search(corpus: Path, index: Path) -> Search:
    """The demo's search over a corpus, whose index is built in the folder `index`."""
    embedder = MiniLM()
    build_index([corpus], index, embedder)
    opened = Index.open(index, embedder)

    def search(queries: list[str]) -> list[list[str]]:
        found = opened.search(embedder.embed(queries, queries=True), queries, _TOP_K)
        return [[passage.document.partition("#")[2] for passage in passages] for passages in found]

    return search
