from pathlib import Path

import pytest

from router.errors import BadDocument
from serving.documents.document import Block, Document
from serving.documents.markup import read_html, read_markdown

PAGE = """<!DOCTYPE html><html><head><title>Bees &amp; wasps</title><style>p {}</style></head><body>
<nav><p>Home</p></nav><script>var x = "<p>no</p>";</script><template>no</template>
<h1>Honey&nbsp;bees</h1><p>A colony has <b>one</b> queen,
and <i>many</i>   workers.<p>H<sub>2</sub>O &lt; caf&eacute;<br>next line
<h2>Numbers <a href="#n">¶</a></h2>
<table><thead><tr><th>Kind<th>Count</tr></thead><tr><td>Queen<td><p>1</p></tr><tr><td></td><td></td></tr></table>
<ul><li>nectar</li><li>pollen</li></ul><pre>def f():
    return 1</pre><!-- no --></body></html>"""


def html(tmp_path: Path, content: str | bytes) -> Document:
    path = tmp_path / "page.html"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_html(path)


def markdown(tmp_path: Path, content: str) -> Document:
    path = tmp_path / "notes.md"
    path.write_text(content, "utf-8")
    return read_markdown(path)


def test_a_page_becomes_blocks_under_headings(tmp_path: Path) -> None:
    """A block for each heading, paragraph, row, list item and listing; cells are parted, scripts and menus dropped."""
    document = html(tmp_path, PAGE)

    assert document.title == "Bees & wasps"
    assert list(document.blocks) == [
        Block("", "Honey bees"),
        Block("A colony has one queen, and many workers.", "Honey bees"),
        Block("H2O < café\nnext line", "Honey bees"),
        Block("", "Numbers"),
        Block("Kind | Count", "Numbers"),
        Block("Queen | 1", "Numbers"),
        Block("nectar", "Numbers"),
        Block("pollen", "Numbers"),
        Block("def f():\n    return 1", "Numbers"),
    ]


def test_a_table_for_the_layout_is_no_table_of_values(tmp_path: Path) -> None:
    """What stands in its cells is read as if it stood outside."""
    document = html(tmp_path, "<table><tr><td>menu</td><td><h1>Title</h1><p>One.</p><p>Two.</p></td></tr></table>")

    assert list(document.blocks) == [
        Block("menu"),
        Block("", "Title"),
        Block("One.", "Title"),
        Block("Two.", "Title"),
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
def test_the_title_of_a_page(tmp_path: Path, content: str, title: str) -> None:
    """Its own, else its first heading, else the file's name."""
    assert html(tmp_path, content).title == title


def test_a_page_is_decoded_as_it_says(tmp_path: Path) -> None:
    """By the encoding in `<meta>`, where it is not UTF-8 after all."""
    page = '<meta http-equiv="Content-Type" content="text/html; charset=windows-1251"><p>Да'

    assert [block.text for block in html(tmp_path, page.encode("cp1251")).blocks] == ["Да"]
    assert [block.text for block in html(tmp_path, page.encode()).blocks] == ["Да"]
    assert [block.text for block in html(tmp_path, b'<meta charset="no-such"><p>caf\xe9').blocks] == ["café"]


def test_xhtml_with_a_declaration_is_read(tmp_path: Path) -> None:
    """As XML declares it."""
    page = '<?xml version="1.0" encoding="ISO-8859-1"?><html xmlns="http://www.w3.org/1999/xhtml"><p>é</p><br/>x</html>'

    assert [block.text for block in html(tmp_path, page.encode("latin-1")).blocks] == ["é", "x"]


def test_deep_nesting_is_refused_before_it_costs_text(tmp_path: Path) -> None:
    """A parser that gives up in the middle must not look like the end of the page."""
    with pytest.raises(BadDocument, match=r"page\.html: its elements are nested too deeply; save it as text"):
        html(tmp_path, "<div>" * 100_000 + "deep" + "</div>" * 100_000 + "<p>after")


def test_ordinary_nesting_is_read(tmp_path: Path) -> None:
    """A thousand elements in each other are nothing."""
    document = html(tmp_path, "<div>" * 1000 + "deep" + "</div>" * 1000 + "<p>after")

    assert [block.text for block in document.blocks] == ["deep", "after"]


def test_markdown_becomes_blocks_under_headings(tmp_path: Path) -> None:
    """Emphasis and links are resolved, tables and listings are kept, HTML inside is HTML."""
    document = markdown(
        tmp_path,
        "# Manual\n\nSome *text* with a [link](http://a.b),\nin `two` lines.\n\nSet-up\n------\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n```\nif x:\n    y()\n```\n\n<div>in <b>HTML</b></div>\n",
    )

    assert document.title == "Manual"
    assert list(document.blocks) == [
        Block("", "Manual"),
        Block("Some text with a link, in two lines.", "Manual"),
        Block("", "Set-up"),
        Block("a | b", "Set-up"),
        Block("1 | 2", "Set-up"),
        Block("if x:\n    y()", "Set-up"),
        Block("in HTML", "Set-up"),
    ]


@pytest.mark.parametrize(
    ("front", "title"),
    [
        ('---\ntitle: "A: b"\ntags: [x]\n---\n', "A: b"),
        (f"---\ntitle: A{' ' * 200_000}b\n---\n", "A b"),
        ("+++\ntitle = 'C'\n+++\n", "C"),
        ("---\r\ndraft: true\r\n---\r\n", "Heading"),
        ("---\n---\n", "Heading"),
    ],
)
def test_front_matter_is_no_text(tmp_path: Path, front: str, title: str) -> None:
    """It may name the title."""
    document = markdown(tmp_path, f"{front}# Heading\n\ntext\n")

    assert document.title == title
    assert list(document.blocks) == [Block("", "Heading"), Block("text", "Heading")]


def test_a_rule_is_no_front_matter(tmp_path: Path) -> None:
    """A document may begin with a line of dashes."""
    assert [block.text for block in markdown(tmp_path, "---\n\nfirst\n\nsecond\n").blocks] == ["first", "second"]
