"""Parsing of tables as models write them, and writing that reads back unchanged."""

import csv
import io
import json
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.protocol import Report
from router.protocol.turns import ReportTurn, SearchTurn
from router.table.plain_text import plain
from router.table.table_text import (
    parse_table_turn,
    read_csv,
    read_rows,
    read_values,
    to_markdown,
)
from router.trace.table import Column, Schema
from tests.router.outputs import FLOODS, OUTPUTS
from tests.router.protocol.test_parse_time import LONG, grows_linearly

CITY = Column("city", key=True)
FOUNDER = Column("founder")
FOUNDED = Column("founded", "integer")
CITIES = (CITY, FOUNDER, FOUNDED)
KRUROU = ("Krurou", "Ana Ruiz", "1321")
BEL = ("Bel", "", "1400")

_HEAD = "| city | founder | founded |\n|---|---|---|\n"
_ROWS = "| Krurou | Ana Ruiz | 1321 |\n| Bel | | 1400 |"
_RECORDS: list[dict[str, object]] = [
    {"city": "Krurou", "founder": "Ana Ruiz", "founded": 1321},
    {"city": "Bel", "founder": None, "founded": 1400},
]
MANNERS = {
    "plain": _HEAD + _ROWS,
    "fenced, with prose around it": (
        "Here is the table | as you asked:\n\n```markdown\n| City | Founder | Founded |\n"
        "|:---|:---:|---:|\n"
        "| Krurou | Ana Ruiz | 1321 |\n| Bel | | 1400 |\n```\n\nNote: the founder of Bel "
        "is unknown."
    ),
    "a fence that is not closed": "```\n|city|founder|founded|\n|-|-|-|\n|Krurou|Ana Ruiz|1321|\n|Bel||1400|\n",
    "no bars around it": "city | founder | founded\n--- | --- | ---\nKrurou | Ana Ruiz | 1321\nBel | | 1400",
    "no line of dashes": _HEAD.replace("|---|---|---|\n", "") + _ROWS,
    "no header": _ROWS,
    "columns in another order, and more": (
        "| # | Founded | **City** | Country | Founder |\n|---|---|---|---|---|\n"
        "| 1 | 1321 | Krurou | Vor | Ana Ruiz |\n| 2 | 1400 | Bel | Vor | |"
    ),
    "columns under other names": "| Name of the city | Founder (person) | Year |\n|---|---|---|\n"
    + _ROWS,
    "in a foreign language": _HEAD.replace("city | founder | founded", "城市 | 创始人 | 年")
    + _ROWS,
    "an empty line, more": "|city|x|founder|founded|\n|Krurou|y|Ana Ruiz|1321|\n\n|Bel|||1400|",
    "a header for each row": f"### Krurou\n{_HEAD}{_ROWS}".replace(
        "\n| Bel", f"\n\n### Bel\n{_HEAD}| Bel"
    ),
    "the header again": _HEAD + _ROWS.replace("\n", f"\n{_HEAD}"),
    "an empty line in it": _HEAD + _ROWS.replace("\n", "\n\n"),
    "a table of its sources after it": f"{_HEAD}{_ROWS}\n\n| No. | Title | Link |\n|---|---|---|\n| 1 | Annals | a.b |",
    "CSV in a fence": "The cities:\n```csv\ncity,founder,founded\nKrurou,Ana Ruiz,1321\nBel,,1400\n```",
    "line ends of Windows": (_HEAD + _ROWS).replace("\n", "\r\n"),
    "quoted": "> Here it is:\n>\n> " + (_HEAD + _ROWS).replace("\n", "\n> "),
    "in an item of a list": "1. The cities:\n   " + (_HEAD + _ROWS).replace("\n", "\n   "),
    "a fence for each part": "```markdown\n"
    + f"{_HEAD}{_ROWS}\n```".replace("\n| Bel", "\n```\nMore:\n```markdown\n| Bel"),
    "a remark between rows": _HEAD + _ROWS.replace("\n", "\nThose in the south:\n"),
    "a grid": "+---+---+---+\n"
    + (_HEAD + _ROWS)
    .replace("|---|---|---|", "+===+===+===+")
    .replace("\n| Bel", "\n+---+---+---+\n| Bel"),
    "spaces that do not break": (_HEAD + _ROWS).replace(" | ", "\u00a0|\u00a0"),
    "wide bars": "结果如下：\n" + (_HEAD + _ROWS).replace("|", "｜"),
    "items of a list": _ROWS.replace("| K", "- K").replace("| B", "- B"),
    "a numbered list": _ROWS.replace("| K", "1. K").replace("| B", "2. B"),
    "tabs": "city\tfounder\tfounded\nKrurou\tAna Ruiz\t1321\nBel\t\t1400",
    "tabs, no header": "Krurou\tAna Ruiz\t1321\nBel\t\t1400",
    "semicolons": "city;founder;founded\nKrurou;Ana Ruiz;1321\nBel;;1400",
    "JSON": f"Here is the table:\n```json\n{json.dumps(_RECORDS, indent=2)}\n```\nDone.",
    "JSON on one line": json.dumps(_RECORDS),
    "JSON in an object": json.dumps({"status": "ok", "data": {"rows": _RECORDS}}),
    "JSON lines": "\n".join(map(json.dumps, _RECORDS)),
    "JSON in items": "\n".join(f"- {json.dumps(record)}" for record in _RECORDS),
    "JSON by keys": json.dumps({record.pop("city"): record for record in map(dict, _RECORDS)}),
    "JSON by columns": json.dumps(
        {"city": ["Krurou", "Bel"], "founder": ["Ana Ruiz", None], "founded": [1321, 1400]}
    ),
    "JSON of arrays": json.dumps(
        [["City", "Founder", "Founded"], ["Krurou", "Ana Ruiz", 1321], ["Bel", None, 1400]]
    ),
    "JSON of columns and rows": json.dumps(
        {
            "columns": ["city", "founder", "founded"],
            "rows": [["Krurou", "Ana Ruiz", 1321], ["Bel", "", 1400]],
        }
    ),
    "JSON with commas at ends": json.dumps(_RECORDS).replace("}", ",}").replace("]", ",]"),
    "YAML": (
        "rows:\n  - city: Krurou\n    founder: Ana Ruiz\n    founded: 1321\n  - city: 'Bel'\n"
        "    founded: 1400"
    ),
    "a block for each": (
        "**City:** Krurou\n**Founder:** Ana Ruiz\n**Founded:** 1321\n**City:** Bel\n"
        "**Founded:** 1400"
    ),
    "blocks in a numbered list": (
        "1. **City:** Krurou\n   - **Founder:** Ana Ruiz\n   - **Founded:** 1321\n"
        "2. **City:** Bel\n   - **Founded:** 1400"
    ),
    "Python": f"Here's the list:\n```python\ncities = {_RECORDS}\n```",
    "JSON5": (
        "[{city: 'Krurou', founder: 'Ana Ruiz', founded: 1321}, // the first\n"
        '{city: "Bel", founder: null, founded : 1400}]'
    ),
    "Org": (_HEAD + _ROWS).replace("|---|---|---|", "|---+---+---|"),
    "HTML": (
        "<table class='x'>\n<tr><th>City</th><th>Founder</th><th>Founded</th></tr>\n"
        "<tr>\n<td>Krurou</td>\n"
        "<td><b>Ana&nbsp;Ruiz</b></td><td>1321</td></tr><tr><td>Bel</td><td></td><td>1400</td></tr>\n"
        "</table>"
    ),
    "HTML that leaves tags open": (
        "<TABLE><TR><TH>City<TH>Founder<TH>Founded<TR><TD>Krurou<TD>Ana "
        "Ruiz<TD>1321<TR><TD>Bel<TD><TD>1400</TABLE>"
    ),
}


@pytest.mark.parametrize("manner", MANNERS)
def test_one_table_is_read_in_every_notation(manner: str) -> None:
    table = read_rows(MANNERS[manner], CITIES)
    assert ([tuple(" ".join(cell.split()) for cell in row) for row in table.rows], table.lost) == (
        [KRUROU, BEL],
        0,
    )


def test_short_rows_are_filled_and_surplus_cells_join_the_last_one() -> None:
    """A bar that was not escaped belongs to the last cell."""
    text = (
        "| city | founder | founded |\n|---|---|---|\n| Krurou |\n| Bel | Bo | 1400 | or "
        "1401 |\n| Tal | - | n/a |"
    )
    assert read_rows(text, CITIES).rows == (
        ("Krurou", "", ""),
        ("Bel", "Bo", "1400 | or 1401"),
        ("Tal", "-", "n/a"),
    )


def test_empty_key_parts_and_ditto_signs_repeat_the_cell_above() -> None:
    columns = (Column("year", key=True), Column("event", key=True), Column("city"))
    text = (
        "| year | event | city |\n|---|---|---|\n| 2020 | Song | Bel |\n| | Dance | 〃 |\n| "
        '2021 | Song | " |'
    )
    assert read_rows(text, columns).rows == (
        ("2020", "Song", "Bel"),
        ("2020", "Dance", "Bel"),
        ("2021", "Song", "Bel"),
    )


def test_omitted_and_keyless_rows_are_counted() -> None:
    """A row that begins with dots is a row."""
    head = _HEAD + "| Krurou | Ana Ruiz | 1321 |\n"
    assert read_rows(head + "| ... | ... | ... |\n| | Bo | 1400 |", CITIES) == ((KRUROU,), 2)
    assert read_rows(head + "| (… and 12 more rows) | | |", CITIES) == ((KRUROU,), 12)
    assert read_rows(head + "| … (1,200 more) | | |", CITIES) == ((KRUROU,), 1200)
    assert read_rows(head + "| ... and 12 more cities | | |", CITIES) == ((KRUROU,), 12)
    assert read_rows(head + "| ...And Justice | | |", CITIES).rows[1:] == (
        ("...And Justice", "", ""),
    )


def test_chinese_names_headers_and_signs_are_read() -> None:
    columns = (Column("姓名", key=True), Column("获奖年份", "integer"))
    text = "以下是结果：\n\n```markdown\n| 姓名 | 获奖年份（年） |\n|:--|---|\n| 莫言 | 2012年 |\n| 屠呦呦 | 同上 |\n```"
    assert read_rows(text, columns).rows == (("莫言", "2012年"), ("屠呦呦", "2012年"))
    assert read_rows("北京、上海、广州", columns[:1]).rows == (("北京",), ("上海",), ("广州",))
    assert read_values("获奖年份：2012年", Schema(columns), columns[1:], ("莫言",)) == ("2012年",)


def test_a_cut_turn_of_a_thousand_rows_loses_only_the_last() -> None:
    rows = [(f"City {number}", f"Founder {number}", str(1000 + number)) for number in range(1000)]
    turn = parse_table_turn("<answer>" + to_markdown(CITIES, rows)[:-20], cut=True)
    assert isinstance(turn, ReportTurn)
    assert turn.report.lost_lines == 1
    assert read_rows(turn.report.answer, CITIES) == (tuple(rows[:999]), 0)


@pytest.mark.parametrize(
    "text",
    [
        "- Krurou\n- Bel\n- Tal",
        (
            "The cities are:\n1. **Krurou** – on the river\n2. **Bel**: a port\n3) Tal\n"
            "These are all that they name."
        ),
        "Krurou\nBel\nTal",
        "['Krurou', 'Bel', 'Tal']",
        "Krurou\nBel\nTal\nSource: the annals",
        "city\nKrurou\nBel\nTal",
        "Krurou, Bel, and Tal",
        "```\nKrurou\nBel\nTal\n```",
    ],
)
def test_keys_are_read_from_one_or_several_lines(text: str) -> None:
    assert read_rows(text, [CITY]).rows == (("Krurou",), ("Bel",), ("Tal",))
    assert [plain(row[0]) for row in read_rows(text, CITIES).rows] == ["Krurou", "Bel", "Tal"]


def test_columns_whose_names_begin_with_a_digit_are_read_from_lines() -> None:
    columns = [CITY, Column("2019 revenue"), Column("3D")]
    for text in (
        "city: Bel\n2019 revenue: 5\n3D: yes",
        "1. **City:** Bel\n   - **2019 revenue:** 5\n   - 3D: yes",
    ):
        assert read_rows(text, columns).rows == (("Bel", "5", "yes"),)


def test_a_list_in_a_cell_is_no_list_of_keys() -> None:
    text = "[{'city': 'Krurou', 'founder': ['Ana', 'Bo'], 'founded': 1321}]"
    assert read_rows(text, CITIES).rows == (("Krurou", "Ana, Bo", "1321"),)


def test_details_below_a_key_are_no_keys() -> None:
    text = "- Krurou\n  - founder: Ana Ruiz\n  - founded: 1321\n- Bel\n  - founded: 1400"
    assert [row[0] for row in read_rows(text, CITIES).rows] == ["Krurou", "Bel"]


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I could not find any cities.",
        "I don't know.",
        "No cities were found.",
        "Unfortunately there is no data",
        "Here is the table",
        "As an AI I cannot do that",
        "According to the passages there are none",
        "抱歉，我找不到任何信息",
        "根据文档，没有城市。",
        "{",
        "[",
        "{}",
        "[]",
        json.dumps(json.dumps([{"city": "Krurou", "founder": "Ana"}])),
        '{"error": "not found"}',
        '"Year": 1871,\n"Place": "Bel"',
        '[\n  {\n    "Year": 1871\n  },\n  {',
        "```json\n```",
        "<table></table>",
        "<p>nothing</p>",
        "<tr><td></td></tr>",
        "---",
    ],
)
def test_prose_json_and_html_are_no_keys(text: str) -> None:
    """The replies are an apology, a sentence, and pieces of JSON and HTML."""
    assert read_rows(text, CITIES).rows == ()
    assert read_rows(text, [CITY]).rows == ()


def test_titles_and_names_that_look_like_sentences_are_keys() -> None:
    keys = (
        "I Am Legend\nHere\nSorry to Bother You\nWashington D.C.\nAcme and Sons Inc.\nWho Is "
        "Afraid?\nAirplane!"
    )
    assert [row[0] for row in read_rows(keys, [CITY]).rows] == keys.split("\n")


def test_whole_rows_of_cut_json_count() -> None:
    text = json.dumps({"rows": _RECORDS})
    assert read_rows(text[:-20], CITIES) == ((KRUROU,), 0)


def test_the_first_part_of_a_longer_list_item_is_the_key() -> None:
    text = "- Krurou: founded in 1321\n- **Bel** – a port"
    assert [row[0] for row in read_rows(text, CITIES).rows] == ["Krurou", "**Bel**"]
    assert [row[0] for row in read_rows(text, [CITY]).rows] == ["Krurou: founded in 1321", "Bel"]


def test_a_thousand_chinese_rows_are_read_with_blank_cells_kept() -> None:
    """The table is fenced, has prose around it, and lacks some cells."""
    columns = Column("城市", key=True), Column("省份"), Column("人口", "integer")
    rows = [
        (f"城市{number}号", "暂无" if number % 7 == 0 else "广东省", f"{number}万")
        for number in range(1, 1001)
    ]
    table = to_markdown(columns, rows).replace("| 城市5号 | 广东省 | 5万 |", "| 城市5号 |")
    rows[4] = ("城市5号", "", "")
    answer = f"以下是完整的表格：\n\n```markdown\n{table}```\n\n注：“暂无”表示没有数据。"
    text = f"<answer>{answer}</answer><evidence>见表</evidence>"
    turn = parse_table_turn(text)
    assert isinstance(turn, ReportTurn)
    assert read_rows(turn.report.answer, columns) == (tuple(rows), 0)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("founder: Ana Ruiz\nfounded: 1321", ("Ana Ruiz", "1321")),
        ("- **Founded**: 1321\n- **Founder**: Ana Ruiz (of Bel)", ("Ana Ruiz (of Bel)", "1321")),
        (
            "| Column | Value |\n|---|---|\n| founder | Ana Ruiz |\n| founded | 1321 |",
            ("Ana Ruiz", "1321"),
        ),
        ("| founder | founded |\n|---|---|\n| Ana Ruiz | 1321 |", ("Ana Ruiz", "1321")),
        (
            (
                "| city | founder | founded |\n|---|---|---|\n| Bel | Bo | 1400 |\n| "
                "**KRUROU** | Ana Ruiz | |"
            ),
            ("Ana Ruiz", ""),
        ),
        (
            "| city | founder | founded |\n|---|---|---|\n| Bel | Bo | 1400 |\n| Tal | Cy | 1500 |",
            ("", ""),
        ),
        ("Ana Ruiz founded it.", ("", "")),
        ('{"founder": "Ana Ruiz", "founded": 1321}', ("Ana Ruiz", "1321")),
        (
            '```json\n{"krurou": {"founder": "Ana Ruiz", "founded": 1321}}\n```',
            ("Ana Ruiz", "1321"),
        ),
        ("<table><tr><th>founder<th>founded<tr><td>Ana Ruiz<td>1321</table>", ("Ana Ruiz", "1321")),
    ],
)
def test_values_of_one_row_are_read_from_pairs_or_its_row(
    text: str, values: tuple[str, ...]
) -> None:
    assert read_values(text, Schema(CITIES), [FOUNDER, FOUNDED], ("krurou",)) == values


def test_a_single_value_is_the_whole_text_unless_it_is_named() -> None:
    for text in (
        "1321",
        "founded: 1321",
        "| founded |\n|---|\n| 1321 |",
        '{"founded": 1321}',
        "| city | founded |\n|---|---|\n| Krurou | 1321 |",
    ):
        assert read_values(text, Schema(CITIES), [FOUNDED], ("krurou",)) == ("1321",), text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (
            "<answer>| a | b |\n| c | d |</answer><evidence>- A b.</evidence>",
            "| a | b |\n| c | d |",
        ),
        (
            "<think>| x |</think><answer>\n```\n| a | b |\n| c | d |\n```\n</answer>",
            "```\n| a | b |\n| c | d |\n```",
        ),
        ("<answer>Krurou\nBel</answer><evidence>Krurou is a city of Vor.", "Krurou\nBel"),
        ("| a | b |\n|---|---|\n| c | d |\nDone.", "| a | b |\n|---|---|\n| c | d |\nDone."),
        (
            "<answer>| a | says </answer> |\n| c | &lt;/answer&gt; |</answer>",
            "| a | says </answer> |\n| c | </answer> |",
        ),
        (
            "<answer>| a | <evidence> |\n| c | d |\n</answer>\n<evidence>x</answer></evidence>",
            "| a | <evidence> |\n| c | d |",
        ),
    ],
)
def test_lines_of_a_table_turn_are_kept_and_its_tags_are_text(text: str, answer: str) -> None:
    turn = parse_table_turn(text)
    assert isinstance(turn, ReportTurn)
    assert turn.report.answer == answer
    assert turn.report.lost_lines == 0


def test_turns_without_a_table_are_searches_or_malformed() -> None:
    assert parse_table_turn("<search>cities of Vor</search>") == SearchTurn("cities of Vor", 0)
    assert not isinstance(parse_table_turn("I do not know | anything."), ReportTurn)
    assert not isinstance(parse_table_turn("<answer> </answer>"), ReportTurn)


def test_a_report_is_cut_between_rows_and_the_cut_is_counted() -> None:
    """The limit is in characters."""
    turn = parse_table_turn("<answer>| a | b |\n| c | d |\n| e | f |</answer>")
    assert isinstance(turn, ReportTurn)
    report = turn.report.within(22)
    assert (report.answer, report.lost_lines) == ("| a | b |\n| c | d |", 1)


_VALUES = st.text().map(str.strip) | st.sampled_from(
    [
        "-",
        "---",
        ":-:",
        "…",
        "...",
        "... and 3 more",
        '"',
        "〃",
        "同上",
        "\\",
        "a\\|b",
        "<br>",
        "a<BR/>b",
        "\\<br>",
        "a\nb",
        "`",
        "|",
    ]
)
_KEYS = st.text("abc|\\<br>-\n", min_size=1).map(lambda text: f"k{text}".strip())


@given(st.lists(st.tuples(_KEYS, _VALUES, _VALUES)))
def test_written_tables_are_read_back(rows: list[tuple[str, str, str]]) -> None:
    """Markdown loses only the kind of line break, CSV loses nothing. Names are written too."""
    columns = (Column("a|b", key=True), Column("-"), Column("x <br> y"))
    unified = tuple(
        tuple(value.replace("\r\n", "\n").replace("\r", "\n") for value in row) for row in rows
    )
    assert read_rows(to_markdown(columns, rows), columns) == (unified, 0)
    file = io.StringIO(newline="")
    csv.writer(file).writerows([[column.name for column in columns], *rows])
    assert read_csv(file.getvalue(), columns) == rows


_PARTS = st.sampled_from(
    [
        "|",
        "| ",
        "---",
        "|---|",
        "\n",
        "city",
        "founder",
        "```",
        "\\",
        "</answer>",
        "<br>",
        '"',
        ",",
        "- ",
        "...",
    ]
)


@given(OUTPUTS | st.lists(_PARTS).map("".join), st.booleans())
def test_any_text_is_read_into_rows_with_a_key_and_the_given_width(text: str, cut: bool) -> None:
    for row in read_rows(text, CITIES).rows:
        assert len(row) == 3
        assert row[0]
    assert len(read_values(text, Schema(CITIES), [FOUNDER, FOUNDED], ("krurou",))) == 2
    assert all(len(row) == 3 for row in read_csv(text, CITIES))
    parse_table_turn(text, cut)


HOSTILE = [
    "|",
    "| ",
    "|\\",
    "\\|",
    "| | ",
    "|---",
    "| city |\n|---|\n",
    "```\n|",
    "</answer>",
    "<answer>",
    '"',
    "a,",
    "founder: ",
    "- ",
    "...|",
    "[",
    '{"a":',
    '{"city": "x"},',
    "{'",
    "<tr><td>",
    "<table ",
    "city: x\n",
    "a\t",
    ", ",
]


@pytest.mark.parametrize(
    "flood",
    [*FLOODS, *(piece * (50_000 // len(piece)) for piece in HOSTILE)],
    ids=lambda flood: repr(flood[:12]),
)
def test_a_flood_is_read_at_any_place(flood: str) -> None:
    for before in (
        "",
        "<answer>",
        "| city | founder | founded |\n|---|---|---|\n",
        "city,founder\n",
    ):
        flood = flood[:50_000]
        read_rows(before + flood, CITIES)
        read_values(before + flood, Schema(CITIES), [FOUNDER], ("krurou",))
        parse_table_turn(before + flood, cut=True)


def test_of_ten_megabytes_on_a_line_the_excess_is_not_read() -> None:
    """Text beyond the size of any table counts as cut off."""
    assert read_rows("|" * 10_000_000, CITIES) == ((), 1)


READERS: dict[str, Callable[[str], object]] = {
    "rows": lambda text: read_rows(text, CITIES),
    "values": lambda text: read_values(text, Schema(CITIES), [FOUNDER], ("krurou",)),
    "turn": parse_table_turn,
}


@pytest.mark.timing
@pytest.mark.parametrize("reader", READERS)
def test_reading_takes_linear_time_for_any_repeated_text(reader: str) -> None:
    """A long text takes about ten times as long as a tenth of it."""
    for piece in HOSTILE:
        text = (piece * (LONG // len(piece) + 1))[:LONG]
        assert grows_linearly(
            partial(READERS[reader], text), partial(READERS[reader], text[: LONG // 10])
        ), piece


def test_a_report_that_names_a_manager_keeps_its_lines() -> None:
    text = (
        "<answer>Heat\nRonin</answer><evidence>both are films</evidence><escalate "
        'to="pages">more are there</escalate>'
    )
    assert parse_table_turn(text) == ReportTurn(
        Report("Heat\nRonin", ("both are films",), escalate_to="pages")
    )
