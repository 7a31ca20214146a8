"""Rollouts: what teacher and student made of the same sub-queries, under the same backbone (TBSS 3.4)."""

import msgspec

from router.trace.values import Execution, Trajectory


class Question(msgspec.Struct, frozen=True):
    """A question with its right answers."""

    id: str
    text: str
    golds: tuple[str, ...]
    """Any of them is right; none where that is left to the judge."""
    source: str = ""
    """The data set that it is from, for the composition table; empty where that was not said."""
    rejected: tuple[str, ...] = ()
    """Answers that somebody has called wrong."""


class Verdict(msgspec.Struct, frozen=True):
    """Whether a final answer is right."""

    exact_match: bool | None
    """None where no right answer is known."""
    accepted: bool | None = None
    """What the judge says; None where it was not asked, or its reply could not be read."""
    judged: bool = False
    """Whether the judge was asked."""

    @property
    def correct(self) -> bool:
        """By exact match, where a right answer is known, and by the judge, where one was asked (TBSS 3.4)."""
        return self.accepted is True and self.exact_match is not False if self.judged else self.exact_match is True


class Sample(msgspec.Struct, frozen=True):
    """One executor's work on one sub-query, and where it leads: to the answer of the run in which it stands, all else
    being the teacher's.
    """

    execution: Execution
    answer: str
    verdict: Verdict


class SubQueryRollout(msgspec.Struct, frozen=True):
    """A sub-query with everybody's work on it."""

    teacher: Sample
    student: Sample
    capped: Sample | None = None
    """The teacher's once more, with one search at most; only where it was correct with two or more."""


class Rollout(msgspec.Struct, frozen=True):
    """A question with everything that was made of it; one line of `rollouts.jsonl`."""

    question: Question
    trajectory: Trajectory
    """The teacher's run."""
    verdict: Verdict
    sub_queries: tuple[SubQueryRollout, ...]
    """In order of dispatch."""
