"""Reports, and the retrieved passages that reports are based on. Of an executor's work, other roles
see only the report (TBSS 3.1).
"""

import msgspec

from router.frozen import Frozen


class Report(Frozen, gc=False, omit_defaults=True):
    """A concise answer to one sub-query, with its evidence."""

    answer: str
    evidence: tuple[str, ...]
    """One to three short points from the retrieved text; empty if nothing was found."""
    lost_lines: int = 0
    """Number of lines that were cut off the end of a multi-line answer, completely or in part."""
    escalate_to: str = ""
    """Name of another manager that should work on the sub-query; empty for none. If this field is
    set and there is no evidence, `answer` describes what is missing.
    """

    def within(self, chars: int) -> "Report":
        """Return the report with its answer and each point of evidence cut to `chars` characters. A
        multi-line answer is cut at the end of a line.
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
"""The report of an executor that failed or found nothing. It does not say which of the two
happened.
"""


class Passage(Frozen, gc=False):
    """One retrieved piece of a document."""

    id: str
    title: str
    text: str
    score: float = 0.0
    """Similarity to the query. Scores are comparable only within one search."""
    document: str = ""
    """Name of the file that contains the passage; for a row of a file, followed by the row's id
    (`people.jsonl#ada`). Empty if unknown.
    """
    page: int | None = None
    """Page of the passage in the file, from 1; None if unknown."""
    location: str = ""
    """Place of the passage in a file without pages: `sheet Prices, row 14`, `slide 3`,
    `attachment a.txt`. Empty if unknown.
    """

    def within(self, chars: int) -> "Passage":
        """Return the passage with its title and its text cut to `chars` characters each."""
        if max(len(self.title), len(self.text)) <= chars:
            return self
        return msgspec.structs.replace(self, title=self.title[:chars], text=self.text[:chars])
