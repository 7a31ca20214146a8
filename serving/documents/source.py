"""Find the files from which an index is built."""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from router.errors import BadDocument
from router.frozen import Frozen
from serving.documents.document import READ, escaped, kind_of
from serving.documents.text import is_binary

_SAMPLE_BYTES = 1024
_MAX_SHOWN_CHARS = 1000
"""Max characters of a path in a message."""


class SourceFile(Frozen):
    """A file, with the size and the time of change that it had when it was found."""

    name: str
    """Path with slashes, such as `docs/a.txt`. It begins with the name of the place (the file or
    folder to index) where the file was found. Bytes that are not UTF-8 are escaped (`escaped`).
    """
    path: str
    """Absolute path. Bytes that are not UTF-8 are surrogates, as in `os.fsdecode`."""
    size_bytes: int
    mtime_ns: int
    """Time of the last change, in nanoseconds of Unix time."""


class FoundFiles(Frozen):
    """The files that were found at some places (files or folders)."""

    sources: tuple[SourceFile, ...]
    """Files to read, sorted by name. Names are unique."""
    passed_over: tuple[str, ...]
    """Paths of files of unsupported kinds."""
    links: tuple[str, ...]
    """Messages about paths that were not followed, such as links to other folders, and folders that
    cannot be opened. A message is a path with the reason.
    """


def find_sources(places: Sequence[Path]) -> FoundFiles:
    """Find all documents at or below `places`, which are files and folders. Each file is found
    once.

    Hidden files and folders are ignored. Links are followed only to files below the same place. A
    place that is a file of an unknown kind is read as text. Raises `BadDocument` for a place
    without readable files, and if two files have the same name.
    """
    by_name = dict[str, SourceFile]()
    seen = set[tuple[int, int]]()
    passed_over = list[str]()
    links = list[str]()
    for place in places:
        base = Path(os.path.normpath(place.absolute()))
        if not base.exists():
            raise BadDocument(
                f"{escaped(str(base))}: this file or folder does not exist; correct the path."
            )
        is_readable = False
        links_before = len(links)
        for path, status in _files(base, links):
            if not stat.S_ISREG(status.st_mode) or not (path == base or _is_read(path)):
                passed_over.append(escaped(str(path)))
                continue
            is_readable = True
            inode = status.st_dev, status.st_ino
            if inode not in seen:
                seen.add(inode)
                name = escaped(Path(base.name, path.relative_to(base)).as_posix())
                _add(by_name, SourceFile(name, str(path), status.st_size, status.st_mtime_ns))

        if not is_readable:
            last_link = "".join(f" {link}" for link in links[links_before:][-1:])
            raise BadDocument(
                f"{escaped(str(place))}: contains no file of a supported kind: {READ}.{last_link}"
            )
    sources = tuple(by_name[name] for name in sorted(by_name))
    return FoundFiles(sources, tuple(passed_over), tuple(sorted(links)))


def _files(base: Path, links: list[str]) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the path and the status of each file at or below `base`. Add a message to `links` for
    each path that is not followed.
    """

    def skip(path: str | Path, reason: str | None) -> None:
        links.append(f"{escaped(str(path))[:_MAX_SHOWN_CHARS]}: {reason}.")

    if not base.is_dir():
        yield base, base.stat()
        return
    root = base.resolve()
    outside = f"a link to outside {escaped(str(base))}, or to no file; name its target to index it"
    walk = os.walk(base, onerror=lambda error: skip(error.filename, error.strerror))
    for folder, folders, names in walk:
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(folder, name) for name in (*folders, *names) if not name.startswith(".")):
            try:
                status = path.lstat()
                if stat.S_ISLNK(status.st_mode):
                    target = Path(os.path.realpath(path))
                    if not (target.is_relative_to(root) and target.is_file()):
                        skip(path, outside)
                        continue
                    status = target.stat()
            except OSError as error:  # the path is too long, or was removed
                skip(path, error.strerror)
                continue
            if not stat.S_ISDIR(status.st_mode):
                yield path, status


def _is_read(path: Path) -> bool:
    """Return True if a file is of a readable kind.

    A file that cannot be opened counts as readable, so that the error is reported when the file is
    read.
    """
    if path.suffix:
        return kind_of(path) is not None
    try:
        with path.open("rb") as file:
            return not is_binary(file.read(_SAMPLE_BYTES))
    except OSError:
        return True


def _add(by_name: dict[str, SourceFile], source: SourceFile) -> None:
    if (other := by_name.setdefault(source.name, source)) is not source:
        raise BadDocument(
            f"{escaped(source.path)} and {escaped(other.path)}: both would be called "
            f"{source.name!r} in the index; index the folder that contains both, or rename one."
        )
