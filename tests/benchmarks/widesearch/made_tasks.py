"""Tasks and tables for tests of WideSearch's evaluation."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.widesearch.cell_rules import Criterion, Metric, Preprocess
from benchmarks.widesearch.scoring import CellJudge, RuleSet, TableScores, scores_of
from benchmarks.widesearch.table_text import Table, read_csv
from benchmarks.widesearch.tasks import Rule, Task

DATA = Path(__file__).parents[4] / "shared/data/widesearch"
TEXT = Rule(("norm_str",), ("exact_match",))
JUDGED = Rule(("norm_str",), ("llm_judge",), "It has to mean the same.")
DATE = Rule(("norm_date",), ("date_near",))


def number(criterion: float) -> Rule:
    """Return the rule of a column of numbers."""
    return Rule(("extract_number",), ("number_near",), criterion)


def rule(preprocess: Preprocess, metric: Metric, criterion: Criterion = None) -> Rule:
    """Return a rule of one step and one metric."""
    return Rule((preprocess,), (metric,), criterion)


def task(gold: str, *rules: Rule, keys: int = 1, name: str = "t1", language: str = "en") -> Task:
    """Return a task with this CSV as its gold table; there is a rule for each column, and the first
    columns are keys.
    """
    table = read_csv(gold, ",")
    columns = tuple(table)
    return Task(
        name,
        "List them.",
        language,
        "",
        columns[:keys],
        dict(zip(columns, rules, strict=True)),
        table,
    )


def markdown(table: Table, line_break: str = "<br>") -> str:
    """Return the table as careful Markdown."""
    rows = [[*table], ["---"] * len(table), *map(list, zip(*table.values(), strict=True))]
    escaped = ([cell.replace("|", "\\|").replace("\n", line_break) for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def fenced(*lines: str) -> str:
    """Return a response with these lines in a fence."""
    return "\n".join(
        ["Here it is:", "```markdown", *lines, "```", "| not | this | one |", "|---|---|---|"]
    )


async def scored(
    scored_task: Task, response: str, rules: RuleSet = "official", judge: CellJudge | None = None
) -> TableScores:
    """Return the scores of a response."""
    return await scores_of(scored_task, response, judge or CellJudge(), rules)


def written(folder: Path, tasks: Sequence[Task]) -> Path:
    """Write a folder with these tasks, in WideSearch's form."""
    (folder / "gold").mkdir(parents=True)
    lines = []
    for written_task in tasks:
        rules: dict[str, Any] = {
            name: {
                "preprocess": rule.preprocess,
                "metric": rule.metric,
                "criterion": rule.criterion,
            }
            for name, rule in written_task.rules.items()
        }
        evaluation = {
            "unique_columns": written_task.keys,
            "required": [*written_task.rules],
            "eval_pipeline": rules,
        }
        line = {
            "instance_id": written_task.instance_id,
            "query": written_task.query,
            "language": written_task.language,
        }
        lines.append(json.dumps(line | {"evaluation": json.dumps(evaluation)}))
        rows = [[*written_task.gold], *zip(*written_task.gold.values(), strict=True)]
        gold = "\n".join(",".join(row) for row in rows)
        (folder / "gold" / f"{written_task.instance_id}.csv").write_text(gold, "utf-8-sig")
    (folder / "tasks.jsonl").write_text("\n".join(lines), "utf-8")
    return folder
