"""Files rebuilt from the notes of `recorder.c`, as a power cut at any moment may leave them.

Synced changes are on disk. Of later changes any part may be: writes are torn between sectors,
and names of files are entries of folders, which are synced separately.
"""

import random
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SECTOR = 512
_NOTE = struct.Struct("<ciQI")
_LEFT_OUT = "-shm", "owner", "told"
"""Suffixes of files that are useless to another process."""


def built(folder: Path) -> Path:
    """Compile the recorder into a library. Raises `OSError` without a compiler."""
    library = folder / "recorder.so"
    source = Path(__file__).with_name("recorder.c")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", library, source, "-ldl"], check=True
    )
    return library


class Note(NamedTuple):
    """Change of a file."""

    kind: str
    file: int
    number: int
    data: bytes


def notes(file: Path) -> Iterator[Note]:
    """Yield all notes in order."""
    data = file.read_bytes()
    at = 0
    while at < len(data):
        kind, descriptor, number, length = _NOTE.unpack_from(data, at)
        at += _NOTE.size + length
        yield Note(kind.decode(), descriptor, number, data[at - length : at])


class Named(NamedTuple):
    """File of a name from then on; None if there is none."""

    name: str
    file: "File | None"


@dataclass(slots=True)
class File:
    """A file or folder: its content on disk, and the changes since."""

    content: bytearray = field(default_factory=bytearray)
    names: dict[str, "File"] | None = None
    """Files by name, if this is a folder."""
    since: list[Note | Named] = field(default_factory=list)
    synced: int = 0
    """Number of changes removed from `since`."""

    def sync(self, changes: int) -> None:
        """Put on disk the changes before the given number."""
        count = max(0, changes - self.synced)
        for change in self.since[:count]:
            if isinstance(change, Note):
                _do(self.content, change)
            else:
                _rename(self.names, change)
        del self.since[:count]
        self.synced += count

    def left(self, folder: Path, chance: random.Random) -> None:
        """Write into an empty folder a possible state of this one after a power cut."""
        likely = chance.choice((0.0, 0.5, 0.9, 1.0))
        names = dict(self.names or {})
        lost = set[str]()
        for change in self.since:
            assert isinstance(change, Named)
            if change.name not in lost and chance.random() < likely:
                _rename(names, change)
            else:
                lost.add(change.name)
        for name, file in names.items():
            if file.names is not None:
                (folder / name).mkdir()
                file.left(folder / name, chance)
            elif not name.endswith(_LEFT_OUT):
                (folder / name).write_bytes(file.torn(chance))

    def torn(self, chance: random.Random) -> bytes:
        """Return a possible content of the file after a power cut."""
        content = bytearray(self.content)
        likely = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        for change in self.since:
            assert isinstance(change, Note)
            whole = chance.random() < 0.7
            at = change.number
            end = change.number + len(change.data)
            if whole or change.kind != "w":
                if chance.random() < likely:
                    _do(content, change)
                continue
            while at < end:
                piece = min(end, (at // SECTOR + 1) * SECTOR)
                if chance.random() < likely:
                    _do(
                        content,
                        Note("w", -1, at, change.data[at - change.number : piece - change.number]),
                    )
                at = piece
        return bytes(content)


class Disk:
    """Files of a folder, changed note by note."""

    def __init__(self, folder: Path) -> None:
        self.root = File(names={})
        self._folder = folder
        self._now = {str(folder): self.root}
        self._open: dict[int, File] = {}
        self._syncs: dict[int, tuple[File, int]] = {}

    def take(self, note: Note) -> None:
        """Apply the next note."""
        path = note.data.decode() if note.kind in "oum" else ""
        match note.kind:
            case "o":
                if note.number:
                    self._name(path, File())
                self._open[note.file] = self._now[path]
            case "m":
                self._name(path, File(names={}))
            case "u":
                self._name(path, None)
            case "c":
                del self._open[note.file]
            case "s":
                file = self._open[note.file]
                self._syncs[note.file] = file, file.synced + len(file.since)
            case "S":
                file, changes = self._syncs[note.file]
                file.sync(changes)
            case _:
                self._open[note.file].since.append(note)

    def is_at(self, note: Note, name: str) -> bool:
        """Return whether the note writes to a file of this name in the folder."""
        return note.kind == "w" and self._open[note.file] is self._now.get(f"{self._folder}/{name}")

    def _name(self, path: str, file: File | None) -> None:
        folder, _, name = path.rpartition("/")
        self._now[folder].since.append(Named(name, file))
        if file is None:
            del self._now[path]
        else:
            self._now[path] = file


def _do(content: bytearray, change: Note) -> None:
    match change:
        case Note("w", number=at, data=data):
            content.extend(bytes(max(0, at - len(content))))
            content[at : at + len(data)] = data
        case Note("t", number=size):
            del content[size:]
            content.extend(bytes(size - len(content)))
        case Note("a", number=size):
            content.extend(bytes(max(0, size - len(content))))


def _rename(names: dict[str, File] | None, change: Named) -> None:
    assert names is not None
    if change.file is None:
        names.pop(change.name, None)
    else:
        names[change.name] = change.file
