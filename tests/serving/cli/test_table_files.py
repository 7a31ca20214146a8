"""Files of tables: with their sources, and rows that are read from them."""

import csv
import io
import json
import re
from datetime import datetime
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from openpyxl import Workbook, load_workbook
from rolegate.client import Table
from rolegate.client.table import parse_columns
from rolegate.client.text import visible
from rolegate.v1 import table_service_pb2 as pb
from rolegate.v1.evidence_pb2 import Citation

from router.errors import BadConfig
from serving.documents.given_rows import read_given_rows
from tests.conftest import Rolegate

QUESTION = "the cities of Vorland"
COLUMNS = "city*, founder, founded:integer"
NAMES = ["city", "founder", "founded"]
SOURCES = [f"{name}: sources" for name in NAMES]
FORMULA = '=HYPERLINK("http://evil.example","x")'
EVIL = "<img src=x> [x](javascript:alert(1))"


def lines_of(file: Path) -> list[list[str]]:
    """Return the cells of a table's file, as its readers have them."""
    if file.suffix == ".xlsx":
        assert all(
            cell.data_type != "f"
            for row in load_workbook(file).worksheets[0].iter_rows()
            for cell in row
        )
        rows = load_workbook(file).worksheets[0].iter_rows(values_only=True)
        return [["" if cell is None else str(cell) for cell in row] for row in rows]
    text = file.read_text("utf-8")
    if file.suffix == ".md":
        tokens = MarkdownIt("gfm-like").parse(text)
        cells = [
            (token.content, tokens[position - 1].type)
            for position, token in enumerate(tokens)
            if token.type == "inline"
        ]
        width = sum(kind == "th_open" for _, kind in cells)
        texts = [text.replace("\\", "") for text, _ in cells]
        return [texts[position : position + width] for position in range(0, len(texts), width)]
    return list(
        csv.reader(io.StringIO(text, newline=""), delimiter="\t" if file.suffix == ".tsv" else ",")
    )


@pytest.mark.parametrize("suffix", ["csv", "tsv", "md", "xlsx", "json"])
def test_excluded_rows_follow_with_the_reason(
    rolegate: Rolegate, gateway: str, tmp_path: Path, suffix: str
) -> None:
    """JSON has them in any case; other files only on request."""
    out = tmp_path / f"t.{suffix}"
    arguments = ("table", QUESTION, "--columns", COLUMNS, "--address", gateway, "--out", out)
    assert rolegate(*arguments, "--where", "founded at least 1000", "--excluded").status == 0
    if suffix == "json":
        (excluded,) = json.loads(out.read_text("utf-8"))["excluded"]
        assert excluded["checks"][0]["state"] == "CHECK_STATE_CONTRADICTED"
        return
    reason = "excluded: not founded at least 1000, but 900 (Bel: “Bel was founded in 900.” (Bel))"
    assert lines_of(out) == [
        [*NAMES, "membership"],
        ["Krurou", "Ana", "1200", ""],
        ["Bel", "Bo", "900", reason],
    ]
    out.unlink()
    assert rolegate(*arguments, "--where", "founded at least 1000").status == 0
    assert lines_of(out) == [NAMES, ["Krurou", "Ana", "1200"]]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "md", "xlsx"])
def test_sources_have_a_column_each_after_the_values(
    rolegate: Rolegate, gateway: str, tmp_path: Path, suffix: str
) -> None:
    """Without the option, the file has values alone."""
    arguments = (
        "table",
        QUESTION,
        "--columns",
        COLUMNS,
        "--address",
        gateway,
        "--out",
        tmp_path / f"t.{suffix}",
    )
    assert rolegate(*arguments).status == 0
    assert lines_of(tmp_path / f"t.{suffix}") == [
        NAMES,
        ["Krurou", "Ana", "1200"],
        ["Bel", "Bo", "900"],
    ]
    assert rolegate(*arguments, "--sources").status == 0
    header, _, bel = lines_of(tmp_path / f"t.{suffix}")
    assert header == [*NAMES, *SOURCES]
    assert bel[:3] == ["Bel", "Bo", "900"]
    assert bel[5] == "Bel: “Bel was founded in 900.” (Bel)"


def test_json_in_a_file_and_on_the_output_are_equal(
    rolegate: Rolegate, gateway: str, tmp_path: Path
) -> None:
    """Both have the protocol's message."""
    arguments = (
        "table",
        QUESTION,
        "--columns",
        COLUMNS,
        "--address",
        gateway,
        "--json",
        "--out",
        tmp_path / "t.json",
    )
    printed = rolegate(*arguments).out
    assert json.loads((tmp_path / "t.json").read_bytes()) == json.loads(printed)


def cells(*values: str, **fields: object) -> list[pb.Cell]:
    return [pb.Cell(value=value) for value in values[:-1]] + [pb.Cell(value=values[-1], **fields)]  # type: ignore[arg-type]


HOSTILE = pb.Table(
    columns=[pb.Column(name=FORMULA, key=True), pb.Column(name=EVIL), *parse_columns("n:number")],
    rows=[
        pb.Row(cells=cells(FORMULA, "@SUM(1)", "-1.50")),
        pb.Row(cells=cells(EVIL, "x | y\nz \x1b[31m", "00123")),
        pb.Row(
            cells=cells(
                "Bel",
                "+1+cmd|' /C calc'!A0",
                "900",
                contradicted=True,
                state="CELL_STATE_GIVEN",
                citations=[Citation(title=EVIL, quote=FORMULA)],
                rivals=[
                    pb.Claim(
                        value="901", citations=[Citation(title="Annals", quote="In 901.", page=3)]
                    )
                ],
            )
        ),
    ],
)


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".md", ".xlsx"])
def test_no_file_contains_formulas_or_markup(tmp_path: Path, ending: str) -> None:
    """This holds for values, names and sources.

    Numbers in columns of numbers are numbers in Excel, unless that would change them.
    """
    file = tmp_path / f"t{ending}"
    file.write_bytes(
        Table(HOSTILE).to_file(ending, sources=True, others={("Bel",): {"=other": "@x"}})
    )
    header, *rows = lines_of(file)
    assert len(rows) == 3
    assert all(len(row) == len(header) == 7 or ending == ".xlsx" for row in rows)
    if ending == ".md":
        tokens = MarkdownIt("gfm-like").parse(file.read_text())
        kinds = {child.type for token in tokens for child in token.children or ()}
        assert not kinds & {"link_open", "image", "html_inline"}
    elif ending == ".xlsx":
        sheet = load_workbook(file).worksheets[0]
        assert [[cell.value for cell in row] for row in sheet.iter_rows(2, 4, 3, 3)] == [
            [-1.5],
            ["00123"],
            [900],
        ]
        assert sheet["A1"].value == FORMULA
    else:
        assert not [
            cell for row in (header, *rows) for cell in row if cell.startswith(("=", "@", "+1"))
        ]
        assert rows[0][2] == "-1.50"
    assert "but 901 (Annals, p. 3: “In 901.”)" in rows[2][5]


def test_a_given_value_that_a_source_contradicts_is_kept_and_marked(
    rolegate: Rolegate, gateway: str, tmp_path: Path
) -> None:
    """It is marked on standard error, in files, and in the protocol's message."""
    known = tmp_path / "known.csv"
    out = tmp_path / "out.csv"
    known.write_text("city,founded\nBel,899\nKrurou,1200\n")
    arguments = ("table", QUESTION, "--columns", COLUMNS, "--address", gateway, "--rows", known)
    status, printed, err = rolegate(*arguments, "--out", out, "--sources")
    assert status == 0
    assert "| Bel | Bo | 899 |" in printed
    assert (
        "Bel, founded: 899, as given, but 900 (Bel: “Bel was founded in 900.” (Bel))"
        in " ".join(err.split())
    )
    assert "but 900 (Bel: “Bel was founded in 900.” (Bel))" in lines_of(out)[1][5]
    marked = [
        cell["contradicted"]
        for row in json.loads(rolegate(*arguments, "--json").out)["rows"]
        for cell in row["cells"]
    ]
    assert marked == [False, False, True, False, False, False]


def test_a_file_that_is_no_text_is_no_file_of_rows(rolegate: Rolegate, tmp_path: Path) -> None:
    (tmp_path / "known.docx").write_bytes(bytes(1000))
    given = ("--columns", COLUMNS, "--rows", tmp_path / "known.docx")
    ended = rolegate("table", QUESTION, *given)
    assert ended.status == 1
    assert "known.docx: cannot be read as a table; name a valid .csv or .xlsx file." in ended.err


def test_other_columns_of_given_rows_are_kept(
    rolegate: Rolegate, gateway: str, tmp_path: Path
) -> None:
    """They come after the table's columns; rows that were found have no values in them."""
    known = tmp_path / "known.csv"
    out = tmp_path / "out.csv"
    known.write_text("note;Founded;City;id\nnice;777;Tal;=1+1\n;;Bel;7\n")
    arguments = (
        "table",
        QUESTION,
        "--columns",
        COLUMNS,
        "--address",
        gateway,
        "--rows",
        known,
        "--out",
        out,
    )
    assert rolegate(*arguments).status == 0
    assert lines_of(out) == [
        [*NAMES, "note", "id"],
        ["Tal", "", "777", "nice", "'=1+1"],
        ["Bel", "Bo", "900", "", "7"],
        ["Krurou", "Ana", "1200", "", ""],
    ]


TEXT = "city{0}founded\nKöln – “old”{0}50\nBel{0}-900\n"
FORMS = {
    "comma": TEXT.format(",").encode(),
    "semicolon": TEXT.format(";").encode(),
    "tab": TEXT.format("\t").encode(),
    "bar": TEXT.format("|").encode(),
    "mark": b"\xef\xbb\xbf" + TEXT.format(";").encode(),
    "UTF-16": TEXT.format("\t").encode("utf-16"),
    "UTF-16 BE": b"\xfe\xff" + TEXT.format(";").encode("utf-16-be"),
    "Windows": TEXT.format(";").encode("cp1252"),
    "line ends": TEXT.format(";").replace("\n", "\r\n").encode(),
    "other delimiters in quotes": '"city";"note, more, or less";founded\nKöln – “old”;;50\nBel;;-900\n'.encode(),
    "quoted": (
        b'"city","founded"\r\n"K\xc3\xb6ln \xe2\x80\x93 \xe2\x80\x9cold\xe2\x80\x9d","50"\r\n'
        b'"Bel","-900"\r\n'
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_delimiters_and_encodings_are_recognised(tmp_path: Path, form: str) -> None:
    (tmp_path / "known.csv").write_bytes(FORMS[form])
    rows = read_given_rows(tmp_path / "known.csv", parse_columns(COLUMNS))
    assert [row["city"] for row in rows.values] == ["Köln – “old”", "Bel"]
    assert [row["founded"] for row in rows.values] == ["50", "-900"]
    assert list(rows.lines) == [2, 3]


def test_a_chinese_encoding_is_recognised(tmp_path: Path) -> None:
    text = "城市;成立\n北京市是中华人民共和国的首都;一九四九年\n上海市位于中国东部的沿海地区;一二九一年\n"
    (tmp_path / "known.csv").write_bytes(text.encode("gb18030"))
    rows = read_given_rows(tmp_path / "known.csv", parse_columns("城市*, 成立"))
    assert [row["成立"] for row in rows.values] == ["一九四九年", "一二九一年"]


def test_a_workbook_is_read_from_its_first_sheet(tmp_path: Path) -> None:
    """Numbers and days have the form in which people write them."""
    book = Workbook()
    sheet = book.worksheets[0]
    for row in (
        ["City", "founded", "seen"],
        ["Bel", 900, datetime(2024, 5, 1)],
        [None],
        ["Tal", 12.5, None],
    ):
        sheet.append(row)
    book.save(tmp_path / "known.xlsx")
    rows = read_given_rows(tmp_path / "known.xlsx", parse_columns(COLUMNS))
    assert [row["founded"] for row in rows.values] == ["900", "12.5"]
    assert rows.others == {("Bel",): {"seen": "2024-05-01"}, ("Tal",): {"seen": ""}}
    assert list(rows.lines) == [2, 4]


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".xlsx"])
def test_a_written_file_is_read_back(tmp_path: Path, ending: str) -> None:
    """Formulas are unchanged."""
    columns = parse_columns("city*, n")
    rows = [pb.Row(cells=cells(FORMULA, "-1")), pb.Row(cells=cells("Bel", "@x"))]
    file = tmp_path / f"t{ending}"
    file.write_bytes(Table(pb.Table(columns=columns, rows=rows)).to_file(ending))
    assert [tuple(row.values()) for row in read_given_rows(file, columns).values] == [
        (FORMULA, "-1"),
        ("Bel", "@x"),
    ]


@pytest.mark.parametrize(
    "text",
    ["a\ufffeb", "a\uffffb", "a\x00b", "_x0041_", "_x003D_1+1", "x_x000D_"],
)
def test_a_workbook_may_have_any_text(tmp_path: Path, text: str) -> None:
    """XML allows neither U+FFFE nor U+FFFF, and `_x0041_` is an A to spreadsheets."""
    columns = parse_columns("city*, n")
    table = pb.Table(columns=columns, rows=[pb.Row(cells=cells("Bel", text))])
    file = tmp_path / "t.xlsx"
    file.write_bytes(Table(table).to_file(".xlsx"))
    shown = load_workbook(file).worksheets[0]["B2"].value
    as_spreadsheets_read_it = re.sub("_x005F_", "_", shown)
    assert as_spreadsheets_read_it == visible(text)
    assert not re.search("_x(?!005F)[0-9A-F]{4}_", shown.replace("_x005F_x", ""))
    assert read_given_rows(file, columns).values[0]["n"] == visible(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("town\nTal\n", "the first line names none of the columns city, founder, founded;"),
        ("", "the first line names none"),
        ("city,City\nTal,x\n", "the first line names 'city' twice; remove one of these columns."),
        ("city\n", "has no rows after its header line"),
        (
            'city,founded\nTal,1\n"a\nb",2\nBel,1,2\n',
            "line 5 has 3 values, but the first line names 2 columns; remove values",
        ),
        ('city,founded\nTal,1\nBel,"2\n', "line 3: unexpected end of data; correct the quotes."),
    ],
)
def test_a_bad_file_is_refused_with_the_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "known.csv").write_text(content)
    with pytest.raises(BadConfig) as caught:
        read_given_rows(tmp_path / "known.csv", parse_columns(COLUMNS))
    assert str(caught.value).startswith(f"--rows {tmp_path / 'known.csv'}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["known.xlsx", "known.csv"])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x00\x01\x02PK" * 99)
    with pytest.raises(Exception, match="known"):
        read_given_rows(tmp_path / name, parse_columns(COLUMNS))


def test_a_row_that_the_gateway_refuses_is_named_by_its_line(
    rolegate: Rolegate, gateway: str, tmp_path: Path
) -> None:
    known = tmp_path / "known.csv"
    known.write_text("city,founded\nTal,1\n\n,2\n")
    status, _, err = rolegate(
        "table", QUESTION, "--columns", COLUMNS, "--address", gateway, "--rows", known
    )
    assert status == 1
    assert f"{known}, line 4" in err
