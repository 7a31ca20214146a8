"""Find the gaps of an index. A gap is a file in the indexed folders, or a part of a file, that is
not in the index.
"""

from collections.abc import Sequence
from pathlib import Path

from router.errors import BadIndex
from router.frozen import Frozen
from serving.retrieval.manifest import Manifest, read_manifest
from serving.retrieval.passages import DocumentEntry, read_table


class Gaps(Frozen):
    """Files and parts of files that are not in an index."""

    files_not_read: dict[str, int]
    """Number of files that are not in the index, by suffix, with the most frequent suffix first."""
    skipped: list[dict[str, str]]
    """Files that could not be read. Each has the keys `name` and `error`."""
    read_in_part: list[dict[str, str]]
    """Files that were read only in part. Each has the keys `name` and `not_read`, a description of
    the parts that were not read.
    """

    def lines(self) -> list[str]:
        """Return the gaps as lines of text: a line for each file that was skipped or read in part,
        and one line with the number of unread files of each suffix.
        """
        lines = list[str]()
        for file in self.skipped:
            # An error begins with the path, which ends with the name
            _, _, reason = file["error"].partition(f"{file['name']}: ")
            lines.append(f"skipped: {file['name']}: {reason or file['error']}")
        lines += [
            f"read in part: {file['name']}: not read: {file['not_read']}"
            for file in self.read_in_part
        ]
        if self.files_not_read:
            counts = ", ".join(f"{suffix} {count}" for suffix, count in self.files_not_read.items())
            lines.append(f"{sum(self.files_not_read.values())} files not read: {counts}")
        return lines


def gaps_of(manifest: Manifest, entries: Sequence[DocumentEntry]) -> Gaps:
    """Return the gaps of an index. `entries`: the entries of all source files."""
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
    """Return the gaps of the index in `folder`; None if the folder has no index, or the index
    cannot be read.
    """
    try:
        manifest = read_manifest(folder)
        return gaps_of(manifest, read_table(folder / manifest.generation))
    except (BadIndex, OSError, ValueError):
        return None
