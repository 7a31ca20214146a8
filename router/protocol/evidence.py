"""A report: all that leaves an executor (TBSS 3.1)."""

import msgspec


class Report(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A concise answer to one sub-query, with what supports it."""

    answer: str
    evidence: tuple[str, ...]
    """One to three short points from the retrieved text; empty where nothing was found."""
    lost_lines: int = 0
    """Lines of an answer of several lines that were cut off, be it in part."""
    escalate_to: str = ""
    """The manager that could do what the executor could not, which `answer` says if there is no
    evidence; empty where it names none.
    """

    def within(self, chars: int) -> "Report":
        """The same, its answer and each point cut to `chars` characters; an answer of several
        lines, after a line.
        """
        if max(map(len, (self.answer, *self.evidence))) <= chars:
            return self
        answer = self.answer[:chars]
        if "\n" in answer and answer != self.answer:
            answer = answer[: answer.rindex("\n")]
        lost = self.lost_lines + self.answer.count("\n") - answer.count("\n")
        return Report(
            answer, tuple(point[:chars] for point in self.evidence), lost, self.escalate_to
        )


NO_EVIDENCE = Report("no evidence found", ())
"""The report of an executor that failed, whatever the reason: neutral, and without internals."""


class Passage(msgspec.Struct, frozen=True, gc=False):
    """One retrieved piece of a document."""

    id: str
    title: str
    text: str
    score: float = 0.0
    """Similarity to the query; comparable within one search only."""
    document: str = ""
    """The file that the passage was cut from, with a row's id (`people.jsonl#ada`); empty where
    it is not known.
    """
    page: int | None = None
    """Its page there, from 1."""

    def within(self, chars: int) -> "Passage":
        """The same, its title and its text cut to `chars` characters each."""
        if max(len(self.title), len(self.text)) <= chars:
            return self
        return msgspec.structs.replace(self, title=self.title[:chars], text=self.text[:chars])
