"""The documents of an index: which file gave which passages, and when it was read."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from serving.documents.source import Source

DOCUMENTS = "documents.jsonl"


class DocumentEntry(msgspec.Struct, frozen=True):
    """One source as it was when it was read."""

    source: Source
    first_row: int
    """Its passages are the rows from here on."""
    passages: int
    error: str = ""
    """Why it could not be read; then it has no passages."""
    settled: bool = False
    """Whether it cannot be read as long as no file changes."""


def write_table(folder: Path, entries: Sequence[DocumentEntry]) -> None:
    """Write one line for each source."""
    lines = (json.dumps(msgspec.to_builtins(entry)) + "\n" for entry in entries)  # paths need not be UTF-8
    (folder / DOCUMENTS).write_text("".join(lines), "ascii")


def read_table(folder: Path) -> list[DocumentEntry]:
    """The entries in the order of their passages. Raises `OSError`, `ValueError` and `msgspec.ValidationError`."""
    lines = (folder / DOCUMENTS).read_bytes().split(b"\n")
    return [msgspec.convert(json.loads(line), DocumentEntry) for line in lines if line]


def same_sources(entries: Iterable[DocumentEntry], sources: Sequence[Source]) -> bool:
    """Whether the very same files were read, by name, size and time of change."""
    return [entry.source for entry in entries] == list(sources)
