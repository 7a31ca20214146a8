"""A report: all that leaves an executor (TBSS 3.1)."""

import msgspec


class Report(msgspec.Struct, frozen=True):
    """A concise answer to one sub-query, with what supports it."""

    answer: str
    evidence: tuple[str, ...]
    """One to three short points from the retrieved text; empty where nothing was found."""

    def within(self, chars: int) -> "Report":
        """The same, its answer and each point cut to `chars` characters."""
        if max(map(len, (self.answer, *self.evidence))) <= chars:
            return self
        return Report(self.answer[:chars], tuple(point[:chars] for point in self.evidence))


NO_EVIDENCE = Report("no evidence found", ())
"""What stands in for a report whenever an executor fails, whatever the reason: neutral, and without internals."""
