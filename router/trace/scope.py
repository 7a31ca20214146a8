"""The scope of a run: the indexes and documents that it may search."""

from collections.abc import Container

from router.errors import IndexNotFound
from router.frozen import Frozen

DEFAULT_INDEX = "default"
"""Name of the index in `[retrieval]` of the config."""
UPLOADS = "uploads"
"""Name of an index in requests: the index of all documents that the caller's tenant has uploaded.
"""


class DocumentFilter(Frozen, forbid_unknown_fields=True):
    """Properties that a document must have to be searched. An empty field allows all documents."""

    title: str = ""
    """Text that the title contains; upper and lower case are not distinguished."""
    author: str = ""
    """Text that the author's name contains; upper and lower case are not distinguished."""
    from_date: str = ""
    """Earliest date of the document, in the form 2026, 2026-11 or 2026-11-21."""
    to_date: str = ""
    """Latest date of the document, in the same form; 2026-11 includes all of November."""
    path_prefix: str = ""
    """Text with which the document's path begins."""
    tags: tuple[str, ...] = ()
    """Tags, all of which the document must have."""

    def admits(
        self,
        title: str,
        date: str,
        author: str,
        path: str,
        tags: Container[str],
    ) -> bool:
        """Return True if a document with this metadata has all properties of the filter. `date`: a
        day such as 2026-11-21. Each argument is empty if it is unknown.
        """
        return (
            self.from_date <= date
            and (not self.to_date or "" < date[: len(self.to_date)] <= self.to_date)
            and path.startswith(self.path_prefix)
            and self.title.casefold() in title.casefold()
            and self.author.casefold() in author.casefold()
            and all(tag in tags for tag in self.tags)
        )


NO_FILTER = DocumentFilter()


class Scope(Frozen):
    """The indexes and documents that a run may search."""

    indexes: tuple[str, ...] = (DEFAULT_INDEX,)
    """Names of the indexes, sorted, without duplicates."""
    filter: DocumentFilter = NO_FILTER


DEFAULT_SCOPE = Scope()


def uploads_of(tenant: str) -> str:
    """Return the name that scopes use for the index of a tenant's uploads. It differs from the
    names for all other tenants, and from the names of all indexes in the config.
    """
    return f"{UPLOADS}/{tenant}"


def no_index(name: str) -> IndexNotFound:
    """Return the error for an index that does not exist, or that the caller may not use. It is the
    same error for both, so that nobody learns the names of other tenants' indexes.
    """
    return IndexNotFound(
        f"index {name[:64]!r}: does not exist, or you may not use it; leave it out to search all "
        "of your indexes, or ask the operator for access."
    )
