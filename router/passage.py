"""A passage: what retrieval returns."""

import msgspec


class Passage(msgspec.Struct, frozen=True):
    """One retrieved piece of a document."""

    id: str
    title: str
    text: str
    score: float = 0.0
    """Similarity to the query; comparable within one search only."""
    document: str = ""
    """The file that the passage was cut from, or the id of the row; empty where that is not known."""
    page: int | None = None
    """Its page there, from 1."""
