"""From a source to its passages."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from router.errors import BadDocument
from router.passage import Passage
from serving.documents.batch import batches
from serving.documents.cutter import Cutter
from serving.documents.document import Block, Document
from serving.documents.kind import kind_of
from serving.documents.reading import guarded, read_document
from serving.documents.rows import read_rows
from serving.documents.source import Source

__all__ = ["Cutter", "read_passages"]


def read_passages(source: Source, cutter: Cutter) -> Iterator[Passage]:
    """The passages in order, read as they are asked for; memory does not grow with the number of rows or pages.

    Ids are `name#n`, n from 1, and those of rows their own. Raises `BadDocument` or `BadCorpus` where the source
    cannot be read, `BadConfig` where a package for it is missing, and what `cutter.count_tokens` raises.
    """
    path = Path(source.path)
    if kind_of(path) == "rows":
        for batch in batches(guarded(path, read_rows(path)), lambda row: len(row.text)):
            fits = cutter.fit([f"{row.title}\n{row.text}" for row in batch])
            for row, whole in zip(batch, fits, strict=True):
                yield from [row] if whole else _cut_row(row, cutter)
        return
    number = 0
    for number, piece in enumerate(cutter.cut(read_document(path)), 1):
        yield Passage(f"{source.name}#{number}", piece.title, piece.text, document=source.name, page=piece.page)
    if not number:
        raise BadDocument(f"{path}: holds no text; leave it out.")


def _cut_row(row: Passage, cutter: Cutter) -> Iterator[Passage]:
    pieces = cutter.cut(Document(row.title, [Block(row.text)]))
    for number, piece in enumerate(pieces, 1):
        yield msgspec.structs.replace(row, id=f"{row.id}#{number}", title=piece.title, text=piece.text)
