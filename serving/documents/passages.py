"""From a source to its passages."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from router.errors import BadDocument
from router.protocol.evidence import Passage
from serving.documents.batch import batches
from serving.documents.cutter import Cutter
from serving.documents.document import Block, Document, Part, Row, Title
from serving.documents.kind import kind_of
from serving.documents.source import Source

__all__ = ["Cutter", "read_passages"]


def read_passages(
    source: Source, cutter: Cutter, read: Callable[[Path], Iterator[Part]]
) -> Iterator[tuple[str, Passage]]:
    """The passages of what `read` (`Reader.read`) gives, in order, each with the place that an error would name: its
    file and, where it is of a row, the line. They are read as they are asked for; memory does not grow with the number
    of rows or pages.

    Ids are `name#n`, n from 1, and those of rows their own, whose `document` is `name#id`. Raises what `read` raises,
    `BadDocument` where it gives no text, and what `cutter.count_tokens` raises.
    """
    path = Path(source.path)
    if kind_of(path) == "rows":
        for batch in batches((part for part in read(path) if isinstance(part, Row)), lambda row: row.chars):
            fits = cutter.fit([f"{row.passage.title}\n{row.passage.text}" for row in batch])
            for row, whole in zip(batch, fits, strict=True):
                named = msgspec.structs.replace(row.passage, document=f"{source.name}#{row.passage.id}")
                yield from ((row.where, passage) for passage in ([named] if whole else _cut_row(named, cutter)))
        return
    parts = read(path)
    title, number = next(parts), 0
    assert isinstance(title, Title)
    document = Document(title.text, (part for part in parts if isinstance(part, Block)))
    for number, piece in enumerate(cutter.cut(document), 1):
        passage_id = f"{source.name}#{number}"
        yield source.path, Passage(passage_id, piece.title, piece.text, document=source.name, page=piece.page)
    if not number:
        raise BadDocument(f"{path}: holds no text; leave it out.")


def _cut_row(row: Passage, cutter: Cutter) -> Iterator[Passage]:
    pieces = cutter.cut(Document(row.title, [Block(row.text)]))
    for number, piece in enumerate(pieces, 1):
        yield msgspec.structs.replace(row, id=f"{row.id}#{number}", title=piece.title, text=piece.text)
