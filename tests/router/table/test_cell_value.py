"""Canonical forms: values with equal meaning have one form, and values of no other type are
texts.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.table.cell_value import canonical, is_blank, is_mistyped, row_key, values_in
from router.table.plain_text import normal_text, plain
from router.trace.table import Column, ColumnType, Schema
from tests.router.outputs import FLOODS

_CHOICES = ("Catholic", "**Other** faith", "天主教")
# fmt: off
_PIECES = st.sampled_from([
    "**", "*", "`", "[", "]", "(", ")", "[1]", "](http://a.b)", "<b>", "<", ">", "www.", "http://",
    "/", ".",
    ",", " ", "\n", "1", "12", "1943", "-", "−", "e5", "k", "million", "万", "%", "$", "May", "年",
    "月", "st", "ﬀ",
    "İ", "ß", "\u0301", "\u0338", "=", "＊", "［", "²", "\u00a0", "…", "“", "。", "yes", "Catholic",
    "other faith",
    "bc", ":", "#", "?", "_", "|", "\ud83d",
])
# fmt: on
VALUES = st.lists(_PIECES | st.text(max_size=4), max_size=12).map("".join)
COLUMNS = st.sampled_from(
    [Column("c", kind) for kind in ("text", "integer", "number", "date", "url", "boolean")]
    + [Column("c", "number", unit="million km²"), Column("c", "choice", choices=_CHOICES)]
)


@pytest.mark.parametrize(
    ("kind", "form", "values"),
    [
        (
            "text",
            "krurou",
            (
                "Krurou|**Krurou**|[Krurou](https://a.b/c_(d))|“KRUROU”,|Krurou[1]|"
                "Krurou[^2](http://a.b)|`Krurou`."
            ),
        ),
        ("text", "krurou", "ＫＲＵＲＯＵ"),
        ("text", "c++", "C++|c++."),
        ("text", "北京", "北京|**北京**|《北京》"),
        (
            "number",
            "1234",
            "1234|1,234|1 234|1'234|1,234.0|1.234,00|~1,234 people|1234%|1,234 (2020)|01234",
        ),
        ("number", "-5.5", "-5.5|−5.50|-5,5|-5.5 °C"),
        (
            "number",
            "3200000",
            "3.2 million|3,200,000|3200k|320万|0.032亿|3.2e6|$3.2m|3,2 Mio. €|3.2 mln|32 lakh",
        ),
        (
            "number",
            "3500000",
            "350萬|350万|三百五十万|350만|3.5-million|€3.5M|$3.5MM|3.5 MM|3,5 млн руб.|35,00,000|٣٥٠٠٠٠٠",
        ),
        (
            "number",
            "300000000",
            "3億円|3亿|3억 원|30 crore|€0.3bn|0,3 Mrd.|30千万|3 * 10^8|3×10⁸|300 millones|0.3B",
        ),
        (
            "number",
            "120000000",
            "1億2,000万人|1億2000万|1억 2천만|120 million|12 crore|1.2亿元|1.2 hundred million",
        ),
        (
            "number",
            "5000000000000",
            "5 lakh crore|5万亿|5兆円|5조|5 trillion|5 billones|5 Billionen",
        ),
        ("number", "1000000", "10⁶|10^6|10**6|10⁶ m²|百万|1M|1 000 thousand"),
        ("number", "0.0025", "2.5×10⁻³|2.5·10⁻³|2.5 x 10^-3|.0025"),
        ("number", "1871", "1871¹|1871①|1871[1]|1871[a]|1 871 m²|１８７１"),
        ("number", "3.5", "3½|3 ½|٣٫٥|3.5 %|3.5 percent|3,5 Prozent"),
        ("number", "-1234", "(1,234)|($1,234)|-$1,234|−€1.234,0|minus 1234|零下1234度|–1’234"),
        ("integer", "85", "$85|85 USD|€85.00|85 km²|85th"),
        ("number", "10-12", "10-12|**10-12**"),
        ("number", "753 bc", "753 BC"),
        ("date", "1943", "1943|c. 1943|1943年|founded in 1943"),
        ("date", "1943-05", "May 1943|1943-05|1943年5月|May, 1943|May,1943|1943/5"),
        (
            "date",
            "1943-05-14",
            (
                "1943-05-14|14 May 1943|May 14th, 1943|1943年5月14日|14.05.1943|05/14/1943|"
                "1943-05-14T10:00:00Z|14th May,1943|May 14,1943|1943年5月14日9时05分03.497秒|"
                "1943年5月14日 21時10分|1943년 5월 14일 9시 5분"
            ),
        ),
        ("date", "05/04/1943", "05/04/1943"),
        ("date", "1943-1945", "1943-1945"),
        ("date", "1990s", "1990s"),
        ("date", "2023-02-30", "2023-02-30"),
        (
            "url",
            "a.org/b",
            (
                "https://www.a.org/b/|a.org/b|HTTP://A.org:80/b?x=1#y|"
                "[Home](https://a.org/b)|see <http://a.org/b>."
            ),
        ),
        ("text", "benzoapyrene", "Benzo[a]pyrene|Benzo[a]pyrene[b]"),
        ("boolean", "true", "Yes|TRUE|✓|是|☑|是的|✔\ufe0f|○|〇|あり|有|ja|Oui|Sí|да|예"),
        ("boolean", "false", "No.|false|否|×|✗|☐|☒|错|なし|无|nein|Non|нет|아니요|没有"),
        ("text", "l'été", "L’Été|L'ÉTÉ|L′été|L\u200b'été"),
        (
            "text",
            "paris-nice",
            "Paris–Nice|Paris-Nice|Paris — Nice|Paris\u2011Nice|Paris\u00ad−Nice",
        ),
        (
            "text",
            "cambridge (uk)",
            "Cambridge（UK）|Cambridge (UK)|Cambridge(UK)|Cambridge\u00a0(UK)|\ufeffＣambridge (uk)",
        ),
        ("text", "johnson and johnson", "Johnson & Johnson|Johnson and Johnson|Johnson ＆ Johnson"),
        ("text", "strasse", "Straße|STRASSE"),
        ("text", "istanbul", "İstanbul|Istanbul|ISTANBUL|ıstanbul"),
        ("text", "france", "France|France¹|“France”"),
    ],
)
def test_equal_values_have_one_form_by_the_type_of_the_column(
    kind: ColumnType, form: str, values: str
) -> None:
    assert {canonical(Column("c", kind), value) for value in values.split("|")} == {form}


def test_a_named_unit_is_no_part_of_a_number() -> None:
    """A power that the unit includes is not multiplied again."""
    column = Column("area", "number", unit="million km²")
    assert [
        canonical(column, value) for value in ("3.2 million km²", "3.2", "3.2 million", "320万")
    ] == ["3.2"] * 4
    assert canonical(column, "3.2 billion km²") == "3200"


def test_a_choice_is_spelt_as_listed() -> None:
    """A single named choice counts, two do not."""
    column = Column("c", "choice", choices=_CHOICES)
    values = [
        "largely catholic",
        "OTHER faith",
        "信仰天主教的人",
        "Catholic or other faith",
        "catholicism",
    ]
    assert [canonical(column, value) for value in values] == [
        "Catholic",
        "**Other** faith",
        "天主教",
        "catholic or other faith",
        "catholicism",
    ]


@given(COLUMNS, VALUES)
def test_the_form_of_a_form_is_itself(column: Column, value: str) -> None:
    """It has the type of the column if the value has."""
    form = canonical(column, value)
    assert canonical(column, form) == form
    assert is_mistyped(column, form) == is_mistyped(column, value)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("integer", "1.5|twelve|10-12|753 BC"),
        ("number", "a lot|1/2"),
        (
            "number",
            (
                "350 gazillion|5G|R$ 3,5 mi|12 dozen|3 score|350foo|12x|0x1F|1e400|350多万|"
                "350余万|5 bps|12‰|12m|3T|5 mil"
            ),
        ),
        (
            "number",
            (
                "3 (in millions)|(in thousands) 3|M€ 3|10–12|5 ± 1|令和3年|民国100年|1,234-|1,2,3|"
                "half a million"
            ),
        ),
        ("date", "long ago|2023-02-30"),
        (
            "date",
            "令和3年|昭和45年5月3日|民国100年|1200 v. Chr.|前221年|AH 1440|พ.ศ. 2560|1871/72|2011/12|2011–12",
        ),
        ("date", "Q3 2015|2015Q3|3rd quarter of 2015|2015年第三季度|H1 2020|May 5–6, 1943"),
        ("url", "none yet"),
        ("boolean", "perhaps"),
        ("choice", "Buddhist|Catholic or other faith"),
    ],
)
def test_values_of_another_type_are_texts(kind: ColumnType, values: str) -> None:
    column = Column("c", kind, choices=_CHOICES if kind == "choice" else ())
    assert all(is_mistyped(column, value) for value in values.split("|"))
    assert not any(is_mistyped(Column("c"), value) for value in values.split("|"))


@given(VALUES)
def test_numbers_and_dates_are_found_in_any_text(text: str) -> None:
    """They have the form that they have as values."""
    for kind in ("number", "date"):
        column = Column("c", kind)
        for value in values_in(column, text):
            assert len(value) > 60 or canonical(column, value) == value


def test_dates_in_a_sentence_are_as_precise_as_stated() -> None:
    text = (
        "Founded in 1943. 12 years later, on 5 May 1955, it had 1,200 people; 1999年 3 月 it "
        "had none."
    )
    assert values_in(Column("c", "date"), text) == ("1943", "1955-05-05", "1999-03")
    assert values_in(Column("c", "integer"), text) == (
        "1943",
        "12",
        "5",
        "1955",
        "1200",
        "1999",
        "3",
    )


def test_words_of_models_for_no_value_are_blank() -> None:
    """They come from tables and reports."""
    blanks = [
        "",
        " ",
        "-",
        "—",
        "N/A",
        "n/a.",
        "**Unknown**",
        "Not found",
        "not found in your documents",
        "无",
        "...",
        "?",
    ]
    blanks += (
        "资料不足|暂无数据|未公开|不明|없음|該当なし|–––|ー|Not found in the documents|Not disclosed|"
        "TBD|(unknown)|не указано|k. A.|sin datos|N/D"
    ).split("|")
    assert [value for value in blanks if not is_blank(value)] == []
    values = [
        "0",
        "no",
        "Nanaimo",
        "none of these",
        "+",
        "ND",
        "C",
        "Unknown Pleasures",
        "Blank",
        "×",
        "○",
    ]
    assert [value for value in values if is_blank(value)] == []


def test_no_is_a_boolean_only_in_a_boolean_column() -> None:
    """In a column of another type it is no value."""
    for value in ("无", "なし", "없음"):
        assert is_blank(value)
        assert not is_blank(value, Column("c", "boolean"))


def test_numbers_of_a_sentence_keep_their_powers_and_lose_their_notes() -> None:
    text = "It had 350萬 people in 1871¹, 三百五十万 in 1999², and $1.2M of debt; 2.5×10⁶ trees."
    assert values_in(Column("c", "number"), text) == (
        "3500000",
        "1871",
        "3500000",
        "1999",
        "1200000",
        "2500000",
    )


def test_markup_is_no_part_of_a_value() -> None:
    """The text of a link stays, the number of a note is dropped."""
    written = "**Ana** <b>Ruiz</b>[2], [mayor](https://a.b/c_(d)) of `Bel`, see <https://a.b>"
    assert " ".join(plain(written).split()) == "Ana Ruiz , mayor of Bel, see https://a.b"


def test_a_key_joins_the_forms_of_its_columns_in_order() -> None:
    schema = Schema((Column("city", key=True), Column("mayor"), Column("year", "date", key=True)))
    assert row_key(schema, ["**Krurou**", "Ana", "May 1943"]) == ("krurou", "1943-05")


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: repr(flood[:12]))
def test_a_flood_has_a_form_in_time(flood: str) -> None:
    """The test's timeout is far below quadratic time."""
    for kind in ("text", "number", "date", "url"):
        assert isinstance(canonical(Column("c", kind), flood[:50_000]), str)


@pytest.mark.parametrize(
    "text", ["\ufdfa" * 300, "a\ufdfa" * 300, "\u3300" * 300, "\ufdfa" * 30_000]
)
def test_a_form_is_not_much_longer_than_its_value(text: str) -> None:
    """Some characters expand to 18. A value full of them is left unchanged."""
    assert len(normal_text(text)) <= 3 * len(text) + 100
    assert normal_text(normal_text(text)) == normal_text(text)
