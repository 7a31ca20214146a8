"""Rows that stand in no register are found by a search for the value of a condition alone."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from router.errors import UpstreamUnavailable
from router.protocol import Passage
from router.runs import RequestOptions
from router.table import TableLimits, table_of
from router.table.assembly import Table
from router.trace.table import Column, Condition
from router.trace.values import TableRun
from tests.router.table.small_world import REQUEST, Reader, World, gateway

ANA = "Ana Vorson"
OF_ANA = Condition(Column("founder", ask="Who founded {city}?"), "equals", (ANA,))


class Unlisted(World):
    """A world in which Ana founded most cities, of which the register lists the first four, and
    taught a pupil.
    """

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__(8)
        self.founder = dict.fromkeys(self.cities, ANA) | {self.cities[1]: "Bo Otherson"}
        self.parts = [self.cities[:4]]
        self.searched: list[tuple[str, int]] = []
        """Searches for her name alone, with the number of passages."""
        self._fails = fails

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        """Return the pages that the queries name, and for her name, all pages that have it."""
        if ANA not in queries:
            return await super().search(queries, top_k, document)
        self.searched.append((ANA, top_k))
        if self._fails:
            raise UpstreamUnavailable("no", endpoint="http://127.0.0.1:9")
        pupil = Passage("Pupil", "Pupil", f"Pupil was taught by {ANA}.")
        return [[pupil, *map(self.page, self.cities)][:top_k]]


async def filled(folder: Path, world: World, limits: TableLimits) -> tuple[Table, TableRun]:
    request = replace(REQUEST, conditions=(OF_ANA,))
    async with gateway(folder, world, Reader(slow=0), limits=limits) as (filling, _):
        run = (await filling.fill_table(request, RequestOptions())).result
    assert isinstance(run, TableRun)
    return table_of(run), run


def names(table: Table) -> list[str]:
    return sorted(row.cells[0].value for row in table.rows)


async def test_names_on_pages_with_the_value_become_rows(tmp_path: Path) -> None:
    """They are spelled as on their pages, and have all cells. Her pupil is no city, as no page says
    of a city what one says of him.
    """
    world = Unlisted()
    table, run = await filled(tmp_path, world, TableLimits())
    assert world.searched == [(ANA, 50)]
    assert names(table) == [world.cities[0], *world.cities[2:]]
    assert {cell.state for row in table.rows for cell in row.cells[1:]} <= {"single", "agreed"}
    assert [row.cells[0].value for row in table.excluded] == [world.cities[1]]
    assert not [ask for ask in run.asks if ask.row == ("pupil",)]


@pytest.mark.parametrize(
    "limits", [TableLimits(discovery_passages=0), TableLimits(ask_left_out=False)]
)
async def test_the_config_may_forbid_the_search(tmp_path: Path, limits: TableLimits) -> None:
    world = Unlisted()
    table, _ = await filled(tmp_path, world, limits)
    assert world.searched == []
    assert names(table) == [world.cities[0], *world.cities[2:4]]


async def test_a_search_that_fails_costs_only_its_rows(tmp_path: Path) -> None:
    world = Unlisted(fails=True)
    table, run = await filled(tmp_path, world, TableLimits())
    assert world.searched
    assert run.outcome == "filled"
    assert names(table) == [world.cities[0], *world.cities[2:4]]
