"""Gaps of an index: files at its places, and parts of files, that it does not contain."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from router.errors import BadIndex
from serving.retrieval.manifest import Manifest, read_manifest
from serving.retrieval.passages import DocumentEntry, read_table


class Gaps(msgspec.Struct, frozen=True):
    """Files, and parts of files, that an index does not contain."""

    files_not_read: dict[str, int]
    """As in the manifest."""
    skipped: list[dict[str, str]]
    """Files that could not be read: `name` and `error`."""
    read_in_part: list[dict[str, str]]
    """Files with unread parts: `name` and `not_read`."""

    def lines(self) -> list[str]:
        """Return a line for each file, and one for the kinds of files that were not read."""
        lines = [f"left out, the whole file: {file['error']}" for file in self.skipped]
        lines += [
            f"read in part: {file['name']}: without {file['not_read']}"
            for file in self.read_in_part
        ]
        if self.files_not_read:
            counts = ", ".join(f"{suffix} {count}" for suffix, count in self.files_not_read.items())
            lines.append(f"{sum(self.files_not_read.values())} files not read: {counts}")
        return lines


def gaps_of(manifest: Manifest, entries: Sequence[DocumentEntry]) -> Gaps:
    """Return the gaps of an index with these entries."""
    return Gaps(
        manifest.files_not_read,
        [{"name": entry.source.name, "error": entry.error} for entry in entries if entry.error],
        [
            {"name": entry.source.name, "not_read": entry.unread}
            for entry in entries
            if entry.unread
        ],
    )


def gaps_at(folder: Path) -> Gaps | None:
    """Return the gaps of the index in a folder; None if there is no readable index."""
    try:
        manifest = read_manifest(folder)
        return gaps_of(manifest, read_table(folder / manifest.generation))
    except (BadIndex, OSError, ValueError):
        return None
