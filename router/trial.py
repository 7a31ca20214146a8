"""A run that two versions of the executor have worked on: which is better is decided from many of these."""

import msgspec

from router.executor_version import Stage
from router.feedback import Feedback
from router.scoring import exact_match


class Side(msgspec.Struct, frozen=True):
    """What came of a run with one version."""

    answer: str
    failed: bool
    """Whether any of its executors came to no report, or the run to no answer."""
    tokens: int
    """Of its executor calls; those that are known."""


class Trial(msgspec.Struct, frozen=True):
    """A run with both."""

    run_id: str
    """The run that a client asked for."""
    candidate: str
    """The version that is tried."""
    active: str
    stage: Stage
    """Whether the client got the active one's answer (shadow) or the candidate's (canary)."""
    by_candidate: Side
    by_active: Side
    ended_at: float
    """Unix time, seconds."""

    @property
    def served(self) -> Side:
        """What the client got."""
        return self.by_active if self.stage == "shadow" else self.by_candidate

    @property
    def beside(self) -> Side:
        """What the client did not get."""
        return self.by_candidate if self.stage == "shadow" else self.by_active


class Judgement(msgspec.Struct, frozen=True):
    """Which of a trial's two answers were right; None of one that nobody knows of."""

    candidate_right: bool | None
    active_right: bool | None


def judge(trial: Trial, feedback: Feedback) -> Judgement | None:
    """What feedback on the run says of both answers; None where it says nothing.

    A gold answer tells of both, by exact match, unless the client accepted an answer that does not match it. Then, as
    without one, the verdict tells of the answer that the client got, and of the other one only where it is the same, or
    matches.
    """
    accepted, golds = feedback.good, [feedback.gold_answer] if feedback.gold_answer else []
    matches = bool(golds) and exact_match(trial.served.answer, golds)
    beside: bool | None
    if golds and (matches or not accepted):
        served, beside = matches, exact_match(trial.beside.answer, golds)
    elif accepted is not None:
        alike = exact_match(trial.beside.answer, [trial.served.answer, *golds])
        served, beside = accepted, accepted if alike else None
    else:
        return None
    return Judgement(beside, served) if trial.stage == "shadow" else Judgement(served, beside)


class Pair(msgspec.Struct, frozen=True):
    """A trial as the gate sees it."""

    candidate_failed: bool
    active_failed: bool
    candidate_tokens: int
    active_tokens: int
    judgement: Judgement | None = None
    """None while it is not known which answers were right."""
