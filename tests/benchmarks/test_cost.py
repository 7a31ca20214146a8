"""Recorded and estimated cost of logged traffic; each figure is worked out by hand."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from router.models import Usage
from router.store import Database
from router.trace import Call
from tests.router.store.stored import call, put, run

CALLS = (
    call("r", 0, role="delegation", model="big", usage=Usage(1000, 100, 400), nano_usd=5_000_000),
    call("r", 1, role="execution", model="large", usage=Usage(3000, 200), nano_usd=4_000_000),
    call(
        "r",
        2,
        role="execution",
        model="large",
        usage=Usage(1000, 0),
        nano_usd=1_000_000,
        outcome="wasted",
    ),
    call("r", 3, role="answer", model="fixed", usage=Usage(500, 50), nano_usd=0),
)
PRICES = "[tiny]\nprompt = 0.1\ncompletion = 1.0\n[fixed]\nprompt = 2.0\ncompletion = 0.0\n"


class Store:
    """A store in a folder, with a file of prices."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/runs.db"
        self.prices = folder / "prices.toml"
        self.prices.write_text(PRICES)

    def put(self, *calls: Call) -> None:
        """Store a run with these calls, or nothing."""
        asyncio.run(self._put(calls))

    async def _put(self, calls: tuple[Call, ...]) -> None:
        database = await Database.open(self.url)
        if calls:
            await put(database, run("r", calls=list(calls)))
        await database.close()

    def report(self, *options: str) -> Any:
        """Return the figures."""
        file = self.prices.with_name("cost.json")
        status = main(["cost", "--store", self.url, *options, "--json", str(file)])
        return json.loads(file.read_bytes()) if status == 0 else None


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_recorded_cost_is_summed_by_role_and_model(store: Store) -> None:
    """It is 10 thousandths of a dollar, half of them execution's; 1,000 tokens are wasted."""
    store.put(*CALLS)
    report = store.report()
    assert (report["runs"], report["booked"]["dollars"]) == (1, pytest.approx(0.01))
    assert report["booked"]["execution_token_share"] == pytest.approx(4200 / 5850)
    rows = {row["role"]: row for row in report["booked"]["rows"]}
    assert (rows["execution"]["attempts"], rows["execution"]["wasted_tokens"]) == (2, 1000)
    assert (rows["delegation"]["cached_tokens"], rows["execution"]["cached_tokens"]) == (400, None)


def test_another_executor_s_cost_is_estimated(store: Store) -> None:
    """It has 4,000 tokens at 0.1 and 200 at 1.0 for a million instead of five thousandths of a
    dollar. The given prices stand for those at which the other calls were recorded.
    """
    store.put(*CALLS)
    arguments = ("--prices", str(store.prices), "--instead")
    swapped = store.report(*arguments, "execution=tiny")
    distilled = store.report(*arguments, "execution=tiny*0.5")
    assert swapped["booked"]["dollars"] == pytest.approx(0.005 + 0.005 + 0.001)
    assert swapped["what_if"]["dollars"] == pytest.approx(0.005 + 0.0006 + 0.001)
    assert distilled["what_if"]["dollars"] == pytest.approx(0.005 + 0.0003 + 0.001)
    assert distilled["saved_share"] == pytest.approx(1 - 0.0063 / 0.011)


def test_one_unknown_cost_makes_the_sum_unknown(store: Store) -> None:
    """A call without a price, and a call without usage, make the sum unknown instead of lower."""
    uncounted = call(
        "r", 4, role="answer", model="fixed", usage=None, nano_usd=None, outcome="unavailable"
    )
    store.put(*CALLS, uncounted, call("r", 5, role="judge", model="own", nano_usd=None))
    report = store.report(
        "--prices", str(store.prices), "--instead", "execution=tiny", "answer=tiny"
    )
    for costs, known in ((report["booked"], 5_000_000), (report["what_if"], 600_000)):
        rows = {
            row["role"]: (row["nano_usd"], row["attempts_without_cost"]) for row in costs["rows"]
        }
        assert rows == {
            "delegation": (5_000_000, 0),
            "execution": (known, 0),
            "answer": (None, 1),
            "judge": (None, 1),
        }
        assert costs["dollars"] is None
    assert report["saved_share"] is None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--instead", "execution"], "write ROLE=MODEL"),
        (["--instead", "cook=tiny"], "write ROLE=MODEL"),
        (["--instead", "execution=nobody/knows-this"], "nobody/knows-this: its price is unknown"),
        (["--instead", "execution=tiny*0"], "FACTOR is a number above 0"),
        (["--prices", "nowhere.toml"], "nowhere.toml: cannot be read"),
    ],
)
def test_impossible_options_are_refused(
    store: Store, options: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store.put(*CALLS)
    assert store.report(*options) is None
    assert why in capsys.readouterr().err


def test_a_missing_store_is_not_created(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert store.report() is None
    assert "this file does not exist" in capsys.readouterr().err
    assert not (tmp_path / "runs.db").exists()
