"""The page of a table: its cells by state, their sources, its exports."""

import csv
import io
import json
import re
from html import unescape

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace
from openpyxl import load_workbook

from router.table.conditions import with_conditions
from router.trace.redaction import redacted
from router.trace.table import Column, Condition, Schema
from router.trace.values import TableRun
from tests.router.edge.pages.demo import table
from tests.router.edge.pages.shown import read, shown
from tests.router.edge.pages.test_run_page import begun
from tests.router.edge.pages.world import browsing
from tests.router.table.reports import discovery, executed, listed

TABLE = table("run-1")


async def test_cells_have_their_states_as_words() -> None:
    """Colours alone would not be accessible."""
    async with shown(runs=[TABLE]) as pages, browsing(pages) as session:
        text = unescape(re.sub(r"\s+", " ", await read(session, "/runs/run-1")))
    cells = re.findall(
        r'<td class="cell (\w+)">.*?>([^<]*)</(?:a|span)> <small>([^<]*)</small>', text
    )
    assert cells == [
        ("single", "Krurou", "1 report"), ("agreed", "Ana", "✓ agreed"), ("single", "1200",
        "1 report"),
        ("single", "Bel", "1 report"), ("single", "Bo", "1 report"), ("conflict", "900",
        "≠ conflict"),
        ("single", "Sel", "1 report"), ("not_found", "", "∅ not found"), ("not_found", "",
        "∅ not found"),
        ("single", "Tarn", "1 report"), ("missing", "", "–"), ("missing", "", "–"),
    ]  # fmt: skip
    assert "4 rows" in text
    legend = re.sub("<[^>]*>", "", text.partition("filled. ")[2].partition("</p>")[0])
    assert "one report: " in legend
    assert "– missing: 2" in legend
    assert re.fullmatch(r"\S+( \S+)*: \d+( · \S+( \S+)*: \d+)*", legend.strip()), legend


async def test_a_cell_shows_its_sources_and_rivals() -> None:
    """The cell can be read as a part of the page, and as a page."""
    async with shown(runs=[TABLE]) as pages, browsing(pages) as session:
        page = await read(session, "/runs/run-1/cells/1/2")
        async with session.get("/runs/run-1/cells/1/2", headers={"HX-Request": "true"}) as response:
            part = await response.text()
        for where in ("1/9", "9/1"):
            await read(session, f"/runs/run-1/cells/{where}", 404)
        await read(session, "/runs/run-1/cells/x/1", 400)
    assert "<html" in page
    assert "<html" not in part
    for text in (page, part):
        own_value, rival = text.split('<div class="turn">')[1:]
        assert "<b>900</b>" in own_value
        assert "conflicting" not in own_value
        assert "<mark>Bel was founded in 900.</mark>" in own_value
        assert "<b>950</b>" in rival
        assert ">conflicting value<" in rival
        assert "<mark>Bel was founded in 950.</mark>" in rival


async def test_a_table_is_exported_in_three_formats() -> None:
    async with shown(runs=[TABLE]) as pages, browsing(pages) as session:
        files = {}
        for kind in ("md", "csv", "json"):
            async with session.get(f"/runs/run-1/table.{kind}") as response:
                files[kind] = await response.text()
                assert (
                    response.headers["Content-Disposition"]
                    == f'attachment; filename="run-1.{kind}"'
                )
        await read(session, "/runs/run-1/table.exe", 404)
    assert files["md"].splitlines()[2] == "| Krurou | Ana | 1200 |"
    assert list(csv.reader(io.StringIO(files["csv"])))[2] == ["Bel", "Bo", "900"]
    assert json.loads(files["json"])["rows"][1]["cells"][2]["state"] == "CELL_STATE_CONFLICT"


@pytest.mark.parametrize(
    ("name", "exported"),
    [
        ('=HYPERLINK("x")', "'=HYPERLINK(\"x\")"), ("+1+cmd|' /C calc'!A0",
        "'+1+cmd|' /C calc'!A0"), ("-2+3", "'-2+3"),
        ("@SUM(1)", "'@SUM(1)"), ("-12.5", "-12.5"), ("+1,200", "+1,200"), ("-1e3", "-1e3"),
        ("Krurou", "Krurou"),
    ],
)  # fmt: skip
async def test_an_exported_value_is_no_formula(name: str, exported: str) -> None:
    result = TableRun(
        Schema((Column("city", key=True), Column("@now"))), ((name, "x"), ("Bel", name))
    )
    async with (
        shown(runs=[replace(TABLE, result=result, events=())]) as pages,
        browsing(pages) as session,
    ):
        text = await read(session, "/runs/run-1/table.csv")
    assert list(csv.reader(io.StringIO(text))) == [
        ["city", "'@now"],
        [exported, "x"],
        ["Bel", exported],
    ]


async def test_an_export_may_have_sources() -> None:
    """They are as the command writes them. A workbook is possible too."""
    async with shown(runs=[TABLE]) as pages, browsing(pages) as session:
        text = await read(session, "/runs/run-1/table.csv?sources")
        async with session.get("/runs/run-1/table.xlsx") as response:
            book = load_workbook(io.BytesIO(await response.read()))
    header, _, bel, *_ = csv.reader(io.StringIO(text))
    assert header[3:] == ["city: sources", "founder: sources", "founded: sources"]
    assert "Bel was founded in 900." in bel[5]
    assert "; but 950 (" in bel[5]
    assert [cell.value for cell in book.worksheets[0][3]] == ["Bel", "Bo", "900"]


async def test_an_export_in_markdown_is_text() -> None:
    hostile = "<img src=x> ![x](http://evil.example/q.png) | [click](javascript:alert(1))"
    result = TableRun(Schema((Column("city", key=True), Column(hostile))), ((hostile, "x"),))
    async with (
        shown(runs=[replace(TABLE, result=result, events=())]) as pages,
        browsing(pages) as session,
    ):
        text = await read(session, "/runs/run-1/table.md")
    tokens = MarkdownIt("gfm-like").parse(text)
    assert not {"link_open", "image", "html_inline"} & {
        child.type for token in tokens for child in token.children or ()
    }
    assert sum(token.type in ("th_open", "td_open") for token in tokens) == 4


async def test_a_given_value_that_a_source_contradicts_is_marked() -> None:
    assert isinstance(TABLE.result, TableRun)
    result = replace(TABLE.result, given=(("Bel", "", "899"), ("Krurou", "", "1200")))
    async with (
        shown(runs=[replace(TABLE, result=result, events=())]) as pages,
        browsing(pages) as session,
    ):
        text = await read(session, "/runs/run-1")
    assert re.findall(r">(\d+)</a> <small>(given[^<]*)</small>", text) == [
        ("899", "given, contradicted by a source"),
        ("1200", "given"),
    ]


async def test_excluded_rows_have_their_own_section() -> None:
    """With the sentences that exclude them. A row that is not checked says so."""
    assert isinstance(TABLE.result, TableRun)
    schema = with_conditions(
        TABLE.result.schema,
        [
            Condition(Column("founded"), "after", ("1000",)),
            Condition(Column("", ask="Is {city} <b>big</b>?")),
        ],
    )
    asks = TABLE.result.asks[:4]
    result = replace(
        TABLE.result,
        schema=schema,
        asks=asks,
        executions=TABLE.result.executions[:4],
        ignored=("<where>: no <b>name</b>",),
    )
    async with (
        shown(runs=[replace(TABLE, result=result, events=())]) as pages,
        browsing(pages) as session,
    ):
        page = await read(session, "/runs/run-1")
        files = [
            await read(session, f"/runs/run-1/table.csv{query}") for query in ("", "?excluded")
        ]
    text = unescape(re.sub("<[^>]*>", "", re.sub(r"\s+", " ", page)))
    assert "Conditions: founded after 1000 · Is {city} <b>big</b>?" in text
    assert "Condition ignored: <where>: no <b>name</b>" in text
    assert "membership not checked: Is {city} <b>big</b>?" in text
    assert "1 excluded row" in text
    assert "Bel, Bo, 900: not founded after 1000, but 900 Bel was founded in 900.." in text
    assert "<b>big" not in page
    assert [len(list(csv.reader(io.StringIO(file)))) for file in files] == [2, 3]


async def test_names_that_lists_have_beside_rows_are_shown() -> None:
    report = executed("Bel\nTal", "Register: The cities are Bel, Tal and <b>Vor</b>.")
    result = TableRun(Schema((Column("city", key=True),)), (), (discovery(1),), (report,))
    async with (
        shown(runs=[replace(TABLE, result=result, events=())]) as pages,
        browsing(pages) as session,
    ):
        page = await read(session, "/runs/run-1")
    text = unescape(re.sub("<[^>]*>", "", page))
    assert "Names listed next to rows of this table, but in no row (1): <b>Vor</b>" in text


async def test_a_long_table_has_pages() -> None:
    """Rows have the same addresses on all pages."""
    names = "\n".join(f"- City {number}" for number in range(250))
    result = TableRun(
        Schema((Column("city", key=True), Column("founder"))),
        (),
        (discovery(1),),
        (listed(names),),
    )
    async with (
        shown(runs=[replace(TABLE, result=result, events=())]) as pages,
        browsing(pages) as session,
    ):
        for first_row, rows in ((0, 100), (100, 100), (200, 50)):
            text = await read(session, f"/runs/run-1?row={first_row}")
            assert text.count("</tr>") == rows + 1
            assert f"/cells/{first_row}/0" in text
            assert ("Next rows" in text, "Previous rows" in text) == (
                first_row < 200,
                first_row > 0,
            )
        await read(session, "/runs/run-1?row=-1", 400)


async def test_a_page_of_a_wide_table_has_fewer_rows() -> None:
    """A page is rendered every second while the run is running."""
    names = "\n".join(f"- City {number}" for number in range(100))
    columns = (Column("city", key=True), *(Column(f"c{at}") for at in range(63)))
    result = TableRun(Schema(columns), (), (discovery(1),), (listed(names),))
    rows = list[int]()
    links = list[str]()
    async with (
        shown(runs=[replace(TABLE, result=result, events=())]) as pages,
        browsing(pages) as session,
    ):
        path = "/runs/run-1"
        while path:
            text = await read(session, path)
            rows.append(text.count("</tr>") - 1)
            links += re.findall(r'href="(\?row=\d+)#table">Previous', text)
            after = re.search(r'href="(\?row=\d+)#table">Next', text)
            path = f"/runs/run-1{after[1]}" if after else ""
    assert rows == [32, 32, 32, 4]
    assert links == ["?row=0", "?row=32", "?row=64"]


async def test_a_table_shows_only_conflicts_or_only_holes() -> None:
    """Rows keep their addresses, and links to further rows keep the choice."""
    names = "\n".join(f"- City {number}" for number in range(250))
    result = TableRun(
        Schema((Column("city", key=True), Column("founder"))),
        (),
        (discovery(1),),
        (listed(names),),
    )
    long = replace(TABLE, id="run-2", result=result, events=())
    async with shown(runs=[TABLE, long]) as pages, browsing(pages) as session:
        for only, rows in (
            ("", ["0", "1", "2", "3"]),
            ("conflict", ["1"]),
            ("missing,not_found", ["2", "3"]),
            ("given", []),
        ):
            text = await read(session, f"/runs/run-1?only={only}")
            assert re.findall(r'href="/runs/run-1/cells/(\d)/0"', text) == rows
            assert ("No row has a cell in this state." in text) == (not rows)
        holes = await read(session, "/ask/run-2?before=run-1&only=missing,not_found&row=100")
        links = re.findall('href="([^"]*)">(?:Next|Previous)', unescape(holes))
        assert links == [
            f"?before=run-1&only=missing%2Cnot_found&row={row}#table" for row in (0, 200)
        ]
        assert "Next rows" not in await read(session, "/runs/run-2?only=conflict")


async def test_a_growing_table_is_shown() -> None:
    async with shown() as pages, browsing(pages) as session:
        pages.tables.let.clear()
        run_id = await begun(session, "The cities of Vorland", "city*, founder, founded")
        await pages.tables.waiting.wait()
        text = await read(session, f"/runs/{run_id}")
        assert "Krurou" in text
        assert f'hx-get="/runs/{run_id}?seen=' in text
        pages.tables.let.set()
        await pages.store.next()
        assert "Ana" in await read(session, f"/ask/{run_id}")


@pytest.mark.parametrize("path", ["/runs/run-1/cells/0/0", "/runs/run-1/table.md"])
async def test_a_redacted_table_has_no_cells_and_no_exports(path: str) -> None:
    async with shown(runs=[redacted(TABLE)]) as pages, browsing(pages) as session:
        await read(session, path, 404)
        assert "Krurou" not in await read(session, "/runs/run-1")
