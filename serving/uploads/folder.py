"""The uploaded documents of one tenant on disk.

A tenant's folder contains `documents/` (the documents under their names), `index/` (the index of
the documents), `arriving/` (incomplete uploads), and `build.json` (record of the last successful
build). A file is complete on disk before it is moved to `documents/`, so that this folder never
contains a part of a document.
"""

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from operator import attrgetter
from pathlib import Path
from typing import Self
from unicodedata import normalize

import msgspec

from router.errors import (
    JSON_ERRORS,
    BadRequest,
    DocumentNotFound,
    DocumentTooLarge,
    StoreFailed,
    UploadsFull,
)
from router.frozen import Frozen
from serving.config.config import UploadsConfig
from serving.documents.document import MAX_BYTES, READ, kind_of
from serving.documents.source import SourceFile
from serving.files import flush, write_atomically
from serving.retrieval.manifest import MANIFEST
from serving.retrieval.passages import DocumentEntry

_LONGEST_NAME = 512
_LONGEST_PART = 200
"""Max bytes of a part of a document's name between slashes. The whole name may have at most
`_LONGEST_NAME` bytes.
"""
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class BuildRecord(Frozen):
    """Record of the last successful build of the index."""

    settings: str = ""
    """Settings of the build, such as the embedder. If the gateway has other settings, the index is
    not up to date.
    """
    generation: str = ""
    """Generation of the index: the name of the folder that the build wrote. Empty if no document
    has text; then there is no index.
    """
    started_at: float | None = None
    """Unix time in seconds at which the build started; None if there was no build."""
    ended_at: float | None = None
    entries: tuple[DocumentEntry, ...] = ()
    """All documents at the time of the build, sorted by name."""


def checked_name(name: str) -> str:
    """Return the name of a document in Unicode's normal form NFC. Raises `BadRequest` if the name
    is not a safe relative path, or if files with its suffix are not supported.
    """
    name = normalize("NFC", name)
    parts = name.split("/")
    if (
        not name.isprintable()
        or "\\" in name
        or len(name.encode()) > _LONGEST_NAME
        or any(_is_unsafe(part) for part in parts)
    ):
        raise BadRequest(
            f"name {name[:_LONGEST_NAME]!r}: must be a relative path of at most {_LONGEST_NAME} "
            f"bytes, {_LONGEST_PART} in each part between slashes; no part may be empty, begin "
            "with a dot, or begin or end with a space; control characters and backslashes are not "
            "allowed."
        )
    if kind_of(Path(name)) is None:
        raise BadRequest(
            f"name {name!r}: files of this kind cannot be read; supported kinds: {READ}."
        )
    return name


def _is_unsafe(part: str) -> bool:
    return not 0 < len(part.encode()) <= _LONGEST_PART or part[0] == "." or part != part.strip()


class TenantFolder:
    """The uploaded documents of one tenant on disk. The methods block. Methods that change
    documents hold a lock, which also excludes other gateways that share the folder.
    """

    def __init__(self, config: UploadsConfig, tenant: str) -> None:
        """Open the folder of `tenant`. Raises `BadRequest` if the tenant's name cannot be the name
        of a folder.
        """
        if not _TENANT.fullmatch(tenant):
            raise BadRequest(
                f"tenant {tenant!r}: cannot have documents, because its name is not 1 to 64 "
                "letters, digits, dots, underscores and hyphens, beginning with a letter or digit; "
                "use a key of another tenant."
            )
        self.tenant = tenant
        # Write capital letters in another way, because the file system may ignore case, and tenants
        # whose names differ only in case need different folders
        folder = re.sub("[A-Z]", lambda letter: f"={letter[0].lower()}", tenant)
        self.path = Path(config.folder or "", folder)
        self.index = self.path / "index"
        self._documents = self.path / "documents"
        self._arriving = self.path / "arriving"
        self._record = self.path / "build.json"
        self._config = config

    @classmethod
    def all(cls, config: UploadsConfig) -> list[Self]:
        """Return the folder of each tenant that has a folder. Raises `OSError` if the folder of all
        uploads cannot be read.
        """
        root = Path(config.folder or "")
        root.mkdir(parents=True, exist_ok=True)
        folders = [path.name for path in root.iterdir()]
        names = [re.sub("=(.)", lambda letter: letter[1].upper(), folder) for folder in folders]
        return [cls(config, name) for name in names if _TENANT.fullmatch(name)]

    def documents(self) -> list[SourceFile]:
        """Return the files of all documents, sorted by name."""
        documents = []
        for folder, _, names in os.walk(self._documents):
            for path in (f"{folder}/{name}" for name in names):
                with suppress(FileNotFoundError):  # deleted in the meantime
                    documents.append(self._source(path))
        return sorted(documents, key=attrgetter("name"))

    def _source(self, path: str) -> SourceFile:
        status = Path(path).stat()
        name = path[len(str(self._documents)) + 1 :]
        return SourceFile(name, path, status.st_size, status.st_mtime_ns)

    def used_without(self, name: str) -> int:
        """Return the total bytes of all documents except the document `name`, which is about to be
        stored. Raises `BadRequest` if the name of another document differs from `name` only in
        case. Raises `UploadsFull` if the max number of documents is reached.
        """
        others = [document for document in self.documents() if document.name != name]
        for other in others:
            if other.name.casefold() == name.casefold():
                raise BadRequest(
                    f"name {name!r}: differs from {other.name!r} only in upper and lower case; "
                    "use that name, or another one."
                )
        if len(others) >= self._config.max_documents:
            raise UploadsFull(
                f"{name!r} was not stored: {len(others)} documents are stored, at most "
                f"{self._config.max_documents} are allowed; delete some, or ask the operator to "
                "raise uploads.max_documents."
            )
        return sum(document.size_bytes for document in others)

    def check_size(self, name: str, size: int, used: int) -> None:
        """Raise `DocumentTooLarge` if the document `name` is too large. Raise `UploadsFull` if all
        documents of the tenant together would be too large. `size`: bytes of the document. `used`:
        total bytes of the other documents.
        """
        if not 0 <= size <= MAX_BYTES:
            raise DocumentTooLarge(
                f"{name!r} was not stored: it is larger than {MAX_BYTES >> 20} MiB; split it."
            )
        if used + size > self._config.max_mb << 20:
            raise UploadsFull(
                f"{name!r} was not stored: other documents take {used:,} bytes, and all together "
                f"may take {self._config.max_mb << 20:,}; delete some, or ask the operator to "
                "raise uploads.max_mb."
            )

    def begin(self) -> BufferedWriter:
        """Open a new file for the content of an upload. The file is locked. Without the lock, other
        gateways would remove it as a leftover of a killed gateway. Raises `StoreFailed`.
        """
        with _disk_errors():
            self._arriving.mkdir(parents=True, exist_ok=True)
            flush(self.path.parent)
            file = (self._arriving / secrets.token_hex(8)).open("xb")
            fcntl.flock(file, fcntl.LOCK_EX)
            return file

    def write(self, file: BufferedWriter, piece: bytes) -> None:
        """Append a piece of the content to the file of an upload. Raises `StoreFailed`."""
        with _disk_errors():
            file.write(piece)

    def commit(self, file: BufferedWriter, name: str) -> SourceFile:
        """Move the file of a complete upload to its place as the document `name`, and return the
        document's file. When the method returns, the document survives a power failure. Raises
        `StoreFailed`, and the errors of `check_size` and `used_without`.
        """
        target = self._documents / name
        with _disk_errors():
            file.flush()
            os.fsync(file)
            with self._locked():
                self.check_size(name, file.tell(), self.used_without(name))
                # Set the time of change in nanoseconds, so that two versions of a document have
                # different times, even within a clock tick of the file system
                now = time.time_ns()
                os.utime(file.fileno(), ns=(now, now))
                try:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    Path(file.name).replace(target)
                except (FileExistsError, IsADirectoryError, NotADirectoryError):
                    raise BadRequest(
                        f"name {name!r}: one of its parts would be both a document and the folder "
                        "of other documents; use another name."
                    ) from None
                for folder in target.relative_to(self.path).parents:
                    flush(self.path / folder)
                return self._source(str(target))

    def discard(self, file: BufferedWriter) -> None:
        """Close the file of an upload. Remove the file if `commit` has not made it a document."""
        Path(file.name).unlink(missing_ok=True)
        with suppress(OSError):  # the disk may be full
            file.close()

    def remove_leftovers(self) -> None:
        """Remove the files of incomplete uploads that killed gateways have left."""
        for path in self._arriving.glob("*"):
            with suppress(OSError), path.open("rb") as file:  # locked by a running gateway
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()

    def delete(self, name: str) -> None:
        """Delete a document. When the method returns, the deletion survives a power failure. Raises
        `DocumentNotFound` if there is no document of this name, and `StoreFailed`.
        """
        path = self._documents / name
        with _disk_errors():
            if not path.is_file():
                raise DocumentNotFound(
                    f"name {name!r}: there is no document of this name; ListDocuments lists all."
                )
            with self._locked():
                path.unlink(missing_ok=True)
                flush(path.parent)
                for folder in path.relative_to(self._documents).parents:
                    with suppress(OSError):  # other documents are in it
                        (self._documents / folder).rmdir()

    def record(self) -> BuildRecord:
        """Return the record of the last successful build; an empty record if no build has
        succeeded.
        """
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=BuildRecord)
        except (OSError, *JSON_ERRORS):
            return BuildRecord()

    def finish(self, record: BuildRecord) -> None:
        """Store the record of a build. If the build wrote no index, because no document has text,
        remove the previous index first.
        """
        if not record.generation:
            (self.index / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(self.index, ignore_errors=True)
        write_atomically(self._record, msgspec.json.encode(record))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.path / ".changing").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Turn an `OSError` into `StoreFailed`."""
    try:
        yield
    except OSError as error:
        raise StoreFailed(
            f"The uploads cannot be written ({error.strerror}); try again, or tell the operator."
        ) from error
