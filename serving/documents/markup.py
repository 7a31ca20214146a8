"""HTML, and Markdown by way of it."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from router.errors import BadDocument
from serving.documents.document import (
    MAX_MARKUP_BYTES,
    Block,
    Document,
    Unread,
    raised,
    read_content,
    title_of,
)
from serving.documents.text import decode, web_encoding

_DROPPED = frozenset("script style nav template title iframe metadata rt rp annotation".split())
_NAMED = frozenset("nav template iframe frame object embed video audio canvas".split())
"""Elements that are named where they are not read."""
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd "
    "label mark meter output q ruby rp "
    "rt s samp small span strike strong sub sup time tspan tt u var wbr".split()
)
_HEADINGS = frozenset("h1 h2 h3 h4 h5 h6".split())
_BLOCKS = (
    "address article aside blockquote body caption center col colgroup dd details dl dt "
    "fieldset figcaption figure "
    "footer form header hr html legend picture pre section source summary table tbody td "
    "tfoot th thead tr"
)
_PREFORMATTED = frozenset(("pre", "textarea"))
_CHARSET = re.compile(
    rb"""<meta[^>]+?\bcharset\s*=\s*["']?\s*([\w.:-]+)|^<\?xml[^>]+encoding=["']([\w.:-]+)""", re.I
)
_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\n(.*?\n)?\1[ \t]*(?:\n|$)", re.S)
_NESTING = 100
"""The deepest level of Markdown that is read."""
_COMMENT = re.compile(rb"<!--.*?(?:-->|$)", re.S)
_SECTION = re.compile(r"<(?=!\[CDATA\[|\?(?!xml))")
"""The beginning of code that a server runs, or of text that is no markup."""
_END = "\U0010fffd\U0010fffd"
"""Stands at the end of a page, to be found where the page is read to its end."""
_FRONT_TITLE = re.compile(r"""^title[ \t]*[:=][ \t]*(?:(["'])(.+)\1[ \t]*|(\S.*))$""", re.M)


def read_html(path: Path) -> Document:
    """The title is that of the page, or its first heading. Raises `BadDocument`, and `OSError`."""
    content = read_content(path, MAX_MARKUP_BYTES)
    return _document(decode(content, path, _declared(content)), path)


def read_markdown(path: Path) -> Document:
    """The title is that of the front matter, or the first heading. Raises `BadDocument`, and
    `OSError`.
    """
    from markdown_it import MarkdownIt

    text = decode(read_content(path, MAX_MARKUP_BYTES), path).replace("\r\n", "\n")
    front = _FRONT_MATTER.match(text)
    title = _FRONT_TITLE.search(front[2] or "") if front else None
    parser = MarkdownIt("commonmark", {"maxNesting": _NESTING}).enable(["table", "strikethrough"])
    parser.block.ruler.at(
        "html_block", _html_block, {"alt": ["paragraph", "reference", "blockquote"]}
    )
    parser.add_render_rule("html_block", _rendered)
    parser.add_render_rule("html_inline", _rendered)
    text = text[front.end() :] if front else text
    env = {"last_comment": text.rfind("-->")}
    tokens = parser.parse(text, env)
    if any(token.level >= _NESTING - 1 for token in tokens):
        raise _too_deep(path)
    html = parser.renderer.render(tokens, parser.options, env)
    return _document(html, path, (title[2] or title[3]) if title else None)


def _no_markup(names: str) -> re.Pattern[str]:
    """Match each `<` that begins neither a whole comment nor a whole tag of these elements."""
    attribute = r"""\s++[^\s"'<>/=]++(?:\s*+=\s*+(?:"[^"<]*+"|'[^'<]*+'|[^\s"'=<>`]++))?+"""
    return re.compile(
        rf"<(?!/?(?:{'|'.join(names.split())})(?:{attribute})*+\s*+/?>|!--(?:(?!<!--).)*?-->)",
        re.I | re.S,
    )


_TEXT = {
    "html_inline": _no_markup(f"{' '.join(_INLINE)} br div li ol p ul"),
    "html_block": _no_markup(f"{' '.join(_INLINE | _HEADINGS)} br div li ol p ul {_BLOCKS}"),
}
"""What is no markup in Markdown, but a mention of it."""


def _html_block(state: Any, start: int, end: int, silent: bool) -> bool:
    """Parse a block of HTML where it begins with markup; a mention is a part of a paragraph."""
    from markdown_it.rules_block import html_block

    at = state.bMarks[start] + state.tShift[start]
    if state.src.startswith("<!--", at):
        is_markup = at < state.env["last_comment"]
    else:
        is_markup = not _TEXT["html_block"].match(state.src, at, state.eMarks[start])
    return is_markup and html_block(state, start, end, silent)


def _rendered(_renderer: Any, tokens: Any, index: int, _options: Any, _env: Any) -> str:
    return _TEXT[tokens[index].type].sub("&lt;", tokens[index].content)


def _too_deep(path: Path) -> BadDocument:
    return BadDocument(
        f"{path}: its elements are nested too deeply; save it as text, or leave it out."
    )


def _declared(content: bytes) -> str | None:
    """The encoding that the page itself names, if there is such a one."""
    found = _CHARSET.search(_COMMENT.sub(b"", content[:2048]))
    return web_encoding((found[1] or found[2]).decode()) if found else None


def _document(html: str, path: Path, title: str | None = None) -> Document:
    from lxml import etree

    parser = etree.HTMLParser(
        encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True
    )
    page = _SECTION.sub("&lt;", html) + _END
    root = etree.fromstring(page.encode("utf-8", "replace"), parser) if html.strip() else None
    if any("depth" in entry.message for entry in parser.error_log):
        raise _too_deep(path)
    if root is None:
        return Document(title_of(path, title), [])
    walk = _Walk(root, etree)
    blocks = list(walk.blocks())
    mains = root.findall(".//main")
    if len(mains) == 1 and (inside := list(_Walk(mains[0], etree).blocks())):
        outside = sum(len(block.text) for block in blocks) - sum(
            len(block.text) for block in inside
        )
        if outside:
            walk.left["characters outside <main>"] = outside
        blocks = inside
    first = next((block.heading for block in blocks if block.heading), None)
    own = root.findtext(".//title") or ""
    return Document(
        title_of(path, title, own.partition(_END)[0], first), [*blocks, *_unread(walk.left)]
    )


def _unread(left: Counter[str]) -> Iterator[Unread]:
    """Say what was left out, and whether the page was read to its end."""
    if not left.pop(_END, 0):
        left["everything after a comment or a tag that does not end"] += 0
    if left:
        yield Unread(", ".join(f"{count or ''} {kind}".strip() for kind, count in left.items()))


class _Walk:
    """Goes through a tree and gives a block for each heading, paragraph, list item and row of a
    table.
    """

    def __init__(self, root: Any, etree: Any) -> None:
        self._root = root
        self._etree = etree
        self.left: Counter[str] = Counter()
        """What is left out, and `_END` where that was seen."""
        self._parts: list[str] = []
        self._heading: str | None = None
        self._preformatted = 0
        self._raised = 0

    def blocks(self) -> Iterator[Block]:
        walk = self._etree.iterwalk(self._root, events=("start", "end"))
        for event, element in walk:
            if event == "end":
                yield from self._leave(element)
            elif element.tag in _DROPPED and self._drop(element):
                walk.skip_subtree()
            elif element.tag == "tr" and _is_plain(element):
                walk.skip_subtree()
                yield from self._row(element)
            else:
                yield from self._enter(element)

    def _drop(self, element: Any) -> bool:
        """Tell whether an element is left out, and note it where a reader of the page would
        miss it.
        """
        if element.tag == "rt" and element.getparent().tag not in ("ruby", "rtc"):
            return False
        text = "".join(element.itertext())
        if _END in text:
            self.left[_END] = 1
            self.left[
                f"everything after an unclosed <{element.tag}> in line {element.sourceline}"
            ] = 0
        elif element.tag == "iframe" or (element.tag in _NAMED and text.strip()):
            self.left[f"<{element.tag}>"] += 1
        return True

    def _enter(self, element: Any) -> Iterator[Block]:
        if element.tag == "br":
            self._parts.append("\n")
        elif element.tag not in _INLINE:
            yield from self._block()
        self._preformatted += element.tag in _PREFORMATTED
        self._raised += element.tag == "sup"
        if element.tag in _NAMED:
            self.left[f"<{element.tag}>"] += 1
        if element.tag == "img":
            self._add(f" {element.get('alt', '')} ")
            if element.get("alt") is None:
                self.left["<img> without a text"] += 1
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
        self._raised -= element.tag == "sup"
        if element is not self._root:
            self._add(element.tail)

    def _row(self, row: Any) -> Iterator[Block]:
        yield from self._block()
        self._add(row.text)
        cells: list[str] = []
        for cell in row:
            walk = _Walk(cell, self._etree)
            cells.append(" ".join(block.text for block in walk.blocks()))
            self.left.update(walk.left)
            self._add(cell.tail)
        yield from self._block()
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
        if not text:
            return
        if _END in text:
            self.left[_END] = 1
            text = text.replace(_END, "")
        if self._raised:
            text = raised(text)
        self._parts.append(text if self._preformatted else re.sub(r"\s+", " ", text))


def _is_plain(row: Any) -> bool:
    """Tell a row of values from a frame around a part of the page."""
    return len(row) > 1 and next(row.iter("table", *_HEADINGS), None) is None
