"""What a client thinks of an answer."""

import msgspec

MAX_CHARS = 5000
"""Of each of its texts."""
MAX_A_RUN = 50


class Feedback(msgspec.Struct, frozen=True):
    """Feedback on one run; a run may have `MAX_A_RUN`."""

    run_id: str
    accepted: bool | None = None
    """Whether the answer was right, or of use; None where that is not stated."""
    score: float | None = None
    """How good the answer was, from 0 to 1."""
    gold_answer: str = ""
    """The right answer, where the client knows it."""
    comment: str = ""

    @property
    def good(self) -> bool | None:
        """Whether the answer was right: as stated, or else by a score of 0.5 or more; None where it does not tell."""
        return self.score >= 0.5 if self.accepted is None and self.score is not None else self.accepted

    @property
    def empty(self) -> bool:
        """Whether it says nothing."""
        return self == Feedback(self.run_id)
