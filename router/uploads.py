"""Documents that tenants upload: values that describe the documents, and the protocol of the
storage that indexes them.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol

from router.errors import BadConfig
from router.frozen import Frozen

DocumentState = Literal["waiting", "indexed", "skipped"]
"""State of a document. `waiting`: the next build of the index will read it. `indexed`: searches
find it. `skipped`: it could not be read.
"""
BuildState = Literal["idle", "building", "failed"]


class UploadedDocument(Frozen):
    """A stored document of a tenant."""

    name: str
    size_bytes: int
    uploaded_at: float
    """Unix time, seconds."""
    state: DocumentState = "waiting"
    passages: int = 0
    """Number of the document's passages in the index."""
    not_read: str = ""
    """Why the document was not read, or which of its parts were not read; empty if it was read
    completely.
    """


class Build(Frozen):
    """State of the index of a tenant's documents, with figures of the last successful build."""

    state: BuildState
    documents: Sequence[UploadedDocument]
    """All stored documents, sorted by name."""
    up_to_date: bool
    """True if searches find all stored documents, except skipped ones, and no deleted document."""
    indexed: int = 0
    """Number of documents in the index."""
    passages: int = 0
    """Number of passages in the index."""
    started_at: float | None = None
    """Unix time, seconds; None if there was no build."""
    ended_at: float | None = None
    error: Exception | None = None
    """Why the last build failed; None if it succeeded or if there was no build."""

    @property
    def skipped(self) -> list[UploadedDocument]:
        """The documents that could not be read, each with the reason."""
        return [document for document in self.documents if document.state == "skipped"]


class Uploads(Protocol):
    """Storage of uploaded documents, with an index for each tenant.

    Every method raises `BadRequest` for an unsuitable name, and `StoreFailed` if the disk fails.
    """

    async def upload(
        self,
        tenant: str,
        name: str,
        size: int,
        content: AsyncIterator[bytes],
        *,
        wait: bool = False,
    ) -> UploadedDocument:
        """Store a document, and return its description once the document is on disk. A document of
        the same name is replaced. If `content` raises an error, or the task is cancelled before all
        of `content` is stored, nothing changes.

        `size`: bytes of the whole `content`; if it has more or fewer, `BadRequest` is raised.
        `wait`: whether to return only when a build has read the document, or has failed. Raises
        `DocumentTooLarge` if the document exceeds the size limit, and `UploadsFull` if it exceeds
        one of the tenant's limits.
        """

    async def delete(self, tenant: str, name: str) -> None:
        """Delete a document from disk. Raises `NotFound` if there is no document of this name."""

    async def build(self, tenant: str) -> Build:
        """Return the stored documents and the state of their index."""


def accepting(uploads: Uploads | None) -> Uploads:
    """Return `uploads`. Raises `BadConfig` if it is None, which means that uploads are disabled."""
    if uploads is None:
        raise BadConfig(
            "uploads.folder: this gateway accepts no uploads; set this key to a folder for "
            "uploaded documents and their indexes."
        )
    return uploads
