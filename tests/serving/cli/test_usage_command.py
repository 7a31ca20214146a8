"""`rolegate usage` against real servers."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from router.edge.grpc.server import Server
from router.edge.grpc.services import UsageServicer
from router.ledger import UsageQuery, UsageReport
from router.ledger.reconciliation import ReconciledTokens, Reconciliation
from router.ledger.usage import UsageRow
from serving.cli.main import main
from serving.cli.options import time_argument
from serving.cli.usage import COLUMNS
from tests.router.edge.wire import reconciling

DAY = 1763683200.0
ROWS = (
    UsageRow(
        bucket_start=DAY,
        tenant="acme",
        role="execution",
        model="small",
        executor_version="v7",
        attempts=1200,
        attempts_without_usage=2,
        attempts_without_cost=3,
        prompt_tokens=70_000,
        completion_tokens=2000,
        cached_tokens=35_000,
        wasted_tokens=900,
        nano_usd=1_234_567_890,
    ),
    UsageRow(
        bucket_start=DAY,
        tenant="acme",
        role="answer",
        model="a,b",
        attempts=1,
        attempts_without_usage=1,
        attempts_without_cost=1,
    ),
)
EQUAL = Reconciliation(
    "equal",
    "equal",
    start=DAY,
    completed_calls=3,
    prompt_tokens=ReconciledTokens(7, 7, 7),
    completion_tokens=ReconciledTokens(5, 5, 5),
)


class Told:
    """Sums that are always the same, and what they were asked for."""

    def __init__(self) -> None:
        self.asked = list[UsageQuery]()

    async def usage(self, query: UsageQuery) -> UsageReport:
        self.asked.append(query)
        return UsageReport(1234, ROWS)


@asynccontextmanager
async def served(usages: Told, *found: Reconciliation) -> AsyncIterator[list[str]]:
    """The options that lead to a server of these sums."""
    server = Server(None, None, None, UsageServicer(usages, reconciling(list(found))))
    try:
        yield ["--address", f"127.0.0.1:{await server.start('127.0.0.1:0')}"]
    finally:
        await server.drain(0)


async def test_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A row for each group with the share that was cached; what nobody knows is unknown; a sum
    at the end.
    """
    monkeypatch.setenv("COLUMNS", "120")
    async with served(Told()) as address:
        status = await asyncio.to_thread(
            main, ["usage", "--by", "role,version", "--per", "day", *address]
        )
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert status == 0
    assert "day role version calls prompt cached written wasted cost" in lines
    assert (
        "2025-11-21 execution v7 1,200 (2 unknown) 70,000 50% 2,000 900 $1.2346 (3 unknown)"
        in lines
    )
    assert "2025-11-21 answer – 1 (1 unknown) unknown unknown unknown unknown unknown" in lines
    assert "all 1,201 (3 unknown) 70,000 50% 2,000 900 $1.2346 (4 unknown)" in lines
    assert "1,234 runs" in lines


async def test_what_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """The options arrive."""
    usages = Told()
    options = [
        "--by",
        "tenant,version",
        "--per",
        "hour",
        "--since",
        "2026-11-21",
        "--until",
        "2026-11-21T10:00+01:00",
    ]
    async with served(usages) as address:
        assert await asyncio.to_thread(main, ["usage", *options, "--tenant", "acme", *address]) == 0
        assert await asyncio.to_thread(main, ["usage", *address]) == 0
    start = datetime(2026, 11, 21, tzinfo=UTC).timestamp()
    end = datetime(2026, 11, 21, 9, tzinfo=UTC).timestamp()
    assert usages.asked == [
        UsageQuery(start, end, "acme", ("tenant", "executor_version"), "hour"),
        UsageQuery(None, None, None, ("role", "model"), None),
    ]


async def test_csv(capsys: pytest.CaptureFixture[str]) -> None:
    """The same columns whatever was asked for; what is unknown is empty, and 0 is 0."""
    async with served(Told()) as address:
        assert await asyncio.to_thread(main, ["usage", "--by", "tenant", "--csv", *address]) == 0
    first, second = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert tuple(first) == COLUMNS
    assert first == {
        "time": "2025-11-21T00:00:00+00:00",
        "tenant": "acme",
        "role": "execution",
        "model": "small",
        "version": "v7",
        "manager": "",
        "attempts": "1200",
        "attempts_without_usage": "2",
        "attempts_without_cost": "3",
        "prompt_tokens": "70000",
        "cached_tokens": "35000",
        "completion_tokens": "2000",
        "reasoning_tokens": "",
        "wasted_tokens": "900",
        "cost_nano_usd": "1234567890",
    }
    assert (second["model"], second["prompt_tokens"], second["cost_nano_usd"]) == ("a,b", "", "")
    assert (second["completion_tokens"], second["wasted_tokens"]) == ("", "")


async def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The same as numbers, and null."""
    async with served(Told()) as address:
        assert await asyncio.to_thread(main, ["usage", "--json", *address]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["runs"], tuple(told["rows"][0])) == (1234, COLUMNS)
    assert (told["rows"][0]["cost_nano_usd"], told["rows"][1]["cost_nano_usd"]) == (
        1_234_567_890,
        None,
    )


async def test_reconcile(capsys: pytest.CaptureFixture[str]) -> None:
    """Where the sides differ, by how much, and by which calls; status 1 where that cannot be
    explained.
    """
    within = Reconciliation(
        "within",
        "within_bounds",
        start=DAY,
        completed_calls=3,
        uncertain_calls=("run-1-0",),
        prompt_tokens=ReconciledTokens(1100, 1000, 1200),
        completion_tokens=ReconciledTokens(5, 5, 9),
    )
    different = Reconciliation(
        "different",
        "different",
        start=DAY,
        completed_calls=3,
        prompt_tokens=ReconciledTokens(1300, 1000, 1200),
        completion_tokens=ReconciledTokens(4, 5, 9),
    )
    unknown = Reconciliation("hosted", "unknown", "it has no counters")
    async with served(Told(), EQUAL, within, unknown) as address:
        assert await asyncio.to_thread(main, ["usage", "reconcile", *address]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "equal: equal; 3 completed and 0 uncertain calls since 2025-11-21 00:00:00 UTC",
        "  prompt tokens: engine 7, ledger 7",
        "  completion tokens: engine 5, ledger 5",
        "within: within bounds; 3 completed and 1 uncertain call since 2025-11-21 00:00:00 UTC",
        "  prompt tokens: engine 1,100, ledger 1,000 to 1,200",
        "  completion tokens: engine 5, ledger 5 to 9",
        "  uncertain: run-1-0",
        "hosted: unknown; it has no counters",
    ]
    async with served(Told(), EQUAL, different) as address:
        assert await asyncio.to_thread(main, ["usage", "reconcile", *address]) == 1
        assert capsys.readouterr().out.splitlines()[-2:] == [
            "  prompt tokens: engine 1,300, ledger 1,000 to 1,200",
            "  completion tokens: engine 4, ledger 5 to 9",
        ]
        assert await asyncio.to_thread(main, ["usage", "reconcile", "--json", *address]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["verdict"] for line in lines] == [
        "RECONCILIATION_VERDICT_EQUAL",
        "RECONCILIATION_VERDICT_DIFFERENT",
    ]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-11-21", datetime(2026, 11, 21, tzinfo=UTC)),
        ("2026-11-21T10:00", datetime(2026, 11, 21, 10, tzinfo=UTC)),
        ("2026-11-21T10:00+02:00", datetime(2026, 11, 21, 8, tzinfo=UTC)),
    ],
)
def test_moments(text: str, meant: datetime) -> None:
    """Are UTC's unless they name a zone."""
    assert time_argument(text) == meant


@pytest.mark.parametrize(("text", "ago"), [("7d", timedelta(days=7)), ("12h", timedelta(hours=12))])
def test_moments_before_now(text: str, ago: timedelta) -> None:
    """Are so many days or hours ago."""
    before = datetime.now(UTC)
    assert before <= time_argument(text) + ago <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--since", "yesterday"], "'yesterday' is not a time"),
        (["--since", "99999999999d"], "'99999999999d' is not a time"),
        (["--since", "0001-01-01T00:00+01:00"], "'0001-01-01T00:00+01:00' is not a time"),
        (["--by", "role", "colour"], "'colour' is none of tenant, role, model, version"),
        (["--address", "127.0.0.1:1"], "no gateway answers at 127.0.0.1:1"),
        (
            ["--certificate", "/nowhere.pem"],
            "--certificate, --key: cannot read /nowhere.pem: No such file or directory.",
        ),
        (
            ["--ca", "/nowhere.pem"],
            "rolegate: --ca, --certificate, --key: cannot read /nowhere.pem: No such file",
        ),
    ],
)
def test_what_cannot_be_done(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Is told in one line; status 1."""
    assert main(["usage", *options]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_key_in_the_clear(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is not sent, nor shown."""
    monkeypatch.setenv("ROLEGATE_API_KEY", "rg_1_secret")
    assert main(["usage", "--address", "10.0.0.7:50551"]) == 1
    said = capsys.readouterr().err
    assert "sent to 10.0.0.7:50551" in said
    assert "secret" not in said
