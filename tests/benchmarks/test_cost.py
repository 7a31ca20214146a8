"""What logged traffic cost, and what it would have cost: each figure worked out by hand."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cost import main
from router.errors import BadConfig
from router.models.model import Usage
from router.store.database import Database
from router.trace.call import Call
from tests.router.store.stored import call, put, run

CALLS = (
    call("r", 0, role="delegation", model="big", usage=Usage(1000, 100, 400), nano_usd=5_000_000),
    call("r", 1, role="execution", model="large", usage=Usage(3000, 200), nano_usd=4_000_000),
    call("r", 2, role="execution", model="large", usage=Usage(1000, 0), nano_usd=1_000_000, outcome="wasted"),
    call("r", 3, role="answer", model="fixed", usage=Usage(500, 50), nano_usd=0),
)
PRICES = "[tiny]\nprompt = 0.1\ncompletion = 1.0\n[fixed]\nprompt = 2.0\ncompletion = 0.0\n"
LONG = "openrouter/some-laboratory/a-model-with-a-long-name-2026-11-preview"


class Store:
    """A store in a folder, with its prices beside it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.url, self.prices, self._capsys = f"sqlite:///{folder}/runs.db", folder / "prices.toml", capsys
        self.prices.write_text(PRICES)

    def put(self, *calls: Call) -> None:
        """Store a run with these calls; without any, an empty store."""
        asyncio.run(self._put(calls))

    async def _put(self, calls: tuple[Call, ...]) -> None:
        database = await Database.open(self.url)
        if calls:
            await put(database, run("r", calls=list(calls)))
        await database.close()

    def shown(self, *options: str) -> str:
        """What the command prints of it."""
        main(["--store", self.url, *options])
        return self._capsys.readouterr().out

    def report(self, *options: str) -> Any:
        """The same as JSON."""
        return json.loads(self.shown(*options, "--json"))


@pytest.fixture
def store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Store:
    return Store(tmp_path, capsys)


def test_as_booked(store: Store) -> None:
    """By role and model: 10 thousandths of a dollar, half of them execution's, 1,000 tokens wasted."""
    store.put(*CALLS)
    report = store.report()
    assert (report["runs"], report["booked"]["dollars"]) == (1, pytest.approx(0.01))
    assert report["booked"]["execution_token_share"] == pytest.approx(4200 / 5850)
    rows = {row["role"]: row for row in report["booked"]["rows"]}
    assert (rows["execution"]["attempts"], rows["execution"]["wasted_tokens"]) == (2, 1000)
    assert (rows["delegation"]["cached_tokens"], rows["execution"]["cached_tokens"]) == (400, None)


def test_what_if(store: Store) -> None:
    """Another executor: 4,000 tokens at 0.1 and 200 at 1.0 for a million instead of five thousandths of a dollar. The
    prices that are given stand for those at which the others' calls were booked.
    """
    store.put(*CALLS)
    given = ("--prices", str(store.prices), "--instead")
    swapped, distilled = store.report(*given, "execution=tiny"), store.report(*given, "execution=tiny*0.5")
    assert swapped["booked"]["dollars"] == pytest.approx(0.005 + 0.005 + 0.001)
    assert swapped["what_if"]["dollars"] == pytest.approx(0.005 + 0.0006 + 0.001)
    assert distilled["what_if"]["dollars"] == pytest.approx(0.005 + 0.0003 + 0.001)
    assert distilled["saved_share"] == pytest.approx(1 - 0.0063 / 0.011)
    assert "execution = tiny with 0.628 of the tokens" in store.shown(*given, "execution=tiny*0.628")


def test_the_table_is_whole(store: Store) -> None:
    """Names are folded and not cut, however long; numbers are whole; the last row holds the sums."""
    store.put(*CALLS, call("r", 4, role="judge", model=LONG, usage=Usage(12_345_678, 0), nano_usd=12_345_678_900))
    shown = store.shown()
    cells = shown[shown.index("judge") :].splitlines()
    rest = [line.strip() for line in cells[1 : cells.index(next(filter(str.isspace, cells)))]]
    assert cells[0].split()[1] + "".join(rest) == LONG
    (sums,) = [line.split() for line in shown.splitlines() if line.startswith("all ")]
    assert [sums[place] for place in (1, 2, 3, 5, 6, 7)] == ["5", "0", "12,351,178", "350", "1,000", "12.3557"]


def test_nothing_has_cost_nothing(store: Store) -> None:
    """Its sums are zeros in their own columns."""
    store.put()
    (sums,) = [line.split() for line in store.shown().splitlines() if line.startswith("all ")]
    assert sums == ["all", *["0"] * 6, "0.0000"]


def test_one_unknown_makes_the_sum_unknown(store: Store) -> None:
    """And not lower: a call without a price, and one that nobody counted, whatever the price of its model is."""
    uncounted = call("r", 4, role="answer", model="fixed", usage=None, nano_usd=None, outcome="unavailable")
    store.put(*CALLS, uncounted, call("r", 5, role="judge", model="own", nano_usd=None))
    assert "–: unknown, which is not zero" in store.shown()
    report = store.report("--prices", str(store.prices), "--instead", "execution=tiny", "--instead", "answer=tiny")
    for costs, known in ((report["booked"], 5_000_000), (report["what_if"], 600_000)):
        rows = {row["role"]: (row["nano_usd"], row["attempts_without_cost"]) for row in costs["rows"]}
        assert rows == {"delegation": (5_000_000, 0), "execution": (known, 0), "answer": (None, 1), "judge": (None, 1)}
        assert costs["dollars"] is None
    assert report["saved_share"] is None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--instead", "execution"], "write ROLE=MODEL"),
        (["--instead", "cook=tiny"], "write ROLE=MODEL"),
        (["--instead", "execution=nobody/knows-this"], "nobody/knows-this: nobody knows its price"),
        (["--instead", "execution=tiny*0"], "must be more than 0"),
        (["--instead", "execution=tiny*half"], r"write ROLE=MODEL or ROLE=MODEL\*SHARE"),
        (["--prices", "nowhere.toml"], "nowhere.toml: cannot be read"),
    ],
)
def test_what_cannot_be_told(store: Store, options: list[str], why: str) -> None:
    """Is refused with the reason."""
    store.put(*CALLS)
    with pytest.raises(BadConfig, match=why):
        store.shown(*options)


def test_a_store_that_is_not_there_is_not_made(store: Store, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="there is no such file"):
        store.shown()
    assert not (tmp_path / "runs.db").exists()
