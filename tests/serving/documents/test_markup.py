"""HTML and Markdown become blocks under headings."""

from pathlib import Path

import pytest

from router.errors import BadDocument
from serving.documents.document import Block
from tests.serving.documents.conftest import read

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
XHTML = '<?xml version="1.0" encoding="ISO-8859-1"?><html xmlns="http://www.w3.org/1999/xhtml"><p>é</p><br/>x</html>'


def document(tmp_path: Path, content: str | bytes, name: str = "page.html") -> tuple[str, list[Block]]:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return read(tmp_path / name)


def test_a_page_becomes_blocks_under_headings(tmp_path: Path) -> None:
    """A block for each heading, paragraph, row, list item and listing; cells are parted, scripts and menus dropped."""
    bees = ("", "A colony has one queen, and many drones.", "H2O < café\nnext line")
    numbers = ("", "Kind | Count", "Queen | 1", "nectar", "pollen", "def f():\n    return 1")
    assert document(tmp_path, PAGE) == (
        "Bees & wasps",
        [*(Block(text, "Honey bees") for text in bees), *(Block(text, "Numbers") for text in numbers)],
    )


def test_a_table_for_the_layout_is_no_table_of_values(tmp_path: Path) -> None:
    """Its cells are read as if they stood outside."""
    assert document(tmp_path, LAYOUT)[1] == [Block("menu"), *(Block(text, "Title") for text in ("", "One.", "Two."))]


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
def test_texts_of_a_page(tmp_path: Path, content: str | bytes, texts: list[str]) -> None:
    """Decoded as it says, where it is not UTF-8 after all; a thousand elements in each other are nothing."""
    assert [block.text for block in document(tmp_path, content)[1]] == texts


def test_deep_nesting_is_refused_before_it_costs_text(tmp_path: Path) -> None:
    """A parser that gives up in the middle must not look like the end of the page."""
    with pytest.raises(BadDocument, match=r"page\.html: its elements are nested too deeply; save it as text"):
        document(tmp_path, "<div>" * 100_000 + "deep" + "</div>" * 100_000 + "<p>after")


def test_markdown_becomes_blocks_under_headings(tmp_path: Path) -> None:
    """Emphasis and links are resolved, tables and listings are kept, HTML inside is HTML."""
    manual = ("", "Some text with a link, in two lines.")
    set_up = ("", "a | b", "1 | 2", "if x:\n    y()", "in HTML")
    assert document(tmp_path, NOTES, "notes.md") == (
        "Manual",
        [*(Block(text, "Manual") for text in manual), *(Block(text, "Set-up") for text in set_up)],
    )


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
    found = document(tmp_path, f"{front}# Heading\n\ntext\n", "notes.md")
    assert found == (title, [Block("", "Heading"), Block("text", "Heading")])


def test_a_rule_is_no_front_matter(tmp_path: Path) -> None:
    """A document may begin with a line of dashes."""
    blocks = document(tmp_path, "---\n\nfirst\n\nsecond\n", "notes.md")[1]
    assert [block.text for block in blocks] == ["first", "second"]
