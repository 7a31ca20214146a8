"""The files that an index is made of."""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from router.errors import BadDocument
from serving.documents.document import READ, escaped, is_dataset, kind_of
from serving.documents.text import is_binary

_HEAD_BYTES = 1024
_MAX_SHOWN_CHARS = 1000
"""Of a path in a message."""


class Source(msgspec.Struct, frozen=True):
    """A file, or a saved data set, as it was when it was found."""

    name: str
    """Its path from the given folder on, the folder's own name first, with slashes, escaped."""
    path: str
    """Absolute; bytes that are not UTF-8 are surrogates, as ever in paths."""
    size_bytes: int
    mtime_ns: int
    """The time of its last change, in nanoseconds of Unix time."""


class Found(msgspec.Struct, frozen=True):
    """The files in the places that were looked at."""

    sources: tuple[Source, ...]
    """By name; no two have the same."""
    passed_over: tuple[str, ...]
    """Paths of other files, of kinds that are not read."""
    links: tuple[str, ...]
    """Symbolic links, and paths that are too long, that were not followed, each with the reason."""


def find_sources(places: Sequence[Path]) -> Found:
    """All documents at or below `places`, each file once; hidden files and folders are left alone. Links are followed
    as long as they stay in their place.

    A file that is itself a place counts as text where its kind is not known. Raises `BadDocument` for a place where
    nothing can be read, and for two files that would have the same name.
    """
    named: dict[str, Source] = {}
    seen: set[tuple[int, int]] = set()
    passed_over: list[str] = []
    links: list[str] = []
    for place in places:
        base = Path(os.path.normpath(place.absolute()))
        readable, but = False, ""
        for path in _files(base):
            if reason := _not_followed(path, base):
                links.append(f"{escaped(str(path))[:_MAX_SHOWN_CHARS]}: {reason}.")
                but = f" {links[-1]}"
            elif (status := _status(path)) is None or not (path == base or _is_read(path)):
                passed_over.append(escaped(str(path)))
            else:
                readable = True
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    _add(named, _source(base, path, status))
        if not readable:
            raise BadDocument(f"{escaped(str(place))}: nothing here that can be read; these kinds can: {READ}.{but}")
    return Found(tuple(named[name] for name in sorted(named)), tuple(passed_over), tuple(links))


def _files(base: Path) -> Iterator[Path]:
    """Files, saved data sets, links that are not followed, and folders that cannot be listed; a folder that several
    links lead to, once.
    """
    if not base.exists():
        raise BadDocument(f"{escaped(str(base))}: there is no such file or folder; correct the path.")
    if not base.is_dir():
        yield base
        return
    visited: set[tuple[int, int]] = set()
    refused: list[str] = []
    for folder, folders, names in os.walk(base, followlinks=True, onerror=lambda error: refused.append(error.filename)):
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in visited:
            folders.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        if is_dataset(Path(folder)):
            folders.clear()
            yield Path(folder)
            continue
        shown = sorted(name for name in folders if not name.startswith("."))
        ends = [name for name in shown if _not_followed(Path(folder, name), base)]
        folders[:] = [name for name in shown if name not in ends]
        yield from (Path(folder, name) for name in sorted([*ends, *names]) if not name.startswith("."))
    yield from map(Path, refused)


def _not_followed(path: Path, base: Path) -> str | None:
    """The reason why a path is not followed; None for what is no link, and for a link that stays below `base`. A saved
    data set counts with all that it holds.
    """
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return "its path is longer than the system allows; move it up"
    for link in [path, *path.rglob("*")] if is_dataset(path) else [path]:
        if link == base or not link.is_symlink():
            continue
        try:
            target = link.resolve(strict=True)
        except (OSError, RuntimeError):  # RuntimeError: links that lead to each other, up to Python 3.12
            return "a link that leads nowhere; mend it, or remove it"
        if not target.is_relative_to(base.resolve()):
            return f"a link that leads out of {escaped(str(base))}; put there what it leads to, or name that as well"
        if link.parent.resolve().is_relative_to(target):
            return "a link that leads back to a folder that it is in; remove it"
    return None


def _status(path: Path) -> os.stat_result | None:
    """None where there is nothing that could be read."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) else None


def _is_read(path: Path) -> bool:
    """Tell whether a file is of a kind that is read; one that cannot be opened is, so that its reader says why not."""
    if path.is_dir():
        return is_dataset(path) or not os.access(path, os.R_OK | os.X_OK)
    if path.suffix:
        return kind_of(path) is not None
    try:
        with path.open("rb") as file:
            return not is_binary(file.read(_HEAD_BYTES))
    except OSError:
        return True


def _source(base: Path, path: Path, status: os.stat_result) -> Source:
    name = escaped(Path(base.name, path.relative_to(base)).as_posix())
    files = [file.stat() for file in path.rglob("*") if file.is_file()] if is_dataset(path) else [status]
    return Source(name, str(path), sum(file.st_size for file in files), max(file.st_mtime_ns for file in files))


def _add(named: dict[str, Source], source: Source) -> None:
    if (other := named.setdefault(source.name, source)) is not source:
        raise BadDocument(
            f"{escaped(source.path)} and {escaped(other.path)}: both would be known as {source.name!r}; give the "
            "folder above both, or rename one."
        )
