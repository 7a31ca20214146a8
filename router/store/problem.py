"""What is wrong with a store."""

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One thing that is not as it must be."""

    where: str
    """A table, or a row of it."""
    what: str
    """In plain words."""
