"""A passage: what retrieval returns."""

import msgspec


class Passage(msgspec.Struct, frozen=True):
    """One retrieved piece of a document."""

    id: str
    title: str
    text: str
    score: float = 0.0
    """Similarity to the query; comparable within one search only."""
