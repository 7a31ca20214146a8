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
    """The file that the passage was cut from, with a row's id (`people.jsonl#ada`); empty where it is not known."""
    page: int | None = None
    """Its page there, from 1."""

    def within(self, chars: int) -> "Passage":
        """The same, its title and its text cut to `chars` characters each."""
        if max(len(self.title), len(self.text)) <= chars:
            return self
        return msgspec.structs.replace(self, title=self.title[:chars], text=self.text[:chars])
