"""Read PPTX: the slides in order, with their notes."""

import io
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serving.documents.document import Document, TextBlock, packed_document, read_archive

_NOT_READ = {"PICTURE": "pictures", "CHART": "charts", "MEDIA": "media", "DIAGRAM": "diagrams"}
_FILE_NAME = re.compile(r"\A\S+\.\w{3,4}\Z")
"""Matches a picture's description that is only a file name."""
_EMBEDDED = ("EMBEDDED_OLE_OBJECT", "LINKED_OLE_OBJECT")


def read_pptx(path: Path) -> Document:
    """Read a presentation. Its title is the title property, or else the first heading. Raises
    `BadDocument` for a large, encrypted or damaged file, and `OSError`.
    """
    from pptx.package import Package

    content = read_archive(path, "PPTX")
    package: Any = Package.open(io.BytesIO(content))
    file = package.presentation_part.presentation  # `pptx.Presentation` refuses slide shows (.ppsx)
    blocks = list[TextBlock]()
    unread: Counter[str] = Counter()
    for number, slide in enumerate(file.slides, 1):
        title = slide.shapes.title
        heading = " ".join(title.text_frame.text.split()) if title is not None else ""
        texts = [text for shape in slide.shapes for text in _texts(shape, unread)]
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            texts.append(slide.notes_slide.notes_text_frame.text)
        place = f"slide {number}"
        own = [
            TextBlock(text.replace("\v", "\n"), heading or None, location=place)
            for text in texts
            if text.strip() and " ".join(text.split()) != heading
        ]
        if heading and not own:
            own.append(TextBlock("", heading, location=place))
        blocks += own
    return packed_document(path, content, blocks, unread)


def _texts(shape: Any, unread: Counter[str]) -> Iterator[str]:
    """Yield the texts of a shape and of nested shapes, and a text for each row of a table.
    `unread`: number of parts that are not read, by kind; the function increases these numbers.
    """
    kind = shape.shape_type.name if shape.shape_type is not None else ""
    if kind == "GROUP":
        for inner in shape.shapes:
            yield from _texts(inner, unread)
    elif shape.has_table:
        for row in shape.table._tbl.tr_lst:  # `Table.rows` searches the table again for each row
            yield " | ".join(" ".join(cell.text.split()) for cell in row.tc_lst)
    elif shape.has_text_frame:
        yield shape.text_frame.text
    elif kind in _EMBEDDED:
        unread["embedded objects"] += 1
    elif kind in _NOT_READ or getattr(shape, "has_chart", False):
        described = _FILE_NAME.sub("", shape._element._nvXxPr.cNvPr.get("descr", ""))
        if not described:
            unread[_NOT_READ.get(kind, "charts")] += 1
        yield described
