"""Figures of the lead: width in the papers' sense, the size of its prompt, and tokens by role."""

import random
from pathlib import Path
from statistics import fmean

import pytest

from router.table import TableLimits, table_cost, table_of
from tests.router.table.figures.runs import (
    CountingLead,
    CountingReader,
    item_f1,
    read_tokens,
    right,
    run_of,
    show,
    spread,
    system,
    tokens,
    with_prompts,
)
from tests.router.table.small_world import World
from tests.router.table.test_filling import result, values

pytestmark = pytest.mark.slow

_SEEDS = range(5)


class Overlapping(World):
    """Registers that each name every city with the same probability, so that many name the same
    one.
    """

    def __init__(self, cities: int, registers: int, chance: float, seed: int) -> None:
        super().__init__(cities)
        luck = random.Random(seed)
        drawn = [[city for city in self.cities if luck.random() < chance] for _ in range(registers)]
        self.parts = [part or self.cities[:1] for part in drawn]


async def test_up_to_sixteen_asks_a_turn_find_more_rows_in_as_many_turns(tmp_path: Path) -> None:
    """The prompt of the lead does not fill with reports.

    That of WideSeek-R1's base model does, and its score falls at ten (its Fig. 4). A tenth of
    the executors fail.
    """
    rows = list[dict[str, object]]()
    turns = 4
    found_by = dict[int, list[int]]()
    for a_turn in (1, 2, 4, 8, 10, 16):
        row_counts = list[int]()
        prompts = list[int]()
        scores = list[float]()
        cell = list[float]()
        for seed in _SEEDS:
            world = Overlapping(120, 16 * turns, 0.05, seed)
            delegator = CountingLead(world, a_turn)
            reader = CountingReader(seed=seed, fails=0.1)
            limits = TableLimits(max_rounds=turns)
            run = await run_of(
                tmp_path / f"{a_turn}-{seed}", world, reader, delegator, limits=limits
            )
            row_counts.append(len(values(run)))
            named = {city for part in world.parts[: a_turn * turns] for city in part}
            assert {row[0] for row in values(run)} <= named
            prompts.append(read_tokens(delegator.prompts[-1].messages))
            scores.append(await item_f1(world, run))
            cell.append(sum(tokens(run).values()) / right(world, run))
        found_by[a_turn] = row_counts
        expected = 120 * (1 - 0.95 ** (a_turn * turns))
        rows.append(
            {
                "asks a turn": a_turn,
                "rows found": spread(row_counts),
                "rows to be expected": expected,
            }
        )
        rows[-1] |= {
            "item F1": spread(scores),
            "lead's last prompt": fmean(prompts),
            "tokens a right cell": spread(cell),
        }
    show(
        f"Of 120 rows, {turns} turns of the lead, {len(_SEEDS)} seeds, registers that overlap", rows
    )
    means = [fmean(row_counts) for row_counts in found_by.values()]
    assert means == sorted(means)


async def test_the_prompt_of_the_lead_hardly_grows_with_the_rows(tmp_path: Path) -> None:
    """The tables have 10 to 500 rows and equally many questions.

    Only its own questions grow, if a larger table takes more of them.
    """
    rows = list[dict[str, object]]()
    sizes = dict[int, int]()
    bare = dict[int, int]()
    for size in (10, 20, 50, 100, 500):
        leads = list[CountingLead]()
        for world, a_turn in (
            (World(size, unstated=5, a_part=size // 5), 2),
            (World(size, unstated=5, a_part=10), 10),
        ):
            leads.append(CountingLead(world, a_turn))
            folder = tmp_path / f"{size}-{a_turn}"
            run = await run_of(folder, world, CountingReader(slow=0), leads[-1])
            assert len(values(run)) == size
        same, more = (lead.prompts[-1].messages[1:] for lead in leads)
        sizes[size] = read_tokens([system("delegation"), *same])
        bare[size] = read_tokens(same)
        rows.append(
            {"rows": size, "five questions": sizes[size], "to 10 rows": sizes[size] / sizes[10]}
        )
        rows[-1] |= {"no system prompt": bare[size], "to 10 rows then": bare[size] / bare[10]}
        rows[-1] |= {
            "a question for ten rows, no system prompt": read_tokens(more),
            "in turns": len(leads[1].prompts),
        }
    show("Tokens of the lead's last prompt, by the rows of the table", rows)
    assert sizes[500] < 1.2 * sizes[10]
    assert bare[500] < 1.2 * bare[20], "of 10 rows it is not shown as many names"


async def test_executors_spend_at_least_four_fifths_of_the_tokens(tmp_path: Path) -> None:
    """The lead asks ten or more questions a turn.

    Each of its turns reads all turns before, so fewer questions at a time cost it more. Cells,
    rows and overhead add up to all spending.
    """
    rows = list[dict[str, object]]()
    for size in (8, 25, 55, 150):
        for a_turn in (4, 10, 20):
            world = World(size, unstated=size // 20, renamed=size // 20)
            run = await run_of(
                tmp_path / f"{size}-{a_turn}", world, CountingReader(), CountingLead(world, a_turn)
            )
            spent = sum(tokens(run).values())
            rows.append(
                {
                    "rows": size,
                    "asks a turn": a_turn,
                    "turns": sum(call.role == "delegation" for call in run.calls),
                }
            )
            rows[-1] |= {
                "tokens": spent,
                "a right cell": spent / right(world, run),
                "a row": spent / size,
            }
            cost = table_cost(table_of(result(run)), result(run).asks, run.calls)
            rows[-1] |= {"overhead": cost.overhead.tokens / spent}
            for name, by_role in (("of a word", tokens(run)), ("as shipped", with_prompts(run))):
                share = by_role["execution"] / sum(by_role.values())
                rows[-1] |= {f"of executors, prompts {name}": share}
                assert share >= 0.8 or (a_turn < 10 and name == "of a word")
    show("Tokens, by the demo's tokenizer", rows)
