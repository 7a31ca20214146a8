"""A report, which is all that leaves an executor (TBSS 3.1), and the passages behind it."""

import msgspec


class Report(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A concise answer to one sub-query, with its evidence."""

    answer: str
    evidence: tuple[str, ...]
    """One to three short points from the retrieved text; empty if nothing was found."""
    lost_lines: int = 0
    """Lines of a multi-line answer that were cut off, completely or in part."""
    escalate_to: str = ""
    """The manager that could do what the executor could not; empty for none. Without evidence,
    `answer` says what is missing.
    """

    def within(self, chars: int) -> "Report":
        """Return the report with its answer and each point cut to `chars` characters; a multi-line
        answer is cut after a line.
        """
        if max(map(len, (self.answer, *self.evidence))) <= chars:
            return self
        answer = self.answer[:chars]
        if "\n" in answer and answer != self.answer:
            answer = answer[: answer.rindex("\n")]
        lost = self.lost_lines + self.answer.count("\n") - answer.count("\n")
        return Report(
            answer,
            tuple(point[:chars] for point in self.evidence),
            lost,
            self.escalate_to,
        )


NO_EVIDENCE = Report("no evidence found", ())
"""The report of a failed executor: neutral, and without internals."""


class Passage(msgspec.Struct, frozen=True, gc=False):
    """One retrieved piece of a document."""

    id: str
    title: str
    text: str
    score: float = 0.0
    """Similarity to the query; comparable only within one search."""
    document: str = ""
    """The file of the passage, with a row's id (`people.jsonl#ada`); empty if unknown."""
    page: int | None = None
    """Its page in that file, from 1."""
    location: str = ""
    """Its place where there are no pages: `sheet Prices, row 14`, `slide 3`, `attachment a.txt`."""

    def within(self, chars: int) -> "Passage":
        """Return the passage with its title and its text cut to `chars` characters each."""
        if max(len(self.title), len(self.text)) <= chars:
            return self
        return msgspec.structs.replace(self, title=self.title[:chars], text=self.text[:chars])
