"""HTML and Markdown become blocks under headings."""

from pathlib import Path

import pytest

from router.errors import BadDocument
from serving.documents.document import TextBlock
from tests.serving.documents.conftest import read, unread

PAGE = """<!DOCTYPE html><html><head><title>Bees &amp; wasps</title><style>p {}</style></head><body>
<nav><p>Home</p></nav><script>var x = "<p>no</p>";</script><template>no</template>
<h1>Honey&nbsp;bees</h1><p>A colony has <b>one</b> queen,
and <i>many</i>   drones.<p>H<sub>2</sub>O &lt; caf&eacute;<br>next line
<h2>Numbers <a href="#n">¶</a></h2>
<table><thead><tr><th>Kind<th>Count</tr></thead><tr><td>Queen<td><p>1</p></tr><tr><td></td><td></td></tr></table>
<ul><li>nectar</li><li>pollen</li></ul><pre>def f():
    return 1</pre><!-- no --></body></html>"""
LAYOUT = "<table><tr><td>menu</td><td><h1>Title</h1><p>One.</p><p>Two.</p></td></tr></table>"
NOTES = (
    "# Manual\n\nSome *text* with a [link](http://a.b),\nin `two` lines.\n\nSet-up\n------\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n```\nif x:\n    y()\n```\n\n<div>in <b>HTML</b></div>\n"
)
META = '<meta http-equiv="Content-Type" content="text/html; charset=windows-1251"><p>Да'
XHTML = (
    '<?xml version="1.0" encoding="ISO-8859-1"?><html '
    'xmlns="http://www.w3.org/1999/xhtml"><p>é</p><br/>x</html>'
)


def document(
    tmp_path: Path, content: str | bytes, name: str = "page.html"
) -> tuple[str, list[TextBlock]]:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return read(tmp_path / name)


def test_a_page_becomes_blocks_under_headings(tmp_path: Path) -> None:
    """Each heading, paragraph, row, list item and listing is a block; scripts and menus are left
    out.
    """
    bees = ("", "A colony has one queen, and many drones.", "H2O < café\nnext line")
    numbers = ("", "Kind | Count", "Queen | 1", "nectar", "pollen", "def f():\n    return 1")
    assert document(tmp_path, PAGE) == (
        "Bees & wasps",
        [
            *(TextBlock(text, "Honey bees") for text in bees),
            *(TextBlock(text, "Numbers") for text in numbers),
        ],
    )


def test_a_table_for_the_layout_is_no_table_of_values(tmp_path: Path) -> None:
    """Its cells are read as if they were outside a table."""
    assert document(tmp_path, LAYOUT)[1] == [
        TextBlock("menu"),
        *(TextBlock(text, "Title") for text in ("", "One.", "Two.")),
    ]


@pytest.mark.parametrize(
    ("content", "title"),
    [
        ("<h2>First</h2><h1>Second</h1>", "First"),
        ("<title> \n</title><p>text", "page"),
        ("<title>untitled</title><h1>Real</h1>", "Real"),
        ("", "page"),
    ],
)
def test_the_title_of_a_page_has_three_sources(tmp_path: Path, content: str, title: str) -> None:
    """The title is the page's title, else the first heading, else the file's name."""
    assert document(tmp_path, content)[0] == title


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (META.encode("cp1251"), ["Да"]),
        (META.encode(), ["Да"]),
        (b'<meta charset="no-such"><p>caf\xe9', ["café"]),
        (XHTML.encode("latin-1"), ["é", "x"]),
        ("<div>" * 1000 + "deep" + "</div>" * 1000 + "<p>after", ["deep", "after"]),
    ],
)
def test_pages_with_declared_encoding_or_deep_nesting_are_read(
    tmp_path: Path, content: str | bytes, texts: list[str]
) -> None:
    """The declared encoding is used if the page is not UTF-8; a thousand nested elements are
    read.
    """
    assert [block.text for block in document(tmp_path, content)[1]] == texts


def test_deep_nesting_is_refused_before_it_costs_text(tmp_path: Path) -> None:
    """A parser that stops in the middle does not count as the end of the page."""
    with pytest.raises(
        BadDocument, match=r"page\.html: is nested too deeply; save it as plain text"
    ):
        document(tmp_path, "<div>" * 100_000 + "deep" + "</div>" * 100_000 + "<p>after")


def test_markdown_becomes_blocks_under_headings(tmp_path: Path) -> None:
    """Emphasis and links are resolved, tables and listings are kept, and HTML is read as such."""
    manual = ("", "Some text with a link, in two lines.")
    set_up = ("", "a | b", "1 | 2", "if x:\n    y()", "in HTML")
    assert document(tmp_path, NOTES, "notes.md") == (
        "Manual",
        [
            *(TextBlock(text, "Manual") for text in manual),
            *(TextBlock(text, "Set-up") for text in set_up),
        ],
    )


@pytest.mark.parametrize(
    ("front", "title"),
    [
        ('---\ntitle: "A: b"\ntags: [x]\n---\n', "A: b"),
        (f"---\ntitle: A{' ' * 60_000}b\n---\n", "A b"),
        ("+++\ntitle = 'C'\n+++\n", "C"),
        ("---\r\ndraft: true\r\n---\r\n", "Heading"),
        ("---\n---\n", "Heading"),
    ],
)
def test_front_matter_is_no_text(tmp_path: Path, front: str, title: str) -> None:
    """Front matter may contain the title."""
    parsed = document(tmp_path, f"{front}# Heading\n\ntext\n", "notes.md")
    assert parsed == (title, [TextBlock("", "Heading"), TextBlock("text", "Heading")])


def test_a_rule_is_no_front_matter(tmp_path: Path) -> None:
    """A document may begin with a line of dashes."""
    blocks = document(tmp_path, "---\n\nfirst\n\nsecond\n", "notes.md")[1]
    assert [block.text for block in blocks] == ["first", "second"]


MENTIONS = (
    "<script> <title> <textarea> <style> <xmp> <plaintext> <noscript> <iframe> <svg> "
    "<![CDATA[ <?php <!-- <template> "
    "<nav> <select> <noembed> <noframes> <frameset> <main> <object> <script <a <!doctype "
    "<String> <SCRIPT> <script/>"
).split()
PLACES = (
    "FIRST the {} thing SECOND.",
    "{} thing FIRST SECOND",
    "FIRST\n\n{}\nSECOND",
    "FIRST\n\n{}\n\nSECOND",
    "FIRST `{}` SECOND",
    "FIRST\n\n```\n{}\n```\n\nSECOND",
    "# FIRST {} h\n\nSECOND",
    "- FIRST\n- {} x\n- SECOND",
    "> FIRST {}\n\nSECOND",
    "| FIRST | b |\n|-|-|\n| {} | SECOND |",
    "<div>\nFIRST {}\n\nSECOND",
    "FIRST {} SECOND\n\nmore </script></title></style></textarea></iframe>",
)


@pytest.mark.parametrize("mention", MENTIONS)
def test_a_mention_of_markup_in_markdown_loses_nothing(tmp_path: Path, mention: str) -> None:
    """The mention and all text after it are kept, and the text after it is still Markdown."""
    for place in PLACES:
        text = (
            f"{place.format(mention)}\n\n## Later\n\nTHIRD **bold**\n\n| x | y |\n|-|-|\n| 1 "
            "| 2 |\n"
        )
        blocks = document(tmp_path, text, "notes.md")[1]
        shown = "\n".join(f"{block.heading}\n{block.text}" for block in blocks)
        assert all(word in shown for word in ("FIRST", "SECOND", mention)), (place, shown)
        assert blocks[-3:] == [
            TextBlock(text, "Later") for text in ("THIRD bold", "x | y", "1 | 2")
        ], place


def test_markup_in_markdown_is_markup(tmp_path: Path) -> None:
    """Elements are read as HTML, and complete comments are left out."""
    text = (
        "<!-- a\n\nb -->\n\n10<sup>6</sup> m<br>x <b>y</b>\n\n<table>\n"
        "<tr><td>1</td><td>2</td></tr>\n</table>\n"
    )
    assert [block.text for block in document(tmp_path, text, "notes.md")[1]] == [
        "10⁶ m\nx y",
        "1 | 2",
    ]


@pytest.mark.parametrize(
    ("content", "text", "missing"),
    [
        ("<p>a<script>b<p>c", "a", "everything after an unclosed <script> in line 1"),
        ("<p>a\n<style>b<p>c", "a", "everything after an unclosed <style> in line 2"),
        ("<p>a<title>b<p>c", "a", "everything after an unclosed <title> in line 1"),
        ("<p>a<iframe>b<p>c", "a", "everything after an unclosed <iframe> in line 1"),
        ("<p>a<!-- b<p>c", "a", "everything after a comment or a tag that does not end"),
        ('<p>a<a href="b<p>c', "a", "everything after a comment or a tag that does not end"),
        ("<html><body><p>a</p></body></html>\n", "a", ""),
        ("<body><p>a</body>\n</html><!-- </html> cached --> ", "a", ""),
        ("<body><p>a</body><p>b</html>", "a b", ""),
        (
            "<p>a<!-- b</body></html>",
            "a",
            "everything after a comment or a tag that does not end",
        ),
        (
            "<p>a</body><!-- b",
            "a",
            "everything after a comment or a tag that does not end",
        ),
        ("<p>a<textarea><p>c", "a <p>c", ""),
        ("<p>a<xmp><p>c", "a <p>c", ""),
        ("<p>a<plaintext><p>c", "a <p>c", ""),
        ("<p>a <rp> b<p>c", "a b c", ""),
        ("<p>a <rt> b<p>c", "a b c", ""),
        ("<p>a<noscript><p>c", "a c", ""),
        ("<p>a<svg><text>b</text></svg><p>c", "a b c", ""),
        ("<p>a<?php b ?><p>c", "a<?php b ?> c", ""),
        ("<p>a<![CDATA[b]]><p>c", "a<![CDATA[b]]> c", ""),
        ("<h1>x</h1>side<main>a</main><footer>end", "a", "7 characters outside <main>"),
        ("side<main></main>", "side", ""),
        ("<p>a<nav>b</nav><iframe src=x></iframe><nav>c</nav>", "a", "2 <nav>, 1 <iframe>"),
        ("<frameset><frame src=x><frame src=y></frameset>", "", "2 <frame>"),
        ("<p>a<img alt='a bee'><img src=x><img alt=''>b", "a a bee b", "1 <img> without a text"),
        ("<table><tr>a<td>b</td>c<td>d</table>", "ac b | d", ""),
    ],
)
def test_unread_parts_of_a_page_are_reported(
    tmp_path: Path, content: str, text: str, missing: str
) -> None:
    """The page is read as browsers show it, and parts that are left out are named."""
    assert " ".join(block.text for block in document(tmp_path, content)[1]).strip() == text
    assert unread(tmp_path / "page.html") == missing


def test_superscripts_and_readings(tmp_path: Path) -> None:
    """Superscript digits stay separate from the number before them; readings (ruby) are left out."""
    page = (
        "<p>10<sup>6</sup> 10<sup>\N{MINUS SIGN}3</sup> 1871<sup><a href='#1'>1</a></sup> "
        "4<sup>th</sup>"
    )
    page += "<table><tr><td>m<sup>2</sup><td>7</table><p><ruby>東京<rp>(</rp><rt>とうきょう</rt><rp>)</rp></ruby>都"
    assert [block.text for block in document(tmp_path, page)[1]] == [
        "10⁶ 10⁻³ 1871¹ 4th",
        "m² | 7",
        "東京都",
    ]


@pytest.mark.parametrize(
    ("label", "encoding", "text"),
    [
        ("gb2312", "gb18030", "镕㐀𠀀"),
        ("shift_jis", "cp932", "①㈱髙"),
        ("euc-jp", "euc_jis_2004", "①㈱"),
        ("iso-8859-1", "cp1252", "“25 €”"),
        ("ks_c_5601-1987", "cp949", "똠방각하 펲시콜라"),
        ("iso-8859-9", "cp1254", "İğış"),
        ("big5", "big5hkscs", "香港嘅"),
        ("x-sjis", "cp932", "表示"),
    ],
)
def test_a_declared_encoding_is_that_of_the_web(
    tmp_path: Path, label: str, encoding: str, text: str
) -> None:
    """Declarations in `<meta>` and XML count, those in comments do not, and a byte order mark wins."""
    for start in (
        f"<meta charset='{label}'>",
        f'<meta http-equiv=Content-Type content="text/html; charset={label}">',
        f'<?xml version="1.0" encoding="{label}"?>',
        f"<!-- <meta charset=koi8-r> --><meta charset={label}>",
    ):
        page = f"{start}<p>{text}"
        assert document(tmp_path, page.encode(encoding))[1] == [TextBlock(text)], start
        assert document(tmp_path, b"\xef\xbb\xbf" + page.encode())[1] == [TextBlock(text)], start


@pytest.mark.parametrize(
    "content", [b"<meta charset=shift_jis><p>a\xff\xffb", b"<meta charset=utf-8><p>a\xffb\xff"]
)
def test_replaced_characters_are_reported(tmp_path: Path, content: bytes) -> None:
    """Characters that a wrong declaration makes undecodable are counted."""
    assert document(tmp_path, content)[1][0].text.count("\ufffd") == 2
    assert unread(tmp_path / "page.html") == "2 characters that cannot be decoded"


def test_deeply_nested_markdown_is_refused(tmp_path: Path) -> None:
    """It is not read without its inner part."""
    for text in (">" * 1000 + "x", "".join(f"{'  ' * level}- {level}\n" for level in range(200))):
        with pytest.raises(BadDocument, match=r"notes\.md: is nested too deeply"):
            document(tmp_path, text, "notes.md")


@pytest.mark.parametrize(
    "title",
    (
        "(anonymous)|untitled|Untitled-1|Untitled Document|Microsoft Word - x.docx|Document1|无标题|"
        "PowerPoint Presentation|无标题文档|無題ドキュメント|Slide 1|index|New Page 2|Sin título|"
        "Document sans titre|Без названия|Dokument 1|Title|-"
    ).split("|"),
)
def test_a_default_title_is_ignored(tmp_path: Path, title: str) -> None:
    """The first heading that is no default is the title, else the file's name."""
    assert (
        document(tmp_path, f"<title>{title}</title><h1>{title}</h1>", "report.html")[0] == "report"
    )
    assert document(tmp_path, f"<title>{title}</title><h1>Bees</h1>")[0] == "Bees"


@pytest.mark.parametrize(
    "title", ["1984", "C++", "Book 1", "Documents of 1848", "The Unknown Soldier", "Slide rule"]
)
def test_a_title_may_contain_the_words_of_default_titles(tmp_path: Path, title: str) -> None:
    assert document(tmp_path, f"<title>{title}</title>")[0] == title
