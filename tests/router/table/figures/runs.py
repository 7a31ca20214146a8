"""Runs of tables by scripted models, in tokens of the mini model, and printing of their figures.

The figures are about the machinery. They say nothing about how well models search, read or plan.
"""

import html
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.widesearch.scoring import CellJudge, scores_of
from executor_sft.dataset import ServedTokens
from router.errors import UpstreamRefused
from router.models import Completion, Message, Prompt, Usage
from router.table import table_cost, table_of
from router.table.table_text import to_markdown
from router.trace import RoleName, Run
from tests.benchmarks.widesearch.made_tasks import TEXT, number, task
from tests.router.table.small_world import COLUMNS, Reader, World, lead_turn
from tests.router.table.test_filling import filled, result, values
from tests.scripted_model import ScriptedModel

MINI = Path(__file__).parents[4] / "serving/models/mini-backbone"


async def run_of(
    folder: Path, world: World, executor: Any = None, delegator: Any = None, **terms: Any
) -> Run:
    """Return a run, and assert that the cost of its rows, cells and overhead equals its spending
    exactly.
    """
    run = await filled(folder, world, executor, delegator, max_tokens=1024, **terms)
    cost = table_cost(table_of(result(run)), result(run).asks, run.calls)
    assert sum(amount.tokens for amount in (*cost.rows, cost.overhead)) == sum(tokens(run).values())
    return run


def tokens(run: Run) -> dict[str, int]:
    """Return tokens by role, failed calls included."""
    spent = dict.fromkeys(("delegation", "execution"), 0)
    for call in run.calls:
        assert call.usage or call.outcome != "completed"
        spent[call.role] += call.usage.total_tokens if call.usage else 0
    return spent


def with_prompts(run: Run) -> dict[str, int]:
    """Return the tokens that calls would have with the shipped system prompts for large models
    instead of a word.
    """
    spent = tokens(run)
    for call in run.calls:
        if call.usage:
            spent[call.role] += read_tokens([system(call.role)]) - read_tokens(
                [Message("system", call.role)]
            )
    return spent


@cache
def system(role: RoleName) -> Message:
    """Return the shipped prompt for tables of large models."""
    file = Path(__file__).parents[4] / f"serving/prompts/full/table_{role}.txt"
    return Message("system", file.read_text("utf-8").strip())


def right(world: World, run: Run) -> int:
    """Return the correct cells, including keys and blanks."""
    gold = {row[0]: row for row in world.rows()}
    return sum(
        cell == wanted
        for row in values(run)
        for cell, wanted in zip(row, gold.get(row[0], ()), strict=False)
    )


async def item_f1(world: World, run: Run) -> float:
    """Return item F1 by the evaluator's strict rules, in points."""
    gold = [[column.name for column in COLUMNS], *world.rows()]
    asked = task("\n".join(map(",".join, gold)), TEXT, TEXT, number(0.0))
    scores = await scores_of(asked, to_markdown(COLUMNS, values(run)), CellJudge(), "strict")
    return 100 * scores.item_f1


@cache
def _served() -> ServedTokens:
    return ServedTokens(MINI)


def read_tokens(messages: Sequence[Message]) -> int:
    """Count a prompt's tokens like the demo's engines, chat template included."""
    return len(_served().prompt(messages))


class _Counting(ScriptedModel):
    """A model that counts like the demo's engines."""

    async def count(self, prompt: Prompt, text: str) -> Usage:
        return Usage(
            read_tokens(prompt.messages), len(_served().completion(Completion(text, "stop")))
        )


class CountingLead(_Counting):
    """`lead` with the token counts of the mini model."""

    def __init__(self, world: World, a_turn: int = 4) -> None:
        super().__init__(lambda prompt: lead_turn(world, len(prompt.messages), a_turn), "backbone")


class CountingReader(Reader, _Counting):
    """A reader with the token counts of the mini model.

    A share `fails` of its executors is refused at the first turn, or at the report, when tokens
    are already spent.
    """

    def __init__(self, *, fails: float = 0.0, **knobs: Any) -> None:
        super().__init__(**knobs)
        self._failing = fails

    def _write(self, prompt: Prompt) -> Any:
        written = super()._write(prompt)
        asked = html.unescape(prompt.messages[1].content)
        luck = random.Random(f"{self._seed}/{asked}/{self.asked[asked]}/fails")
        fails = luck.random() < self._failing
        at = luck.choice((2, 4))
        return (
            UpstreamRefused("no", endpoint=self.endpoint)
            if fails and len(prompt.messages) == at
            else written
        )


def spread(figures: Sequence[float]) -> str:
    """Return the mean and standard deviation over seeds."""
    return (
        f"{fmean(figures):.4g} ± {stdev(figures):.2g}"
        if len(figures) > 1
        else f"{fmean(figures):.4g}"
    )


def show(title: str, rows: Sequence[dict[str, object]]) -> None:
    """Print figures as a Markdown table, visible with `pytest -s`."""
    lines = [
        [*rows[0]],
        ["---"] * len(rows[0]),
        *([_shown(value) for value in row.values()] for row in rows),
    ]
    print(f"\n\n{title}\n", *(f"| {' | '.join(line)} |" for line in lines), sep="\n")


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
