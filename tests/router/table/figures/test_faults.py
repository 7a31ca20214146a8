"""Figures of faults: executors that invent or fail, and tables sent back with holes."""

import html
import random
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from router.models import Prompt
from router.table import TableRequest, table_of
from tests.router.table.figures.runs import (
    CountingLead,
    CountingReader,
    item_f1,
    run_of,
    show,
    spread,
    tokens,
)
from tests.router.table.small_world import COLUMNS, QUESTION, World
from tests.router.table.test_filling import result, values

pytestmark = pytest.mark.slow

_SEEDS = range(8)


def world() -> World:
    """A world of sixty rows.

    Some founders are unstated; some cities have an old name, whose page names another founder.
    """
    return World(60, unstated=3, renamed=3)


class Inventive(CountingReader):
    """A reader that replaces a share of its cells by a value of another row or by no value of
    the world.
    """

    def __init__(self, of: World, share: float, **knobs: Any) -> None:
        super().__init__(**knobs)
        self._world = of
        self._share = share

    def _value(self, asked: str, name: str, shown: str) -> str:
        luck = random.Random(f"{self._seed}/{asked}/{name}/invents")
        if luck.random() >= self._share:
            return super()._value(asked, name, shown)
        founders = name == "founder"
        others = [*(self._world.founder if founders else self._world.founded).values()]
        others += ["Nobody Inventedson" if founders else "966"] * len(others)
        return luck.choice([value for value in others if value not in shown])


async def test_invented_values_have_no_support_and_true_values_have(tmp_path: Path) -> None:
    """Some invented values are plausible."""
    rows = list[dict[str, object]]()
    every = dict[bool, Counter[str]]()
    for seed in _SEEDS:
        supports: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        run = await run_of(
            tmp_path / f"{seed}", world(), Inventive(world(), 0.1, seed=seed), CountingLead(world())
        )
        gold = {row[0]: row for row in world().rows()}
        for row in table_of(result(run)).rows:
            for cell, wanted in [*zip(row.cells, gold[row.cells[0].value], strict=True)][1:]:
                stated = (wanted, "Bo Otherson")
                for claim in cell.claims:
                    supports[claim.value not in stated][claim.support] += 1
        for invented, counts in supports.items():
            every.setdefault(invented, Counter()).update(counts)
        shares = {
            f"{name}, unsupported": counts["unsupported"] / counts.total()
            for name, counts in _named(supports)
        }
        rows.append(
            {"seed": seed, **{name: counts.total() for name, counts in _named(supports)}, **shares}
        )
    shares = {
        f"{name}, unsupported": counts["unsupported"] / counts.total()
        for name, counts in _named(every)
    }
    rows.append(
        {"seed": "all", **{name: counts.total() for name, counts in _named(every)}, **shares}
    )
    show("A tenth of the cells invented: claims by what is their support", rows)
    assert every[True]["unsupported"] >= 0.95 * every[True].total() > 0
    assert every[False]["unsupported"] <= 0.02 * every[False].total()


def _named(supports: dict[bool, Counter[str]]) -> list[tuple[str, Counter[str]]]:
    return [("invented", supports[True]), ("true", supports[False])]


class Rambling(CountingReader):
    """A reader that answers a share of its executors with neither a search nor a report, in
    every turn.
    """

    def __init__(self, share: float, **knobs: Any) -> None:
        super().__init__(**knobs)
        self._share = share

    def _write(self, prompt: Prompt) -> Any:
        written = super()._write(prompt)
        asked = html.unescape(prompt.messages[1].content)
        luck = random.Random(f"{self._seed}/{asked}/{self.asked[asked]}/rambles")
        return "Well, let me see." if luck.random() < self._share else written


async def test_a_fifth_of_failing_executors_costs_little(tmp_path: Path) -> None:
    """The table loses at most a point of item F1, and costs at most 1.35 times as much.

    Failed asks are repeated singly, where a second run of everything would cost twice as much.
    """
    rows = list[dict[str, object]]()
    scores = dict[str, list[float]]()
    costs = dict[str, list[float]]()
    for seed in _SEEDS:
        readers = {
            "none": CountingReader(seed=seed),
            "refused": CountingReader(seed=seed, fails=0.2),
            "rambling": Rambling(0.2, seed=seed),
        }
        for name, reader in readers.items():
            run = await run_of(tmp_path / f"{name}-{seed}", world(), reader, CountingLead(world()))
            scores.setdefault(name, []).append(await item_f1(world(), run))
            costs.setdefault(name, []).append(sum(tokens(run).values()))
            if name != "none":
                failed = sum(
                    execution.outcome != "reported" for execution in result(run).executions
                )
                rows.append(
                    {
                        "seed": seed,
                        "how": name,
                        "executors": len(result(run).executions),
                        "failed": failed,
                    }
                )
                rows[-1] |= {"item F1": scores[name][-1], "without": scores["none"][-1]}
                rows[-1] |= {"tokens to without": costs[name][-1] / costs["none"][-1]}
    ratios = {
        name: [
            faulty / faultless
            for faulty, faultless in zip(spent_tokens, costs["none"], strict=True)
        ]
        for name, spent_tokens in costs.items()
    }
    for name in ("refused", "rambling"):
        rows.append(
            {
                "seed": "all",
                "how": name,
                "executors": "",
                "failed": "",
                "item F1": spread(scores[name]),
            }
        )
        rows[-1] |= {"without": spread(scores["none"]), "tokens to without": spread(ratios[name])}
    show(
        "A fifth of the executors failing: refused by their endpoint, half of them with "
        "a report due; or rambling",
        rows,
    )
    for name in ("refused", "rambling"):
        assert fmean(scores[name]) >= fmean(scores["none"]) - 1
        assert max(ratios[name]) <= 1.35


async def test_holes_are_asked_for_alone(tmp_path: Path) -> None:
    """Three tenths of a finished table's cells are removed and sent back.

    The other cells stay unchanged.
    """
    rows = list[dict[str, object]]()
    for seed in _SEEDS:
        first = await run_of(
            tmp_path / f"{seed}", world(), CountingReader(seed=seed), CountingLead(world())
        )
        luck = random.Random(seed)
        whole = values(first)
        cells = [
            (at, column)
            for at, row in enumerate(whole)
            for column in range(1, len(row))
            if row[column]
        ]
        removed = {*luck.sample(cells, round(0.3 * len(cells)))}
        sent = [
            tuple("" if (at, to) in removed else cell for to, cell in enumerate(row))
            for at, row in enumerate(whole)
        ]
        request = TableRequest(QUESTION, COLUMNS, tuple(sent), closed=True)
        reader = CountingReader(seed=seed + 100)
        then = await run_of(
            tmp_path / f"{seed}-then", world(), reader, CountingLead(world()), request=request
        )
        holes = {
            (row[0].lower(), column.name)
            for row in sent
            for cell, column in zip(row, COLUMNS, strict=True)
            if not cell
        }
        asked = {
            (key, name)
            for ask in result(then).asks
            for key in ask.row or ("",)
            for name in ask.columns
        }
        assert asked == holes
        assert values(then) == whole
        spent = [sum(tokens(run).values()) for run in (first, then)]
        rows.append(
            {
                "seed": seed,
                "cells": len(cells),
                "removed": len(removed),
                "blank before": len(holes) - len(removed),
            }
        )
        rows[-1] |= {
            "cells asked for": len(asked),
            "others changed": 0,
            "tokens to the whole run": spent[1] / spent[0],
        }
    show("A finished table with three tenths of its cells removed, sent back", rows)
