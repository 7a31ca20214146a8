"""Names in a list with rows, but in no report: conditions decide whether they become rows."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from router.protocol import Passage
from router.runs import RequestOptions
from router.table import TableLimits, table_of
from router.table.assembly import Table
from router.table.completeness import completeness
from router.trace.table import Column, Condition, Row
from router.trace.values import TableRun
from tests.router.table.small_world import REQUEST, Reader, World, gateway, lead, written

FOUNDED = Condition(Column("founded", ask="When was {city} founded?"), "at_least", ("1002",))


class InOneLine(World):
    """A world whose register has a strange name, too."""

    def register(self, number: int) -> Passage:
        """Return a part of the register as one sentence."""
        cities = [*self.parts[number - 1], "Strangeland"]
        text = f"The cities are {', '.join(cities)}."
        return Passage(f"Register {number}", f"Register {number}", text)


class Skipping(Reader):
    """Reports the first three cities of each list only."""

    def report(self, asked: str, shown: str) -> str:
        """Leave out the others."""
        if "part" not in asked:
            return super().report(asked, shown)
        cities = shown.rpartition("The cities are ")[2].partition(".")[0].split(", ")
        return written("\n".join(cities[:3]))


async def filled(
    folder: Path, conditions: tuple[Condition, ...], limits: TableLimits
) -> tuple[Table, TableRun, Reader]:
    """Fill the table of a register with two parts of six cities each."""
    reader = Skipping(slow=0)
    request = replace(REQUEST, conditions=conditions)
    async with gateway(folder, InOneLine(12, a_part=6), reader, limits=limits) as (filling, _):
        result = (await filling.fill_table(request, RequestOptions())).result
    assert isinstance(result, TableRun)
    return table_of(result), result, reader


def names(rows: Iterable[Row]) -> list[str]:
    """Return the names of rows."""
    return [row.cells[0].value for row in rows]


async def test_names_that_meet_a_condition_become_rows_and_are_filled(tmp_path: Path) -> None:
    """A row that a report gave stays if it is not checked, and such a name does not."""
    table, run, _ = await filled(tmp_path, (FOUNDED,), TableLimits())
    world = InOneLine(12, a_part=6)
    assert sorted(name.lower() for name in names(table.rows)) == [
        name.lower() for name in world.cities[2:]
    ]
    assert {cell.state for row in table.rows for cell in row.cells[1:]} <= {"single", "agreed"}
    assert sorted(names(table.excluded)) == ["Kruaa", "Kruba", "strangeland"]
    assert completeness(table, ()).unlisted_rows == 6
    asked = [ask for ask in run.asks if ask.row == ("strangeland",)]
    assert {ask.columns for ask in asked} == {("founded",)}


async def test_a_name_that_a_later_report_lists_is_a_row_like_others(tmp_path: Path) -> None:
    """Its other cells are asked for, although it does not meet the condition for certain."""

    class Later(Skipping):
        def report(self, asked: str, shown: str) -> str:
            return written("Strangeland") if "part 2" in asked else super().report(asked, shown)

    world = InOneLine(12, a_part=6)
    request = replace(REQUEST, conditions=(FOUNDED,))
    async with gateway(tmp_path, world, Later(slow=0), lead(world, 1)) as (filling, _):
        run = (await filling.fill_table(request, RequestOptions())).result
    assert isinstance(run, TableRun)
    assert "strangeland" in [name.lower() for name in names(table_of(run).rows)]
    asked = [ask for ask in run.asks if ask.row == ("strangeland",)]
    assert [ask.columns for ask in asked if ask.attempt == 1] == [("founded",), ("founder",)]


@pytest.mark.parametrize(
    ("conditions", "limits"),
    [((), TableLimits()), ((FOUNDED,), TableLimits(ask_left_out=False))],
)
async def test_without_conditions_or_by_config_they_are_not_asked_about(
    tmp_path: Path, conditions: tuple[Condition, ...], limits: TableLimits
) -> None:
    table, run, _ = await filled(tmp_path, conditions, limits)
    assert len(table.every_row) == 6
    assert {len(ask.row or ("",)) for ask in run.asks} == {1}
    assert not [ask for ask in run.asks if ask.row == ("strangeland",)]


async def test_they_never_make_a_table_larger_than_its_limit(tmp_path: Path) -> None:
    table, run, _ = await filled(tmp_path, (FOUNDED,), TableLimits(max_rows=7))
    assert len(table.every_row) == 7
    assert run.outcome == "filled"
