"""Options are fields of a struct, and figures are shown as tables or as JSON."""

import json
from pathlib import Path
from typing import Annotated, Literal

import pytest
from msgspec import Meta

from executor_sft.__main__ import _COMMANDS, main
from executor_sft.command import Count, StepOptions, show
from router.errors import BadConfig
from serving.cli.command import POSITIONAL, parse
from serving.config.file import preset


class Options(StepOptions, frozen=True, kw_only=True):
    """Options of every kind."""

    config: Path
    files: Annotated[tuple[Path, ...], POSITIONAL]
    """to read"""
    count: Count = 3
    """100 % of them"""
    rate: Annotated[float, Meta(gt=0)] | None = None
    """a rate"""
    side: Literal["left", "right"] = "left"
    """a side"""
    thinking: bool | None = None
    """a switch"""


def test_options_are_the_fields_of_a_struct(capsys: pytest.CaptureFixture[str]) -> None:
    """Each has its type, and absent options have their default; the docstring is the help."""
    arguments = (
        "a b --out o --count 4 --rate 0.5 --side right --thinking false --json --preset mini"
    )
    assert parse(Options, "x", arguments.split()) == Options(
        config=preset("mini"),
        files=(Path("a"), Path("b")),
        out=Path("o"),
        count=4,
        rate=0.5,
        side="right",
        thinking=False,
        json=True,
    )
    assert parse(Options, "x", ["a", "--out", "o", "--preset", "mini"]).count == 3
    with pytest.raises(SystemExit):
        parse(Options, "x", ["--help"])
    assert "100 % of them (default: 3)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--count=0", "--count: must be at least 1, got '0'"),
        ("--rate=x", "--rate: must be a number, got 'x'"),
    ],
)
def test_values_out_of_range_are_named(option: str, why: str) -> None:
    """The error has the option and its range."""
    with pytest.raises(BadConfig, match=why):
        parse(Options, "x", ["a", "--out", "o", option])


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The help has the command's name."""
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"usage: rolegate sft {command}" in capsys.readouterr().out


def test_figures_are_tables_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Single figures are in one table, groups and lists in one each; differences have their
    intervals.
    """
    gain = {"mean": 0.25, "low": -0.5, "high": 1}
    figures = {
        "rows": 1200,
        "by": {"a": {"share": 0.5, "gain": gain}},
        "spent": [{"role": "[x]", "cost": None}],
    }
    figures |= {
        "all": {"asked": 7, "scores": ({"executor": "new", "f1": 0.25},)},
        "left_out": ["a.pdf", "b.pdf"],
    }
    show(figures)
    lines = {tuple(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert {
        ("rows", "1,200"),
        ("a", "0.5000", "+0.25", "(-0.5", "to", "+1)"),
        ("[x]", "–"),
    } <= lines
    assert {
        ("asked", "7"),
        ("all,", "scores"),
        ("new", "0.2500"),
        ("left", "out"),
        ("b.pdf",),
    } <= lines
    show(figures, as_json=True)
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(figures))
