"""A corpus: a file of JSON lines, each a passage `{"id": …, "title": …, "text": …}`."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from router.errors import BadCorpus
from router.passage import Passage


class _Row(msgspec.Struct, frozen=True):
    id: str
    text: str
    title: str = ""


_decoder = msgspec.json.Decoder(_Row)


def read_corpus(path: Path) -> Iterator[Passage]:
    """The passages in order, read as they are asked for; blank lines are skipped, a title may be missing.

    Raises `BadCorpus`, with file and line, at the first row that cannot be used.
    """
    lines: dict[str, int] = {}
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.isspace():
                    continue
                row = _decoded(line, f"{path}:{number}")
                if (first := lines.setdefault(row.id, number)) != number:
                    raise BadCorpus(f"{path}:{number}: id {row.id!r} is already in line {first}; ids must be unique.")
                yield Passage(row.id, row.title, row.text)
    except OSError as error:
        raise BadCorpus(f"{path}: cannot be read ({error.strerror}); give a file of JSON lines.") from error
    if not lines:
        raise BadCorpus(f'{path}: no rows; write one {{"id": …, "title": …, "text": …}} a line.')


def _decoded(line: bytes, where: str) -> _Row:
    try:
        line.decode()
        row = _decoder.decode(line)
    except UnicodeDecodeError as error:
        raise BadCorpus(f"{where}: not UTF-8 at byte {error.start + 1}; save the file as UTF-8.") from error
    except msgspec.ValidationError as error:
        raise BadCorpus(f"{where}: {error}; a row needs the strings id and text, and may have a title.") from error
    except msgspec.DecodeError as error:
        raise BadCorpus(f"{where}: not JSON ({error}); write one JSON object a line.") from error
    for name, value in (("id", row.id), ("text", row.text)):
        if not value.strip():
            raise BadCorpus(f"{where}: {name} is empty; fill it in or remove the row.")
    return row
