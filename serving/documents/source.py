"""The files that an index is made of."""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from router.errors import BadDocument
from serving.documents.document import READ, escaped, kind_of
from serving.documents.text import is_binary

_HEAD_BYTES = 1024
_MAX_SHOWN_CHARS = 1000
"""Of a path in a message."""


class Source(msgspec.Struct, frozen=True):
    """A file as it was when it was found."""

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
    """Paths that were not followed, as symbolic links and folders without permission, each with
    the reason.
    """


def find_sources(places: Sequence[Path]) -> Found:
    """All documents at or below `places`, each file once; hidden files and folders are left alone.
    Links are followed to files below their place only.

    A file that is itself a place counts as text where its kind is not known. Raises `BadDocument`
    for a place where nothing can be read, and for two files that would have the same name.
    """
    named: dict[str, Source] = {}
    seen: set[tuple[int, int]] = set()
    passed_over: list[str] = []
    links: list[str] = []
    for place in places:
        base = Path(os.path.normpath(place.absolute()))
        if not base.exists():
            raise BadDocument(
                f"{escaped(str(base))}: there is no such file or folder; correct the path."
            )
        readable = False
        before = len(links)
        for path, status in _files(base, links):
            if not stat.S_ISREG(status.st_mode) or not (path == base or _is_read(path)):
                passed_over.append(escaped(str(path)))
                continue
            readable = True
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                name = escaped(Path(base.name, path.relative_to(base)).as_posix())
                _add(named, Source(name, str(path), status.st_size, status.st_mtime_ns))
        if not readable:
            but = "".join(f" {link}" for link in links[before:][-1:])
            raise BadDocument(
                f"{escaped(str(place))}: nothing here that can be read; these kinds can: "
                f"{READ}.{but}"
            )
    return Found(
        tuple(named[name] for name in sorted(named)), tuple(passed_over), tuple(sorted(links))
    )


def _files(base: Path, links: list[str]) -> Iterator[tuple[Path, os.stat_result]]:
    """All but folders at or below `base`, with what the system says of them; `links` gets what
    is not looked at.
    """

    def leave(path: str | Path, reason: str) -> None:
        links.append(f"{escaped(str(path))[:_MAX_SHOWN_CHARS]}: {reason}.")

    if not base.is_dir():
        yield base, base.stat()
        return
    root = base.resolve()
    for folder, folders, names in os.walk(
        base, onerror=lambda error: leave(error.filename, str(error.strerror))
    ):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(folder, name) for name in (*folders, *names) if not name.startswith(".")):
            try:
                status = path.lstat()
                if stat.S_ISLNK(status.st_mode):
                    target = Path(os.path.realpath(path))
                    if not (target.is_relative_to(root) and target.is_file()):
                        leave(
                            path,
                            f"a link to no file in {escaped(str(base))}; name what it "
                            "leads to as well",
                        )
                        continue
                    status = target.stat()
            except OSError as error:  # its path is too long, or it is gone
                leave(path, str(error.strerror))
                continue
            if not stat.S_ISDIR(status.st_mode):
                yield path, status


def _is_read(path: Path) -> bool:
    """Tell whether a file is of a kind that is read; one that cannot be opened is, so that its
    reader says why not.
    """
    if path.suffix:
        return kind_of(path) is not None
    try:
        with path.open("rb") as file:
            return not is_binary(file.read(_HEAD_BYTES))
    except OSError:
        return True


def _add(named: dict[str, Source], source: Source) -> None:
    if (other := named.setdefault(source.name, source)) is not source:
        raise BadDocument(
            f"{escaped(source.path)} and {escaped(other.path)}: both would be known as "
            f"{source.name!r}; give the "
            "folder above both, or rename one."
        )
