"""Figures on pages equal those of the store."""

import re
from html import unescape
from pathlib import Path

import pytest
from msgspec.structs import replace

from router.edge.pages.formats import moment, money, seconds
from router.models import Usage
from router.store import SQLArchive
from router.store.schema import RUNS
from router.trace.run import Feedback
from tests.router.edge.pages.shown import read
from tests.router.edge.pages.world import browsing, pages
from tests.router.store.stored import ANSWER, call, put, run


@pytest.mark.parametrize(
    ("nano_usd", "text"),
    [
        (None, "unknown"), (0, "$0.00"), (1, "$1.0e-09"), (99_000, "$9.9e-05"), (100_000,
        "$0.0001"),
        (3_300_000, "$0.0033"), (396_000_000, "$0.396"), (1_005_000_000, "$1.00"),
        (1_234_567 * 10**9, "$1,234,567.00"),
    ],
)  # fmt: skip
def test_money_is_rounded_by_its_size(nano_usd: int | None, text: str) -> None:
    assert money(nano_usd) == text


def test_durations_and_times_are_rounded() -> None:
    assert [seconds(duration_s) for duration_s in (None, 0.34, 2.54, 200.0)] == [
        "unknown",
        "340 ms",
        "2.5 s",
        "3 min 20 s",
    ]
    assert moment(0.0) == "1970-01-01 00:00:00"


async def test_the_usage_page_sums_by_the_chosen_dimension(tmp_path: Path) -> None:
    """Bars over time are as high as their figures."""
    async with pages(tmp_path) as world, browsing(world) as session:
        calls = (
            call(
                "run-1", 0, role="delegation", model="big", usage=Usage(1000, 100), nano_usd=280_000
            ),
            call("run-1", 1, model="small", usage=Usage(2222, 3), nano_usd=70_000),
            call("run-1", 2, model="small", usage=None, nano_usd=None),
            call(
                "run-1",
                3,
                role="delegation",
                model="big",
                manager="web",
                usage=Usage(10, 1),
                nano_usd=0,
            ),
        )
        await put(world.database, run("run-1", 1000.0, calls))
        time = "span=week&until=1970-01-02"
        for query, expected_texts in (
            ("by=role", ["1,010", "2,222", "$0.00028", "$7.0e-05 and more", "1 run<"]),
            ("by=model&tenant=nobody", ["Nothing was spent in this time.", "0 runs"]),
            ("by=model", [">big</th>", ">small</th>", 'class="number">unknown</td>']),
        ):
            async with session.get(f"/usage?{time}&{query}") as response:
                text = await response.text()
            assert [expected for expected in expected_texts if expected not in text] == [], query
        assert "Cost unknown: the config has no prices of these models; set [prices]." not in text
        assert "Money by model; the highest bar is" in text
        for span in ("day", "week", "month", "year"):  # at any hour and day
            for until in ("1970-01-01T00:30", "1970-01-01T23:30", "1970-01-02T00:00"):
                async with session.get(f"/usage?span={span}&until={until}") as response:
                    text = await response.text()
                    assert "execution: 2,225</title>" in text
        bars = re.findall(r'y="([^"]+)" width="8" height="([^"]+)"[^>]*><title>[^<]* (\w+): ', text)
        assert [(name, *map(float, sizes)) for *sizes, name in bars[:2]] == [
            ("execution", pytest.approx(44.38), pytest.approx(55.62)),
            ("delegation", pytest.approx(16.6), pytest.approx(27.78)),
        ]
        for query in ("span=x", "until=x", "by=x"):
            async with session.get(f"/usage?{query}") as response:
                assert response.status == 400


@pytest.mark.parametrize(
    ("tokens", "nano_usd", "duration_s", "ticks"),
    [
        (
            3,
            1_200_000,
            0.034,
            ("0 1 2 3", "$0.00 $0.0005 $0.001 $0.0015", "0,10 ms,20 ms,30 ms,40 ms"),
        ),
        (
            480,
            10**10,
            9.9,
            (
                "0 100 200 300 400 500",
                "$0.00 $2.00 $4.00 $6.00 $8.00 $10.00",
                "0,2 s,4 s,6 s,8 s,10 s",
            ),
        ),
        (1, 0, 290.0, ("0 1", "$0.00", "0,1 min 0 s,2 min 0 s,3 min 0 s,4 min 0 s,5 min 0 s")),
    ],
)
async def test_charts_have_round_ticks(
    tokens: int, nano_usd: int, duration_s: float, ticks: tuple[str, ...], tmp_path: Path
) -> None:
    async with pages(tmp_path) as world, browsing(world) as session:
        calls = (call("run-1", 0, usage=Usage(tokens, 0), nano_usd=nano_usd),)
        await put(world.database, run("run-1", 1000.0, calls, duration_s=duration_s))
        text = await read(session, "/usage?span=day&until=1970-01-02T00:00")
    axes = re.findall('<ol class="ticks-y"[^>]*>(.*?)</ol>', text)
    tokens_axis, money_axis, durations_axis, failures_axis = (
        re.findall("<li>([^<]*)</li>", axis) for axis in axes
    )
    assert (tokens_axis, money_axis) == (ticks[0].split(), ticks[1].split())
    assert (durations_axis, failures_axis) == (ticks[2].split(","), ["0"])
    times = re.findall(
        "<span>([^<]+)</span>", text.partition('<div class="axis"')[2].partition("</div>")[0]
    )
    assert times == ["01 Jan", "06:00", "12:00", "18:00"]


async def test_the_usage_page_shows_durations_and_failures_over_time(tmp_path: Path) -> None:
    """A tenant sees those of its own runs."""
    async with pages(tmp_path, "", "acme") as world:
        fast = [run(f"run-{number}", 3600.0, duration_s=1.0, tenant="acme") for number in range(9)]
        await put(
            world.database,
            *fast,
            run("run-slow", 3600.0, duration_s=8.0, tenant="acme"),
            run("run-failed", 7300.0, status="failed", result=None, tenant="acme"),
            run("run-other", 7300.0, result=replace(ANSWER, unsupported=True), tenant="other"),
        )
        durations = ["01 Jan 01:00 p95: 8 s", "01 Jan 01:00 p50: 1 s"]
        failed = "01 Jan 02:00 failed: 1"
        others = ["01 Jan 02:00 p95: 2.5 s", "01 Jan 02:00 p50: 2.5 s"]
        for key, expected in (
            ("acme", [*durations, failed]),
            ("", [*durations, *others, failed, "01 Jan 02:00 unsupported: 1"]),
        ):
            async with browsing(world, world.keys[key]) as session:
                text = await read(session, "/usage?span=day&until=1970-01-02T00:00")
            assert re.findall("<title>(01[^<]*)</title>", text) == expected
            assert "Durations of finished runs; the highest bar is 8 s" in text


async def test_a_cost_that_is_unknown_has_no_chart(tmp_path: Path) -> None:
    """An empty chart would say that nothing was spent."""
    async with pages(tmp_path) as world, browsing(world) as session:
        calls = (call("run-1", 0, usage=Usage(1000, 100), nano_usd=None),)
        await put(world.database, run("run-1", 1000.0, calls))
        async with session.get("/usage?span=week&until=1970-01-02") as response:
            text = await response.text()
        assert "Cost unknown: the config has no prices of these models; set [prices]." in text
        assert "Tokens by role; the highest bar is 1,100" in text
        assert "Money by" not in text
        async with session.get("/usage?span=week&until=1980-01-02") as response:
            assert "highest bar" not in await response.text()


async def test_the_smallest_groups_share_a_bar(tmp_path: Path) -> None:
    """Otherwise a page of a thousand tenants over a year would take seconds and megabytes."""
    async with pages(tmp_path) as world, browsing(world) as session:
        calls = [
            call("run-1", number, model=f"m-{number}", usage=Usage(100 - number, 0), nano_usd=1)
            for number in range(9)
        ]
        await put(world.database, run("run-1", 1000.0, tuple(calls)))
        async with session.get("/usage?span=day&until=1970-01-02&by=model") as response:
            text = await response.text()
        titles = re.findall(r"<title>[^<]* (\S+): ([\d,]+)</title>", text)
        assert titles[:6] == [
            *((f"m-{rank}", f"{100 - rank}") for rank in range(5)),
            ("others", "374"),
        ]
        assert ">m-8</th>" in text


async def test_the_list_of_runs_follows_the_store(tmp_path: Path) -> None:
    """The response is empty while nothing changes, and then the list alone, with its filters."""
    async with pages(tmp_path) as world, browsing(world) as session:
        await put(world.database, run("run-1", 1.0), run("run-2", 2.0, request="Who else?"))
        async with session.get("/runs?text=heat") as response:
            address = (
                (await response.text())
                .partition('hx-get="')[2]
                .partition('"')[0]
                .replace("&amp;", "&")
            )
        assert "text=heat&seen=" in address
        headers = {"HX-Request": "true"}
        async with session.get(address, headers=headers) as response:
            assert (response.status, await response.read()) == (204, b"")
        later_runs = (
            run("run-3", 3.0, request="Who made Heat?"),
            run("run-4", 4.0, request="Who?", result=None),
        )
        await put(world.database, *later_runs)
        async with session.get(address, headers=headers) as response:
            text = await response.text()
        assert "<html" not in text
        assert "Who made Heat?" in text
        assert "Who else?" not in text
        assert 'href="/runs/run-4"' not in text


async def test_the_strip_above_the_list_has_the_figures_of_today(tmp_path: Path) -> None:
    """They lead to the list of the runs that they count. A tenant sees its own runs alone."""
    async with pages(tmp_path, "", "acme") as world:
        today = world.now // 86400 * 86400
        await put(
            world.database,
            run("run-old", today - 1, tenant="acme"),
            run("run-1", today, [call("run-1", nano_usd=2 * 10**9)], tenant="acme"),
            run("run-2", today + 1, tenant="acme", status="failed", result=None),
            run("run-3", today + 2, tenant="other"),
        )
        await SQLArchive(world.database).add_feedback(Feedback("run-1", accepted=True))
        strips = list[list[str]]()
        for key, query in (
            ("", ""),
            ("", "?tenant=other"),
            ("acme", ""),
            ("acme", "?tenant=other"),
        ):
            async with browsing(world, world.keys[key]) as session:
                text = await read(session, f"/runs{query}")
                strip = text.partition('class="card strip"')[2].partition("</dl>")[0]
                strips.append(re.findall("<dd>(?:<a[^>]*>)?([^<]*)", strip))
                for link, number in re.findall('href="([^"]*)"[^>]*>([^<]*)<', strip):
                    linked = await read(session, unescape(link))
                    assert linked.count('<a id="run-') == int(number), link
        assert strips == [
            ["3", "1", "0", "1", "0", "2.5 s", "2.5 s", "$2.00"],
            ["1", "0", "0", "0", "0", "2.5 s", "2.5 s", "unknown"],
            ["2", "1", "0", "1", "0", "2.5 s", "2.5 s", "$2.00"],
            ["0", "0", "0", "0", "0", "–", "–", "–"],
        ]


async def test_a_failed_run_has_its_reason_in_the_list(tmp_path: Path) -> None:
    """Only the operator sees addresses. A run whose trace is damaged has no reason."""
    errors = ("UpstreamRefused: http://10.0.0.1 says\nno", "OutOfTime: too late", "")
    async with pages(tmp_path, "", "acme") as world:
        failed = [
            run(f"run-{number}", number, tenant="acme", status="failed", error=error, result=None)
            for number, error in enumerate(errors)
        ]
        await put(world.database, *failed, run("run-4", 4.0, tenant="acme"))
        await world.database.write(
            lambda connection: connection.execute(
                RUNS.update().where(RUNS.c.run_id == "run-2").values(trace=b"damaged")
            )
        )
        for key, reasons in (
            ("", ["too late", "http://10.0.0.1 says\nno"]),
            ("acme", ["out of time", "upstream refused"]),
        ):
            async with browsing(world, world.keys[key]) as session:
                for _ in range(2):
                    text = await read(session, "/runs")
                    assert re.findall('<span class="reason[^>]*>([^<]*)<', text) == reasons


async def test_verdicts_are_right_or_wrong_in_the_list_its_filter_and_the_page_of_a_run(
    tmp_path: Path,
) -> None:
    async with pages(tmp_path) as world, browsing(world) as session:
        await put(world.database, run("run-1", 1.0), run("run-2", 2.0))
        archive = SQLArchive(world.database)
        await archive.add_feedback(Feedback("run-1", accepted=True))
        await archive.add_feedback(Feedback("run-2", score=0.1))
        for verdict, run_id in (("right", "run-1"), ("wrong", "run-2")):
            listed = await read(session, f"/runs?feedback={verdict}")
            shown_run = await read(session, f"/runs/{run_id}")
            assert re.findall(r'id="(run-\d)"', listed) == [run_id]
            for text in (listed, shown_run):
                assert f'<span class="state {verdict}">{verdict}</span>' in text
            assert not re.search(r"\b(good|bad)\b", listed)  # a token may contain "bad"


@pytest.mark.parametrize(
    "query",
    "since=yesterday until=2026-99-01 kind=x topology=x since=9999999-01-01 feedback=good".split(),
)
async def test_an_invalid_filter_is_refused(tmp_path: Path, query: str) -> None:
    async with (
        pages(tmp_path) as world,
        browsing(world) as session,
        session.get(f"/runs?{query}") as response,
    ):
        assert response.status == 400
