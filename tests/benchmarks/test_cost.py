"""What logged traffic cost, and what it would have cost: each figure worked out by hand."""

import json
from pathlib import Path

import msgspec
import pytest

from benchmarks.cost import main
from benchmarks.study.traffic import of_store, of_traces
from router.errors import BadConfig
from router.models.model import Usage
from router.store.database import Database
from router.trace.call import RoleTotal
from router.trace.export import export_row
from serving.cli.export import FORMATS
from tests.router.store.stored import call, put, run

CALLS = [
    call("r", 0, role="delegation", model="big", usage=Usage(1000, 100, 400), nano_usd=5_000_000),
    call("r", 1, role="execution", model="large", usage=Usage(3000, 200), nano_usd=4_000_000),
    call("r", 2, role="execution", model="large", usage=Usage(1000, 0), nano_usd=1_000_000, outcome="discarded"),
    call("r", 3, role="answer", model="fixed", usage=Usage(500, 50), nano_usd=0),
]
PRICES = "[tiny]\nprompt = 0.1\ncompletion = 1.0\n[fixed]\nprompt = 2.0\ncompletion = 0.0\n"


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """An export of one run."""
    with FORMATS[".jsonl"](tmp_path / "traces.jsonl") as write:
        write(export_row(run("r", calls=CALLS)))
    return tmp_path / "traces.jsonl"


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    main([*map(str, arguments), "--json"])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


async def test_store_and_traces_say_the_same(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the same run, by role and model: 10 thousandths of a dollar, half of them execution's, 1,000 tokens wasted."""
    url = f"sqlite:///{tmp_path}/runs.db"
    database = await Database.open(url)
    await put(database, run("r", calls=CALLS))
    await database.close()

    def order(total: RoleTotal) -> str:
        return total.role

    stored, exported = await of_store(url), of_traces(traces)
    assert sorted(stored.totals, key=order) == sorted(exported.totals, key=order)
    assert (stored.runs, exported.runs) == (1, 1)
    report = told(capsys, "--traces", traces)
    assert report["dollars"] == pytest.approx(0.01)
    assert report["execution_token_share"] == pytest.approx(4200 / 5850)
    rows = {row["role"]: row for row in report["booked"]["rows"]}  # type: ignore[index]
    assert (rows["execution"]["attempts"], rows["execution"]["wasted_tokens"]) == (2, 1000)
    assert (rows["delegation"]["cached_tokens"], rows["execution"]["cached_tokens"]) == (400, None)


def test_what_if(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another executor: 4,000 tokens at 0.1 and 200 at 1.0 for a million instead of five thousandths of a dollar. The
    prices that are given stand for those at which the others' calls were booked.
    """
    (tmp_path / "prices.toml").write_text(PRICES)
    given = ("--traces", traces, "--prices", tmp_path / "prices.toml")
    report = told(capsys, *given, "--instead", "execution=tiny", "--distilled", "tiny", "--distilled-tokens", 0.5)
    assert report["dollars"] == pytest.approx(0.005 + 0.005 + 0.001)
    swapped, distilled = report["what_if"]  # type: ignore[misc]
    assert swapped["dollars"] == pytest.approx(0.005 + 0.0006 + 0.001)  # type: ignore[has-type]
    assert distilled["dollars"] == pytest.approx(0.005 + 0.0003 + 0.001)  # type: ignore[has-type]
    assert distilled["saved_share"] == pytest.approx(1 - 0.0063 / 0.011)  # type: ignore[has-type]
    main([*map(str, given), "--distilled", "tiny"])
    said = capsys.readouterr().out
    assert "0.628 of the tokens" in said
    assert "as published for SFT-Qwen3-1.7B" in said


def test_the_table_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names are folded and not cut, however long; the last row holds the sums."""
    name = "openrouter/some-laboratory/a-model-with-a-long-name-2026-11-preview"
    with FORMATS[".jsonl"](tmp_path / "traces.jsonl") as write:
        write(export_row(run("r", calls=[*CALLS, call("r", 4, role="judge", model=name, usage=Usage(7, 0))])))
    main(["--traces", str(tmp_path / "traces.jsonl")])
    said = capsys.readouterr().out
    first, *more = said[said.index("judge") :].splitlines()
    assert (
        first.split()[1] + "".join(line.strip() for line in more[: more.index(next(filter(str.isspace, more)))]) == name
    )
    (whole,) = [line.split() for line in said.splitlines() if line.startswith("all ")]
    assert [whole[place] for place in (1, 2, 3, 5, 6)] == ["5", "0", "5,507", "350", "1,000"]


def test_numbers_are_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names give way to them."""
    large = call("r", 4, role="judge", model="a-model-of-some-size", usage=Usage(12_345_678, 2_345_678))
    with FORMATS[".jsonl"](tmp_path / "traces.jsonl") as write:
        write(export_row(run("r", calls=[msgspec.structs.replace(large, nano_usd=12_345_678_900)])))
    main(["--traces", str(tmp_path / "traces.jsonl")])
    said = capsys.readouterr().out
    assert "…" not in said
    assert {"12,345,678", "2,345,678", "12.3457"} <= set(said.split())


def test_nothing_has_cost_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its sums are zeros in their own columns."""
    (tmp_path / "traces.jsonl").write_text("")
    main(["--traces", str(tmp_path / "traces.jsonl")])
    (whole,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("all ")]
    assert whole == ["all", *["0"] * 6, "0.0000"]


def test_an_unknown_price_makes_the_sum_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And not lower."""
    with FORMATS[".jsonl"](tmp_path / "traces.jsonl") as write:
        write(export_row(run("r", calls=[*CALLS, call("r", 4, role="answer", model="own", nano_usd=None)])))
    main(["--traces", str(tmp_path / "traces.jsonl")])
    assert "–: unknown, which is not zero" in capsys.readouterr().out
    report = told(capsys, "--traces", tmp_path / "traces.jsonl")
    assert report["dollars"] is None


def test_a_call_that_nobody_counted_makes_the_sum_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the price of its model is: what it took is not zero."""
    uncounted = call("r", 4, role="answer", model="fixed", usage=None, nano_usd=None, outcome="unavailable")
    with FORMATS[".jsonl"](tmp_path / "traces.jsonl") as write:
        write(export_row(run("r", calls=[*CALLS, uncounted])))
    (tmp_path / "prices.toml").write_text(PRICES)
    given = ("--traces", tmp_path / "traces.jsonl", "--prices", tmp_path / "prices.toml")
    report = told(capsys, *given, "--instead", "execution=tiny", "--instead", "answer=tiny")
    rows = {row["role"]: row["dollars"] for row in report["booked"]["rows"]}  # type: ignore[index]
    assert rows == {"delegation": 0.005, "execution": 0.005, "answer": None}
    (swapped,) = report["what_if"]  # type: ignore[misc]
    assert [row["dollars"] for row in swapped["costs"]["rows"]] == [0.005, 0.0006, None]  # type: ignore[has-type]
    assert (report["dollars"], swapped["dollars"], swapped["saved_share"]) == (None, None, None)  # type: ignore[has-type]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--instead", "execution"], "write ROLE=MODEL"),
        (["--instead", "cook=tiny"], "write ROLE=MODEL"),
        (["--distilled", "nobody/knows-this"], "nobody/knows-this: nobody knows its price"),
        (["--distilled", "tiny", "--distilled-tokens", "0"], "must be more than 0"),
        (["--prices", "nowhere.toml"], "nowhere.toml: cannot be read"),
    ],
)
def test_what_cannot_be_told(traces: Path, options: list[str], why: str) -> None:
    """Is refused with the reason."""
    with pytest.raises(BadConfig, match=why):
        main(["--traces", str(traces), *options])


def test_files_that_hold_something_else(tmp_path: Path) -> None:
    """Are named with the line; a store that is not there is not made."""
    (tmp_path / "traces.jsonl").write_text('{"trace": "{}"}\n')
    with pytest.raises(BadConfig, match=r"traces\.jsonl:1: "):
        main(["--traces", str(tmp_path / "traces.jsonl")])
    with pytest.raises(BadConfig, match="there is no such file"):
        main(["--store", f"sqlite:///{tmp_path}/none.db"])
    assert not (tmp_path / "none.db").exists()
