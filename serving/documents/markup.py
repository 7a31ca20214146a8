"""Read HTML and Markdown. Markdown is first converted to HTML."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from router.errors import BadDocument
from serving.documents.document import (
    MAX_MARKUP_BYTES,
    Document,
    TextBlock,
    first_heading,
    raised,
    read_content,
    title_of,
    unread_parts,
)
from serving.documents.metadata import metadata_of
from serving.documents.text import decode, web_encoding

_DROPPED = frozenset("script style nav template title iframe metadata rt rp annotation".split())
_NAMED = frozenset("nav template iframe frame object embed video audio canvas".split())
"""Elements that are reported as not read. `nav` and `template` are reported only if they contain
text.
"""
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd "
    "label mark meter output q ruby rp "
    "rt s samp small span strike strong sub sup time tspan tt u var wbr".split()
)
_HEADINGS = frozenset("h1 h2 h3 h4 h5 h6".split())
_BLOCKS = (
    "address article aside blockquote body caption center col colgroup dd details dl dt fieldset "
    "figcaption figure footer form header hr html legend picture pre section source summary table "
    "tbody td tfoot th thead tr"
)
_PREFORMATTED = frozenset(("pre", "textarea"))
_CHARSET = re.compile(
    rb"""<meta[^>]+?\bcharset\s*=\s*["']?\s*([\w.:-]+)|^<\?xml[^>]+encoding=["']([\w.:-]+)""",
    re.I,
)
_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\n(.*?\n)?\1[ \t]*(?:\n|$)", re.S)
_MAX_NESTING = 100
"""Max nesting depth of lists and quotes in Markdown. A document with deeper nesting is refused."""
_COMMENT = re.compile(rb"<!--.*?(?:-->|$)", re.S)
_SECTION = re.compile(r"<(?=!\[CDATA\[|\?(?!xml))")
"""Matches the beginning of a CDATA section, or of server-side code. Both are read as text."""
_END = "\U0010fffd\U0010fffd"
"""Marker that is added at the end of a page. The parser has read the whole page only if a text
contains the marker.
"""
_CLOSING_TAG = re.compile("</(?:body|html)", re.I)
_CLOSING = re.compile(
    r"</(?:body|html)\s*+>(?:\s|</html\s*+>|<!--(?:(?!-->).)*+-->)*+\Z", re.I | re.S
)
"""Matches the closing tags at the end of a page, with comments between them."""
_MAX_FRONT_CHARS = 64 << 10


def read_html(path: Path) -> Document:
    """Read an HTML page. The title is the content of `<title>`, or else the first heading. Raises
    `BadDocument` for a page that is large, binary or too deeply nested, and `OSError`.
    """
    content = read_content(path, MAX_MARKUP_BYTES)
    return read_page(decode(content, path, _declared(content)), path)


def read_markdown(path: Path) -> Document:
    """Read a Markdown file. The title is the title in the front matter, or else the first heading.
    Raises `BadDocument` for a file that is large, binary or too deeply nested, and `OSError`.
    """
    from markdown_it import MarkdownIt
    from yaml import YAMLError

    text = decode(read_content(path, MAX_MARKUP_BYTES), path).replace("\r\n", "\n")
    about = dict[str, Any]()
    if front := _FRONT_MATTER.match(text[:_MAX_FRONT_CHARS]):
        load = tomllib.loads if front[1] == "+++" else _yaml
        with suppress(ValueError, YAMLError, RecursionError):
            about = load(front[2] or "")
            text = text[front.end() :]

    parser = MarkdownIt("commonmark", {"maxNesting": _MAX_NESTING})
    parser.enable(["table", "strikethrough"])
    parser.block.ruler.at(
        "html_block", _html_block, {"alt": ["paragraph", "reference", "blockquote"]}
    )
    parser.add_render_rule("html_block", _rendered)
    parser.add_render_rule("html_inline", _rendered)
    tokens = parser.parse(text)
    if any(token.level >= _MAX_NESTING - 1 for token in tokens):
        raise _too_deep(path)
    html = parser.renderer.render(tokens, parser.options, {})
    metadata = metadata_of(about)
    return read_page(html, path, metadata.title)._replace(metadata=metadata)


def _yaml(text: str) -> dict[str, Any]:
    """Return the fields of front matter in YAML. Raises `ValueError` if the YAML is not a mapping,
    and `YAMLError` or `RecursionError` if it cannot be parsed.
    """
    from yaml import BaseLoader

    # This loader creates only texts, lists and mappings
    fields = BaseLoader(text).get_single_data() or {}
    if not isinstance(fields, dict):
        raise ValueError("no fields")
    return fields


def _no_markup(names: str) -> re.Pattern[str]:
    """Return a pattern that matches each `<` that is text: it begins neither a complete comment nor
    a complete tag with one of the names in `names`.
    """
    attribute = r"""\s++[^\s"'<>/=]++(?:\s*+=\s*+(?:"[^"<]*+"|'[^'<]*+'|[^\s"'=<>`]++))?+"""
    return re.compile(
        rf"<(?!/?(?:{'|'.join(names.split())})(?:{attribute})*+\s*+/?>|!--(?:(?!<!--).)*?-->)",
        re.I | re.S,
    )


_NO_MARKUP = {
    "html_inline": _no_markup(f"{' '.join(_INLINE)} br div li ol p ul"),
    "html_block": _no_markup(f"{' '.join(_INLINE | _HEADINGS)} br div li ol p ul {_BLOCKS}"),
}
"""Patterns by type of Markdown token. They match a `<` that is text, as in a sentence about
`<script>`.
"""


def _html_block(
    state: Any,
    start: int,
    end: int,
    silent: bool,
) -> bool:
    """Parse an HTML block, as a rule of markdown-it. Return False if the lines do not begin with
    markup, and so belong to a paragraph.
    """
    from markdown_it.rules_block import html_block

    first = state.bMarks[start] + state.tShift[start]
    is_text = _NO_MARKUP["html_block"].match(state.src, first)
    return not is_text and html_block(state, start, end, silent)


def _rendered(
    _renderer: Any,
    tokens: Any,
    index: int,
    _options: Any,
    _env: Any,
) -> str:
    return _NO_MARKUP[tokens[index].type].sub("&lt;", tokens[index].content)


def _too_deep(path: Path) -> BadDocument:
    return BadDocument(f"{path}: is nested too deeply; save it as plain text, or leave it out.")


def _declared(content: bytes) -> str | None:
    """Return Python's name of the encoding that the page declares; None if the page declares no
    encoding, or an unknown encoding.
    """
    declaration = _CHARSET.search(_COMMENT.sub(b"", content[:2048]))
    return web_encoding((declaration[1] or declaration[2]).decode()) if declaration else None


def read_page(html: str, path: Path, title: str | None = None) -> Document:
    """Parse an HTML page. If the page has exactly one `<main>` element, and this element has text,
    only this element is read.

    Raises `BadDocument` for a page whose elements are nested too deeply.
    """
    from lxml import etree

    parser = etree.HTMLParser(
        encoding="utf-8",
        huge_tree=True,
        remove_comments=True,
        remove_pis=True,
    )
    page = _with_end(_SECTION.sub("&lt;", html))
    root = etree.fromstring(page.encode("utf-8", "replace"), parser) if html.strip() else None
    if any("depth" in entry.message for entry in parser.error_log):
        raise _too_deep(path)
    if root is None:
        return Document(title_of(path, title), [])

    walk = _Walk(root, etree)
    blocks = list(walk.blocks())
    mains = root.findall(".//main")
    if len(mains) == 1 and (inside := list(_Walk(mains[0], etree).blocks())):
        if outside := _chars(blocks) - _chars(inside):
            walk.unread["characters outside <main>"] = outside
        blocks = inside

    if not walk.unread.pop(_END, 0):
        walk.unread["everything after a comment or a tag that does not end"] = 0
    page_title = (root.findtext(".//title") or "").partition(_END)[0]
    given = {
        element.get("name", "").lower(): element.get("content") for element in root.iter("meta")
    }
    return Document(
        title_of(path, title, page_title, first_heading(blocks)),
        [*blocks, *unread_parts(walk.unread)],
        metadata_of(given),
    )


def _with_end(html: str) -> str:
    """Return the page with `_END` at the end of its body. `_END` is put before the closing tags,
    because libxml2 drops text after `</html>`.
    """
    last = {tag[0].lower(): tag.start() for tag in _CLOSING_TAG.finditer(html)}
    ends = (start for start in last.values() if _CLOSING.match(html, start))
    place = min(ends, default=len(html))
    return html[:place] + _END + html[place:]


def read_tree(root: Any) -> list[TextBlock]:
    """Return the blocks of an lxml tree whose elements have the names of HTML elements."""
    from lxml import etree

    return list(_Walk(root, etree).blocks())


def _chars(blocks: Iterable[TextBlock]) -> int:
    return sum(len(block.text) for block in blocks)


class _Walk:
    """Converts a tree to blocks: a block for each heading, paragraph, list item and table row."""

    def __init__(self, root: Any, etree: Any) -> None:
        self._root = root
        self._etree = etree
        self.unread: Counter[str] = Counter()
        """Number of parts that are not read, by kind. The key `_END` is present if the end of the
        page was seen.
        """
        self._parts = list[str]()
        self._heading: str | None = None
        self._preformatted = 0
        self._raised = 0

    def blocks(self) -> Iterator[TextBlock]:
        """Yield the blocks of the tree."""
        walk = self._etree.iterwalk(self._root, events=("start", "end"))
        for event, element in walk:
            if event == "end":
                yield from self._leave(element)
            elif element.tag in _DROPPED and self._drop(element):
                walk.skip_subtree()
            elif element.tag == "tr" and _has_values(element):
                walk.skip_subtree()
                yield from self._row(element)
            else:
                yield from self._enter(element)

    def _drop(self, element: Any) -> bool:
        """Return True if an element is left out. If people who read the page would see the
        element's content, count the element in `unread`.
        """
        if element.tag in ("rt", "rp") and element.getparent().tag not in (
            "ruby",
            "rtc",
        ):
            return False
        text = "".join(element.itertext())
        if _END in text:
            self.unread[_END] = 1
            place = f"<{element.tag}> in line {element.sourceline}"
            self.unread[f"everything after an unclosed {place}"] = 0
        elif element.tag == "iframe" or (element.tag in _NAMED and text.strip()):
            self.unread[f"<{element.tag}>"] += 1
        return True

    def _enter(self, element: Any) -> Iterator[TextBlock]:
        if element.tag == "br":
            self._parts.append("\n")
        elif element.tag not in _INLINE:
            yield from self._block()
        self._preformatted += element.tag in _PREFORMATTED
        self._raised += element.tag == "sup"
        if element.tag in _NAMED:
            self.unread[f"<{element.tag}>"] += 1
        if element.tag == "img":
            self._add(f" {element.get('alt', '')} ")
            if element.get("alt") is None:
                self.unread["<img> without a text"] += 1
        self._add(element.text)

    def _leave(self, element: Any) -> Iterator[TextBlock]:
        if element.tag in _HEADINGS:
            if heading := " ".join("".join(self._parts).rstrip("¶ \n").split()):
                self._heading = heading
                yield TextBlock("", heading)
            self._parts.clear()
        elif element.tag not in _INLINE and element.tag != "br":
            yield from self._block()
        self._preformatted -= element.tag in _PREFORMATTED
        self._raised -= element.tag == "sup"
        if element is not self._root:
            self._add(element.tail)

    def _row(self, row: Any) -> Iterator[TextBlock]:
        yield from self._block()
        self._add(row.text)
        cells = list[str]()
        for cell in row:
            walk = _Walk(cell, self._etree)
            cells.append(" ".join(block.text for block in walk.blocks()))
            self.unread.update(walk.unread)
            self._add(cell.tail)
        yield from self._block()
        if (text := " | ".join(cells)).strip(" |"):
            yield TextBlock(text, self._heading)

    def _block(self) -> Iterator[TextBlock]:
        text = "".join(self._parts)
        self._parts.clear()
        if not self._preformatted:
            text = re.sub(r" *\n *", "\n", re.sub(r" {2,}", " ", text))
        if text.strip():
            yield TextBlock(text.strip("\n" if self._preformatted else None), self._heading)

    def _add(self, text: str | None) -> None:
        if not text:
            return
        if _END in text:
            self.unread[_END] = 1
            text = text.replace(_END, "")
        if self._raised:
            text = raised(text)
        self._parts.append(text if self._preformatted else re.sub(r"\s+", " ", text))


def _has_values(row: Any) -> bool:
    """Return True if a table row has values, False if its table only arranges other content on the
    page.
    """
    return len(row) > 1 and next(row.iter("table", *_HEADINGS), None) is None
