"""What a client thinks of an answer."""

import msgspec


class Feedback(msgspec.Struct, frozen=True):
    """Feedback on one run; a run may have any number."""

    run_id: str
    accepted: bool | None = None
    """Whether the answer was right, or of use; None where that is not stated."""
    score: float | None = None
    """How good the answer was, from 0 to 1."""
    gold_answer: str = ""
    """The right answer, where the client knows it."""
    comment: str = ""

    @property
    def empty(self) -> bool:
        """Whether it says nothing."""
        return self == Feedback(self.run_id)
