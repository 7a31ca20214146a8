"""Questions for rows that are asked again with further passages of the same search."""

import html
import re
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from router.errors import UpstreamRefused
from router.models import Prompt
from router.protocol import Passage
from router.runs import RequestOptions
from router.table import TableLimits, table_of
from router.trace import Run
from router.trace.table import Ask, Column, Condition
from router.trace.values import TableRun
from tests.router.table.small_world import REQUEST, Reader, World, gateway

PASSAGES = TableLimits(discovery_passages=30)


class Scattered(World):
    """A world in which a search for a part of the register finds 20 passages, one for each city of
    the part and many that name none. `ranks`: where the passages of cities stand, from 0.
    """

    def __init__(self, ranks: tuple[int, ...]) -> None:
        super().__init__(2 * len(ranks), a_part=len(ranks))
        self._ranks = ranks

    def _named(self, query: str) -> list[Passage]:
        if "part" not in query:
            return super()._named(query)
        part = self.parts[int(re.findall(r"\d+", query)[0]) - 1]
        passages = [Passage(f"{query} {rank}", "Notes", "Nothing.") for rank in range(20)]
        for rank, city in zip(self._ranks, part, strict=True):
            passages[rank] = Passage(f"{query} {rank}", "Register", f"{city} is listed.")
        return passages


def of_run(run: Run) -> TableRun:
    assert isinstance(run.result, TableRun)
    return run.result


def discoveries(run: Run) -> list[Ask]:
    return [ask for ask in of_run(run).asks if ask.kind == "discover"]


async def filled(folder: Path, world: World, reader: Any = None, **terms: Any) -> Run:
    async with gateway(folder, world, reader or Reader(slow=0), **terms) as (filling, archive):
        run = await filling.fill_table(REQUEST, RequestOptions())
        return await archive.load(run.id)


async def test_further_passages_are_read_until_two_attempts_find_nothing_new(
    tmp_path: Path,
) -> None:
    """Each attempt is shown the next three passages, and the last six have no city."""
    world = Scattered((0, 4, 5, 11))
    run = await filled(tmp_path, world, limits=PASSAGES)
    assert len(table_of(of_run(run)).rows) == len(world.cities)
    first = [ask for ask in discoveries(run) if ask.discovery == 1]
    assert [(ask.attempt, ask.passages_before) for ask in first] == [
        (1, 0),
        (2, 3),
        (3, 6),
        (4, 9),
        (5, 12),
        (6, 15),
    ]
    shown = [
        passage.id
        for ask, execution in zip(of_run(run).asks, of_run(run).executions, strict=True)
        if ask in first
        for search in execution.searches
        for passage in search.passages
    ]
    assert len(shown) == len(set(shown)) == 18


async def test_only_the_first_passages_are_read_by_default(tmp_path: Path) -> None:
    run = await filled(tmp_path, Scattered((0, 4)))
    assert len(table_of(of_run(run)).rows) == 2
    assert {ask.attempt for ask in discoveries(run)} == {1}


async def test_no_passage_beyond_the_limit_begins_an_attempt(tmp_path: Path) -> None:
    """Even if each attempt finds a row."""
    world = Scattered((0, 3, 6, 9, 12, 15))
    run = await filled(tmp_path, world, limits=TableLimits(discovery_passages=7))
    assert {ask.passages_before for ask in discoveries(run)} == {0, 3, 6}


async def test_an_attempt_that_fails_is_repeated_with_the_same_passages(tmp_path: Path) -> None:
    class Failing(Reader):
        """Fails at the second attempt of each question for rows."""

        def _write(self, prompt: Prompt) -> Any:
            asked = html.unescape(prompt.messages[1].content)
            if len(prompt.messages) == 2 and "part" in asked and self.asked[asked] == 1:
                self.asked[asked] += 1
                return UpstreamRefused("no", endpoint=self.endpoint)
            return super()._write(prompt)

    world = Scattered((0, 4, 8))
    run = await filled(tmp_path, world, Failing(slow=0), limits=PASSAGES)
    assert len(table_of(of_run(run)).rows) == len(world.cities)
    first = [ask.passages_before for ask in discoveries(run) if ask.discovery == 1]
    assert first[:4] == [0, 3, 3, 6]


async def test_rows_of_further_passages_must_meet_a_condition(tmp_path: Path) -> None:
    """One that the first passages name stays if it cannot be checked."""
    world = Scattered((0, 4, 5, 11))
    known = world.parts[0][2]
    world.founder = {known: world.founder[known]}
    named = Condition(Column("founder", ask="Who founded {city}?"), "contains", ("Ana",))
    request = replace(REQUEST, conditions=(named,))
    async with gateway(tmp_path, world, Reader(slow=0), limits=PASSAGES) as (filling, _):
        table = table_of(of_run(await filling.fill_table(request, RequestOptions())))
    assert {row.cells[0].value for row in table.rows} == {
        known,
        world.parts[0][0],
        world.parts[1][0],
    }
    (check,) = table.excluded[0].checks
    assert (len(table.excluded), check.state) == (5, "not_checked")
