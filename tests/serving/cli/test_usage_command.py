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
        key_id="5f0c2a9e",
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


class FixedSums:
    """A usage service with fixed sums that records the requests."""

    def __init__(self) -> None:
        self.asked = list[UsageQuery]()

    async def usage(self, query: UsageQuery) -> UsageReport:
        self.asked.append(query)
        return UsageReport(1234, ROWS)


@asynccontextmanager
async def served(usages: FixedSums, *sums: Reconciliation) -> AsyncIterator[list[str]]:
    """Start a server with these sums, and return the options that lead to it."""
    server = Server(None, None, None, UsageServicer(usages, reconciling(list(sums))))
    try:
        yield ["--address", f"127.0.0.1:{await server.start('127.0.0.1:0')}"]
    finally:
        await server.drain(0)


async def test_a_table_has_a_row_per_group_and_a_sum(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows have the share of cached tokens; unknown values are shown as unknown."""
    monkeypatch.setenv("COLUMNS", "140")
    async with served(FixedSums()) as address:
        status = await asyncio.to_thread(
            main, ["usage", "--by", "role,version", "--per", "day", *address]
        )
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert status == 0
    assert "day role version calls prompt cached written wasted cost" in lines
    calls = "1,200 (2 without token counts)"
    assert f"2025-11-21 execution v7 {calls} 70,000 50% 2,000 900 $1.2346 (3 unknown)" in lines
    assert (
        "2025-11-21 answer – 1 (1 without token counts) unknown unknown unknown unknown unknown"
        in lines
    )
    assert "all 1,201 (3 without token counts) 70,000 50% 2,000 900 $1.2346 (4 unknown)" in lines
    assert "1,234 runs" in lines


async def test_options_are_in_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    usages = FixedSums()
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


async def test_csv_has_the_same_columns_for_any_request(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown value is empty, and 0 is 0."""
    async with served(FixedSums()) as address:
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
        "key": "5f0c2a9e",
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


async def test_json_has_numbers_and_null(capsys: pytest.CaptureFixture[str]) -> None:
    async with served(FixedSums()) as address:
        assert await asyncio.to_thread(main, ["usage", "--json", *address]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["runs"], tuple(output["rows"][0])) == (1234, COLUMNS)
    assert (output["rows"][0]["cost_nano_usd"], output["rows"][1]["cost_nano_usd"]) == (
        1_234_567_890,
        None,
    )


async def test_reconcile_shows_the_differences(capsys: pytest.CaptureFixture[str]) -> None:
    """Each has its amount and its calls; the status is 1 if a difference cannot be explained."""
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
    async with served(FixedSums(), EQUAL, within, unknown) as address:
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
    async with served(FixedSums(), EQUAL, different) as address:
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
def test_moments_are_in_utc_by_default(text: str, meant: datetime) -> None:
    assert time_argument(text) == meant


@pytest.mark.parametrize(("text", "ago"), [("7d", timedelta(days=7)), ("12h", timedelta(hours=12))])
def test_moments_may_be_days_or_hours_ago(text: str, ago: timedelta) -> None:
    before = datetime.now(UTC)
    assert before <= time_argument(text) + ago <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--since", "yesterday"], "'yesterday' is not a time"),
        (["--since", "99999999999d"], "'99999999999d' is not a time"),
        (["--since", "0001-01-01T00:00+01:00"], "'0001-01-01T00:00+01:00' is not a time"),
        (["--by", "role", "colour"], "'colour' is unknown; use tenant, role, model, version"),
        (["--address", "127.0.0.1:1"], "no gateway answers at 127.0.0.1:1"),
        (
            ["--certificate", "/nowhere.pem"],
            "--certificate, --key: cannot read /nowhere.pem (No such file or directory); correct",
        ),
        (
            ["--ca", "/nowhere.pem"],
            "rolegate: --ca, --certificate, --key: cannot read /nowhere.pem (No such file",
        ),
    ],
)
def test_an_impossible_request_is_reported_in_one_line(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 1."""
    assert main(["usage", *options]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_key_is_not_sent_without_encryption(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not shown either."""
    monkeypatch.setenv("ROLEGATE_API_KEY", "rg_1_secret")
    assert main(["usage", "--address", "10.0.0.7:50551"]) == 1
    message = capsys.readouterr().err
    assert "sent to 10.0.0.7:50551" in message
    assert "secret" not in message
