"""HTML, and Markdown by way of it."""

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from router.errors import BadDocument
from serving.documents.document import MAX_MARKUP_BYTES, Block, Document, read_content, title_of
from serving.documents.text import decode

_DROPPED = frozenset("script style nav template noscript title svg iframe".split())
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd label mark meter output q ruby rp "
    "rt s samp small span strike strong sub sup time tt u var wbr".split()
)
_HEADINGS = frozenset("h1 h2 h3 h4 h5 h6".split())
_PREFORMATTED = frozenset(("pre", "textarea"))
_CHARSET = re.compile(rb"""<meta[^>]+charset\s*=\s*["']?\s*([\w.:-]+)|^<\?xml[^>]+encoding=["']([\w.:-]+)""", re.I)
_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\n(.*?\n)?\1[ \t]*(?:\n|$)", re.S)
_FRONT_TITLE = re.compile(r"""^title[ \t]*[:=][ \t]*(?:(["'])(.+)\1[ \t]*|(\S.*))$""", re.M)


def read_html(path: Path) -> Document:
    """The title is that of the page, or its first heading. Raises `BadDocument`, and `OSError`."""
    content = read_content(path, MAX_MARKUP_BYTES)
    return _document(decode(content, path, _declared(content)), path)


def read_markdown(path: Path) -> Document:
    """The title is that of the front matter, or the first heading. Raises `BadDocument`, and `OSError`."""
    from markdown_it import MarkdownIt

    text = decode(read_content(path, MAX_MARKUP_BYTES), path).replace("\r\n", "\n")
    front = _FRONT_MATTER.match(text)
    title = _FRONT_TITLE.search(front[2] or "") if front else None
    parser = MarkdownIt("commonmark", {"maxNesting": 100}).enable(["table", "strikethrough"])
    return _document(
        parser.render(text[front.end() :] if front else text), path, (title[2] or title[3]) if title else None
    )


def _declared(content: bytes) -> str | None:
    """The encoding that the page itself names, if there is such a one."""
    if not (found := _CHARSET.search(content[:2048])):
        return None
    try:
        return codecs.lookup((found[1] or found[2]).decode()).name
    except LookupError:
        return None


def _document(html: str, path: Path, title: str | None = None) -> Document:
    from lxml import etree

    parser = etree.HTMLParser(encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True)
    root = etree.fromstring(html.encode("utf-8", "replace"), parser) if html.strip() else None
    if any("depth" in entry.message for entry in parser.error_log):
        raise BadDocument(f"{path}: its elements are nested too deeply; save it as text, or leave it out.")
    if root is None:
        return Document(title_of(path, title), [])
    main = root.findall(".//main")
    blocks = list(_Walk(main[0] if len(main) == 1 else root, etree).blocks())
    first = next((block.heading for block in blocks if block.heading), None)
    return Document(title_of(path, title, root.findtext(".//title"), first), blocks)


class _Walk:
    """Goes through a tree and gives a block for each heading, paragraph, list item and row of a table."""

    def __init__(self, root: Any, etree: Any) -> None:
        self._root, self._etree = root, etree
        self._parts: list[str] = []
        self._heading: str | None = None
        self._preformatted = 0

    def blocks(self) -> Iterator[Block]:
        walk = self._etree.iterwalk(self._root, events=("start", "end"))
        for event, element in walk:
            if event == "end":
                yield from self._leave(element)
            elif element.tag in _DROPPED:
                walk.skip_subtree()
            elif element.tag == "tr" and _is_plain(element):
                walk.skip_subtree()
                yield from self._row(element)
            else:
                yield from self._enter(element)

    def _enter(self, element: Any) -> Iterator[Block]:
        if element.tag == "br":
            self._parts.append("\n")
        elif element.tag not in _INLINE:
            yield from self._block()
        self._preformatted += element.tag in _PREFORMATTED
        self._add(element.text)

    def _leave(self, element: Any) -> Iterator[Block]:
        if element.tag in _HEADINGS:
            if heading := " ".join("".join(self._parts).rstrip("¶ \n").split()):
                self._heading = heading
                yield Block("", heading)
            self._parts.clear()
        elif element.tag not in _INLINE and element.tag != "br":
            yield from self._block()
        self._preformatted -= element.tag in _PREFORMATTED
        if element is not self._root:
            self._add(element.tail)

    def _row(self, row: Any) -> Iterator[Block]:
        yield from self._block()
        cells = (" ".join(block.text for block in _Walk(cell, self._etree).blocks()) for cell in row)
        if (text := " | ".join(cells)).strip(" |"):
            yield Block(text, self._heading)

    def _block(self) -> Iterator[Block]:
        text = "".join(self._parts)
        self._parts.clear()
        if not self._preformatted:
            text = re.sub(r" *\n *", "\n", re.sub(r" {2,}", " ", text))
        if text.strip():
            yield Block(text.strip("\n" if self._preformatted else None), self._heading)

    def _add(self, text: str | None) -> None:
        if text:
            self._parts.append(text if self._preformatted else re.sub(r"\s+", " ", text))


def _is_plain(row: Any) -> bool:
    """Tell a row of values from a frame around a part of the page."""
    return len(row) > 1 and next(row.iter("table", *_HEADINGS), None) is None
