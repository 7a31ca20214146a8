"""Options, figures and child processes of benchmarks."""

import json
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from benchmarks import harness
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.harness import Check, child
from router.errors import RolegateError


class Options(harness.Options, frozen=True, kw_only=True):
    world: int
    """A seed."""


class Row(msgspec.Struct, frozen=True):
    name: str
    share: float | None


class Figures(msgspec.Struct, frozen=True):
    checks: list[Check]
    rows: list[Row]
    counts: dict[str, int]


@pytest.mark.parametrize("held", [True, False])
def test_figures_are_json_and_tables(
    held: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failed check makes the status 1."""

    async def measure(options: Options) -> Figures:
        return Figures(
            [Check("all is well", held, "seen")],
            [Row("one", 0.25), Row("two", None)],
            {"asked": 1234},
        )

    benchmark = ModuleType("benchmarks.some")
    benchmark.__dict__.update(Options=Options, measure=measure)
    assert harness.run(
        "some", benchmark, ["--world", "1", "--json", str(tmp_path / "new" / "out.json")]
    ) == (0 if held else 1)
    assert json.loads((tmp_path / "new" / "out.json").read_bytes())["rows"][1] == {
        "name": "two",
        "share": None,
    }
    shown = capsys.readouterr().out
    assert all(
        text in shown for text in ("all is well", "0.2500", "–", "1,234", "yes" if held else "no")
    )


def test_every_benchmark_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in BENCHMARKS:
        with pytest.raises(SystemExit, match="0"):
            main([name, "--help"])
        assert f"rolegate bench {name}" in capsys.readouterr().out


async def test_a_child_that_does_not_start_is_reported_with_its_status() -> None:
    with pytest.raises(RolegateError, match=r"json\.tool ended too early \(status \d"):
        async with child("json.tool", "/nowhere"):
            pass
